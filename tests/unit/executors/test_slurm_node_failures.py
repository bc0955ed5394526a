"""Which node a job was lost with, in the words of Slurm's records."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterkit.core.model import ClusterKind, NodeResult
from clusterkit.executors import executor_for
from clusterkit.executors.run import node_results
from clusterkit.executors.slurm import states
from clusterkit.executors.slurm.states import explain_node_failure, query
from tests.unit.executors.test_executors_slurm import (
    SCRIPT,
    WANTED,
    Fake,
    fake,
    slurm_plan,
    submit,
)

__all__ = ["fake"]

JOB = "JobId=7 JobName=toy JobState=NODE_FAIL Reason=NodeDown {}ReqNodeList=(null) NodeList=n[1-3]"
UP = "NodeName={} Arch=x86_64 State=IDLE ThreadsPerCore=1 Comment=(null)"
DOWN = (
    "NodeName={} Arch=x86_64 State=DOWN+NOT_RESPONDING ThreadsPerCore=1 "
    "Reason=Not responding [slurm@2026-11-20T10:00:00]"
)
DRAINED = "NodeName={} State=IDLE+DRAIN Reason=disk [root@2026-11-20T10:00:00]"
BOOTING = "NodeName=n4 State=MIXED+CLOUD+NOT_RESPONDING+POWERING_UP"


def slurm(fake: Fake, job: str, *nodes: str) -> None:
    listed = "\n".join(f"echo '{node}'" for node in nodes) or ":"
    fake("scontrol", f"case \"$2\" in job) echo '{job}' ;; node) {listed} ;; esac")


@pytest.mark.parametrize(
    ("failed", "nodes", "said"),
    [
        (
            "",
            [UP.format("n1"), DOWN.format("n2"), UP.format("n3")],
            "n2 is down+not_responding, Not responding (Slurm's reason: NodeDown)",
        ),
        (
            "",
            [DOWN.format(f"n{k}") for k in (1, 2, 3)],
            (
                "n[1-3] is down+not_responding, Not responding, all at once: perhaps the "
                "controller's own link was cut (Slurm's reason: NodeDown)"
            ),
        ),
        (
            "",
            [UP.format("n1"), UP.format("n2"), DRAINED.format("n3")],
            "one of n[1-3], in good order again by now (Slurm's reason: NodeDown)",
        ),
        (
            "FailedNode=n3 ",
            [UP.format("n3")],
            "n3, in good order again by now (Slurm's reason: NodeDown)",
        ),
        (  # while it boots, a node cannot respond
            "",
            [BOOTING, "NodeName=n2 State=DOWN+CLOUD+NOT_RESPONDING+POWERING_UP Reason=no capacity"],
            ("n2 is down+cloud+not_responding+powering_up, no capacity (Slurm's reason: NodeDown)"),
        ),
        ("", [], "one of n[1-3], of which Slurm says no more (Slurm's reason: NodeDown)"),
    ],
)
def test_the_node_and_the_reason_are_those_of_slurms_record(
    fake: Fake, failed: str, nodes: list[str], said: str
) -> None:
    slurm(fake, JOB.format(failed), *nodes)
    assert explain_node_failure("7") == said


def test_accounting_knows_the_nodes_of_a_job_that_slurm_has_forgotten(fake: Fake) -> None:
    fake("scontrol", '[[ $2 == node ]] && exit 1; echo "Invalid job id specified" >&2; exit 1')
    assert explain_node_failure("7") == "Slurm's record names no node"
    fake("sacct", "echo 'n[4-5]'")
    assert explain_node_failure("7") == "one of n[4-5], of which Slurm says no more"


def test_a_failed_node_is_named_in_the_state(fake: Fake) -> None:
    slurm(fake, JOB.format(""), UP.format("n1"), DOWN.format("n2"))
    fake("squeue", f"echo '7|NODE_FAIL|NodeDown|N/A|30:00|{SCRIPT}'")
    reason = states.query(WANTED)["7"].reason
    assert reason is not None
    assert reason.startswith("a node failed: n2 is down")
    fake("squeue", f"echo '7|RUNNING|None|N/A|30:00|{SCRIPT}'")
    assert states.query(WANTED)["7"].reason is None


def test_lines_that_are_no_nodes_are_passed_over(fake: Fake) -> None:
    slurm(fake, JOB.format(""), "nonsense", "NodeName=n1", "NodeName=n2 State=DOWN* Reason=disk")
    assert explain_node_failure("7").startswith("n2 is down+not_responding, disk")


def test_slurm_is_told_of_a_bad_node_beside_those_that_were_excluded(
    fake: Fake, tmp_path: Path
) -> None:
    """A new list replaces the old one, and is given once."""
    fake("sbatch", "echo 4711")
    run, submission, _ = submit(slurm_plan(tmp_path, directives={"exclude": "n[8-9]"}, requeue=1))
    result = NodeResult(
        node_rank=0, node="n1", exit_code=69, started_at=0.0, ended_at=1.0, unfit="/dev/shm is full"
    )
    node_results.write_result(run, result, attempt=0, n_nodes=2)
    fake("scontrol", f'echo "$*" >>{tmp_path}/asked')
    for _ in range(2):
        executor_for(ClusterKind.SLURM).restart(run, submission)
    assert (tmp_path / "asked").read_text() == "update JobId=4711 ExcNodeList=n[8-9],n1\n"


BOOTS = "JobId=7 StartTime=2026-11-27T04:16:22 Partition=cloud NodeList=n[3-4]"


def test_of_nodes_that_boot_it_is_told_which_and_until_when(fake: Fake) -> None:
    fake("squeue", f"echo '7|CONFIGURING|None|N/A|30:00|{SCRIPT}'")
    up = "NodeName=n3 State=MIXED+CLOUD"
    of_nodes = f"node) echo '{up}'; echo '{BOOTING}'"
    config = "config) echo 'ResumeTimeout           = 60 sec'"
    told = "1 of 2 nodes up, n4 boot since 04:16:22, given up after {} s (ResumeTimeout)"
    for own, seconds in (("", 60), ("ResumeTimeout=GLOBAL", 60), ("ResumeTimeout=600", 600)):
        partition = f"partition) echo '   {own} SuspendTimeout=GLOBAL'"
        ways = f"job) echo '{BOOTS}' ;; {of_nodes} ;; {partition} ;; {config} ;;"
        fake("scontrol", f'case "$2" in {ways} esac')
        assert query(WANTED)["7"].reason == told.format(seconds)
    fake("scontrol", "exit 1")
    assert query(WANTED)["7"].reason is None


def test_a_job_that_no_nodes_are_left_for_names_those_that_are_down(fake: Fake) -> None:
    reason = "Nodes required for job are DOWN, DRAINED or reserved for jobs in other partitions"
    fake("squeue", f"echo '7|PENDING|{reason}|N/A|30:00|{SCRIPT}'")
    slurm(fake, BOOTS)
    fake("sinfo", "echo 'n4|down~|ResumeTimeout reached'; echo 'n7|drained|none'; echo 'a line'")
    told = f"{reason}: n4 is down~, ResumeTimeout reached; n7 is drained"
    assert query(WANTED)["7"].reason == told
    fake("sinfo", "exit 1")
    assert query(WANTED)["7"].reason == reason


def test_of_a_job_that_slurm_put_back_it_is_told_which_node_did_not_start(fake: Fake) -> None:
    fake("squeue", f"echo '7|PENDING|BeginTime|N/A|30:00|{SCRIPT}'")
    fake("sinfo", '[[ "$*" == *--states=down\\ * ]] && echo "n4|down~|ResumeTimeout reached"')
    slurm(fake, f"{BOOTS} Restarts=1")
    assert query(WANTED)["7"].reason == "BeginTime: n4 is down~, ResumeTimeout reached"
    slurm(fake, f"{BOOTS} Restarts=0")  # the user's own --begin
    assert query(WANTED)["7"].reason == "BeginTime"
