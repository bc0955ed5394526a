"""What is made of a Slurm that does not answer, played by programs of the same names."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from clusterkit.core.errors import RemoteError
from clusterkit.transport import process
from clusterkit.transport.base import Reply
from clusterkit.transport.probe import PreflightJob, Probe, Reach, ReachProblem
from clusterkit.transport.script import Compound, compose
from clusterkit.transport.slurm_nodes import AwakeTransport, Standing, standings
from clusterkit.transport.srun import SrunOptions, SrunTransport

Fake = Callable[[str, str], None]

NO_CONTROLLER = """\
{0}: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host
{0}: error: fetch_config: DNS SRV lookup failed
{0}: error: _establish_config_source: failed to fetch config
{0}: fatal: Could not establish a configuration source
"""
"""Slurm 22.05 on a machine that no cluster knows."""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Put programs on PATH; there are none but these, cat and a shell."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "cat").symlink_to("/bin/cat")
    monkeypatch.setenv("PATH", str(folder))

    def make(name: str, body: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{textwrap.dedent(body)}")
        (folder / name).chmod(0o755)

    return make


def failing(words: str) -> str:
    return f"cat >&2 <<'END'\n{words}\nEND\nexit 1\n"


def compound_of(nodes: Sequence[str], *, together: bool = False) -> Compound:
    probe = Probe(name="name", command="uname -n", parse=str)
    return compose([probe], PreflightJob(hosts=nodes), token="cktoken", together=together)


def ask(*nodes: str, together: bool = False, **options: Any) -> tuple[Reply, ...]:
    compound = compound_of(nodes, together=together)
    return SrunTransport(SrunOptions(**options)).ask(nodes, compound, on_reply=lambda _: None)


@pytest.mark.parametrize("sinfo_is_there", [True, False])
@pytest.mark.parametrize(
    "words",
    [
        NO_CONTROLLER,
        (
            "{0}: error: Unable to allocate resources: Unable to contact slurm controller"
            " (connect failure)"
        ),
        "{0}: error: If munged is up, restart with --num-threads=10",
        "{0}: error: Unable to allocate resources: Zero Bytes were transmitted or received",
    ],
)
def test_a_slurm_that_does_not_answer_is_no_fault_of_a_node(
    fake: Fake, words: str, sinfo_is_there: bool
) -> None:
    fake("srun", failing(words.format("srun")))
    if sinfo_is_there:
        fake("sinfo", failing(words.format("sinfo")))
    with pytest.raises(RemoteError, match=r"(?s)Slurm does not answer s(info|run): .*--via ssh"):
        ask("n1", "n2")


@pytest.mark.parametrize(
    "words",
    [
        (
            "srun: error: invalid partition specified: nowhere\n"
            "srun: error: Unable to allocate resources: Invalid partition name specified"
        ),
        (
            "srun: error: Unable to allocate resources: Invalid account or account/partition"
            " combination specified"
        ),
        "srun: error: Unable to confirm allocation for job 7: Invalid job id specified",
    ],
)
def test_a_request_that_slurm_refuses_is_no_fault_of_a_node(fake: Fake, words: str) -> None:
    fake("srun", failing(words))
    with pytest.raises(RemoteError, match="Slurm refuses the request of srun"):
        ask("n1", "n2")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("Unable to allocate resources: Requested nodes are busy", ReachProblem.BUSY),
        (
            "Task launch for StepId=7.0 failed on node n1: Protocol authentication error",
            ReachProblem.SCHEDULER,
        ),
        ("Required node not available (down, drained or reserved)", ReachProblem.SCHEDULER),
    ],
)
def test_what_is_said_of_nodes_stays_with_them(
    fake: Fake, words: str, problem: ReachProblem
) -> None:
    fake("srun", failing(f"srun: error: {words}"))
    fake("sinfo", "exit 1\n")
    assert [reply.reach.problem for reply in ask("n1", "n2")] == [problem, problem]


def test_of_slurms_variables_those_reach_srun_that_say_where_it_may_look(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CONF", "PARTITION", "RESERVATION", "EXPORT_ENV", "NODELIST"):
        monkeypatch.setenv(f"SLURM_{name}", name.lower())
    words = "$SLURM_CONF $SLURM_PARTITION $SLURM_RESERVATION"
    fake("srun", f'echo "{words} ${{SLURM_EXPORT_ENV-}}${{SLURM_NODELIST-}}" >{tmp_path}/seen\n')
    ask("n1")
    assert (tmp_path / "seen").read_text() == "conf partition reservation \n"


@pytest.mark.parametrize("job_id", [None, "4711"])
def test_an_srun_that_has_to_be_killed_leaves_no_allocation(
    fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job_id: str | None
) -> None:
    """Its own is cancelled, by the id that it said before any task; the job it is in is not."""
    monkeypatch.setattr(process, "_GRACE_S", 0.2)
    fake("sinfo", "echo 'n1|idle|none'\n")
    said = "srun: jobid 4711: nodes(1):n1, cpu counts: 1(x1)\n0: srun: jobid 12\nsrun: jobid 13"
    fake(
        "srun",
        f"trap '' INT TERM; echo '{said}' >&2; while :; do /bin/sleep 0.05; done\n",
    )
    fake("scancel", f'echo "$*" >>{tmp_path}/cancelled\n')
    margin_s = 15 - compound_of(["n1"]).timeout_s
    (reply,) = ask("n1", job_id=job_id, immediate_s=0, margin_s=margin_s)
    assert reply.reach.problem is not None
    cancelled = tmp_path / "cancelled"
    assert cancelled.read_text() == "4711\n" if job_id is None else not cancelled.exists()


def standing(fake: Fake, state: str) -> Standing:
    fake("sinfo", f"echo 'n1|{state}|none'\n")
    return standings(["n1"])["n1"]


BASES = ("idle", "mixed", "allocated", "completing")
DRAINED = ("drained", "draining", "down", "future")


@pytest.mark.parametrize(
    "state",
    [
        *(f"{base}{symbol}" for base in BASES for symbol in "~#%!^@"),
        *(
            "reboot",
            "reboot^",
            "reboot*",
            "power_down",
            "power_up",
            "powering_down",
            "powered_down",
        ),
        *("powering_up", "reboot_issued"),
    ],
)
def test_a_node_that_is_not_up_is_neither_asked_nor_unfit(fake: Fake, state: str) -> None:
    """All that node_state_string says of such nodes, Slurm 22.05 to 26.05."""
    found = standing(fake, state)
    assert (found.given, bool(found.asleep)) == (True, True)
    problem = found.problem(in_job=False)
    assert problem is not None
    assert problem[0] is ReachProblem.DEFERRED


@pytest.mark.parametrize(
    "state",
    [
        *(f"{base}{symbol}" for base in DRAINED for symbol in ("", *"~#%!^@$")),
        *("idle*", "mixed*", "?", "fail", "failing*", "inval", "unknown", "down*"),
        *("maint", "mixed$", "drained*"),
    ],
)
def test_a_node_that_slurm_gives_to_nobody_stays_so_when_it_sleeps(fake: Fake, state: str) -> None:
    found = standing(fake, state)
    assert (found.given, found.asleep) == (False, "")
    problem = found.problem(in_job=False)
    assert problem is not None
    assert problem[0] is ReachProblem.SCHEDULER
    assert state in problem[1]


@pytest.mark.parametrize("state", ["idle", "mixed", "mixed-", "planned", "allocated", "allocated+"])
def test_a_node_that_is_up_is_asked_or_busy(fake: Fake, state: str) -> None:
    found = standing(fake, state)
    assert (found.given, found.asleep) == (True, "")
    problem = found.problem(in_job=False)
    busy = state.startswith("allocated")
    assert (problem is not None) is busy
    assert problem is None or problem[0] is ReachProblem.BUSY


@pytest.mark.parametrize(("state", "asked"), [("@", True), ("!", True), ("#", False), ("^", False)])
def test_a_node_of_a_job_is_up_until_the_job_ends(fake: Fake, state: str, asked: bool) -> None:
    """It is about to reboot, or to be powered down, and waits for the job."""
    problem = standing(fake, f"mixed{state}").problem(in_job=True)
    assert (problem is None) is asked


def test_hidden_nodes_are_not_woken(fake: Fake, tmp_path: Path) -> None:
    """Without PrivateData=cloud, no command lists nodes that are powered down."""
    fake("sinfo", "exit 0\n")
    fake("srun", f"echo $* >>{tmp_path}/srun\nexit 1\n")
    fake("scontrol", "echo PartitionName=q Default=YES Nodes=q1-dy-p5-[1-16] TotalNodes=16\n")
    replies = ask("q1-dy-p5-7", "elsewhere")
    assert [(r.reach.problem, r.reach.detail) for r in replies] == [
        (ReachProblem.DEFERRED, "powered down"),
        (ReachProblem.SCHEDULER, "Slurm knows no node of this name"),
    ]
    assert not (tmp_path / "srun").exists()


@pytest.mark.parametrize("denied", ["Access/permission denied", ""])
@pytest.mark.parametrize("resume", ["(null)", "/usr/sbin/resume"])
def test_nodes_that_slurm_shows_to_nobody_are_asked_where_none_can_sleep(
    fake: Fake, tmp_path: Path, resume: str, denied: str
) -> None:
    """With PrivateData=nodes slurmctld denies all of them, and not each."""
    words = f"echo slurm_load_node: {denied} >&2; exit 1\n"
    fake("sinfo", words if denied else "exit 0\n")
    fake("srun", f"echo $* >>{tmp_path}/srun\nexit 1\n")
    fake(
        "scontrol",
        f"""\
        case "$*" in
        *config) echo 'PrivateData             = jobs,nodes'
                 echo 'ResumeProgram           = {resume}' ;;
        *) echo PartitionName=q Default=YES Nodes=q[1-16] TotalNodes=16 ;;
        esac
        """,
    )
    (reply,) = ask("q7")
    asked = resume == "(null)"
    assert (tmp_path / "srun").exists() is asked
    assert (reply.reach.problem is ReachProblem.DEFERRED) is not asked
    assert asked or "PrivateData=nodes" in reply.reach.detail


def test_no_step_is_larger_than_allowed(fake: Fake, tmp_path: Path) -> None:
    """Nodes that are powered down between two steps are left alone; free ones come first."""
    fake(
        "sinfo",
        f"""\
        [ -e {tmp_path}/srun ] && last='idle~' || last=idle
        for n in 2 3 4; do echo "n$n|idle|none"; done
        echo "n1|mixed|none"
        echo "n5|$last|none"
        """,
    )
    fake("srun", f"echo $* >>{tmp_path}/srun\nexit 1\n")
    replies = ask("n1", "n2", "n3", "n4", "n5", most_nodes=2)
    steps = [line.split() for line in (tmp_path / "srun").read_text().splitlines()]
    assert [(words[10], words[12]) for words in steps] == [
        ("--nodes=2", "--nodelist=n[2-3]"),
        ("--nodes=2", "--nodelist=n[1,4]"),
    ]
    assert replies[4].reach.detail == "powered down"


@pytest.mark.parametrize("options", [{"together": True}, {"steps_s": -1.0}])
def test_what_is_left_is_not_asked(fake: Fake, tmp_path: Path, options: dict[str, Any]) -> None:
    """Nodes that have to meet, and those whose turn would come too late."""
    fake("sinfo", 'for n in 1 2 3 4 5; do echo "n$n|idle|none"; done\n')
    fake("srun", f"echo $* >>{tmp_path}/srun\nexit 1\n")
    replies = ask("n1", "n2", "n3", "n4", "n5", most_nodes=2, **options)
    assert len((tmp_path / "srun").read_text().splitlines()) == 1
    assert [reply.reach.problem for reply in replies[2:]] == [ReachProblem.DEFERRED] * 3
    assert replies[4].reach.detail.startswith("not asked")


def test_the_step_before_may_come_to_its_end(fake: Fake, tmp_path: Path) -> None:
    """Slurm calls nodes completing after srun has ended; those that others use stay busy."""
    fake(
        "sinfo",
        f"""\
        [ -e {tmp_path}/completing ] && . {tmp_path}/completing || state=idle
        echo "n1|$state|none"
        """,
    )
    left = f"{tmp_path}/completing"
    again = f"echo 'state=completing; echo state=idle >{left}' >{left}"
    fake("srun", f"echo $* >>{tmp_path}/srun; {again}; exit 1\n")
    compound = compose([], PreflightJob(hosts=("n1",)), token="cktoken")
    transport = SrunTransport(SrunOptions())
    for _ in range(2):
        (reply,) = transport.ask(("n1",), compound, on_reply=lambda _: None)
        assert reply.reach.problem is ReachProblem.SCHEDULER
    assert len((tmp_path / "srun").read_text().splitlines()) == 2
    (reply,) = SrunTransport(SrunOptions()).ask(("n1",), compound, on_reply=lambda _: None)
    assert reply.reach.problem is ReachProblem.BUSY


def test_nodes_are_asked_by_ssh_where_slurm_is_silent(fake: Fake) -> None:
    """What is told to be powered down is not; our own hint says to ask by ssh."""
    asked: list[str] = []

    class Ssh:
        def ask(
            self, nodes: Sequence[str], compound: Compound, *, on_reply: Callable[[Reply], None]
        ) -> tuple[Reply, ...]:
            asked.extend(nodes)
            return tuple(Reply(node=node, reach=Reach(via="ssh")) for node in nodes)

    compound = compose([], PreflightJob(hosts=()), token="cktoken")
    fake("sinfo", "echo 'n1|idle~|none'; echo 'n2|idle|none'\n")
    first, second = AwakeTransport(Ssh()).ask(("n1", "n2"), compound, on_reply=lambda _: None)
    assert (first.reach.problem, second.reach.problem) == (ReachProblem.DEFERRED, None)
    fake("sinfo", failing(NO_CONTROLLER.format("sinfo")))
    AwakeTransport(Ssh()).ask(("n1", "n2"), compound, on_reply=lambda _: None)
    assert asked == ["n2", "n1", "n2"]
