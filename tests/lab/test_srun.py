"""Nodes asked through Slurm: in an allocation of one's own, and in one that is there."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.helpers.lab_ask import ask, await_no_job, reach, said
from tests.helpers.lab_faults import wait_for_state
from tests.helpers.lab_jobs import is_soon
from tests.lab import Lab

pytestmark = pytest.mark.lab

IN_ALLOCATION = ("salloc", "--quiet", "--nodes=3", "--nodelist=n[1-3]", "--immediate=20")
LONG = "i=0; while [ $i -lt 20 ]; do awk 'BEGIN { for (; j < 3700; j++) printf j % 10; print \"\" }'; i=$((i+1)); done"  # noqa: E501


NOISY = {
    "SLURM_EXPORT_ENV": "NONE",
    "SRUN_EXPORT_ENV": "NONE",
    "SLURM_STDOUTMODE": "/dev/null",
    "SLURM_UNBUFFEREDIO": "1",
    "SLURM_NNODES": "1",
    "SLURM_THREADS_PER_CORE": "9",
    "SLURM_WORKING_DIR": "/nowhere",
    "SLURM_TASK_PROLOG": "/nowhere",
    "SLURM_KILL_BAD_EXIT": "1",
}
"""What users and sites export for their own srun."""


def test_whatever_srun_was_told_by_variables(lab: Lab) -> None:
    done = ask(lab, lab.nodes, via="srun", env=NOISY)
    assert [said(done, node) for node in lab.nodes] == ["n1\n", "n2\n", "n3\n"]


def test_an_allocation_of_its_own(lab: Lab) -> None:
    """Long lines come whole from all nodes at once, though srun hands them on in pieces."""
    done = ask(lab, ["n3", "n1", "n2"], via="srun", probes={"name": "uname -n", "long": LONG})
    line = "".join(str(index % 10) for index in range(3700)) + "\n"
    for node in lab.nodes:
        found = reach(done, node)
        assert (found["problem"], found["via"], found["complete"]) == (None, "srun", True)
        assert said(done, node) == f"{node}\n"
        assert said(done, node, "long") == line * 20
        assert abs(found["clock_skew_s"]) < 1
    await_no_job(lab)


def test_inside_an_allocation(lab: Lab) -> None:
    """The step runs beside the others of its job, whatever options the job leaves around."""
    done = ask(lab, lab.nodes, via="srun", before=IN_ALLOCATION, env=NOISY)
    assert [said(done, node) for node in lab.nodes] == ["n1\n", "n2\n", "n3\n"]


def test_some_nodes_of_an_allocation(lab: Lab) -> None:
    done = ask(lab, ["n2"], via="srun", before=IN_ALLOCATION)
    assert said(done, "n2") == "n2\n"


def test_nodes_that_slurm_does_not_give(lab: Lab) -> None:
    """A drained node says why, and the others answer."""
    drain = ["scontrol", "update", "nodename=n2", "state=drain", "reason=a broken fan"]
    lab.run("head", drain, check=True)
    try:
        done = ask(lab, lab.nodes, via="srun")
    finally:
        lab.run("head", ["scontrol", "update", "nodename=n2", "state=resume"], check=True)
        lab.up()  # waits until the node takes jobs again
    assert reach(done, "n2")["problem"] == "scheduler"
    assert reach(done, "n2")["detail"] == "drained: a broken fan"
    assert [reach(done, node)["problem"] for node in ("n1", "n3")] == [None, None]


def test_what_srun_says_when_it_refuses(lab: Lab) -> None:
    """That is nothing against a node."""
    done = ask(lab, ["n1", "n2"], via="srun", partition="nowhere")
    assert "invalid partition" in done["error"].lower()


def test_busy_nodes_are_not_waited_for(lab: Lab) -> None:
    hold = lab.popen("head", ["srun", "--nodelist=n1", "--exclusive", "sleep", "600"])
    try:
        while not lab.processes("n1", "(^|/)sleep 600"):
            time.sleep(0.1)
        done = ask(lab, ["n1"], via="srun", immediate_s=2)
    finally:
        os.killpg(hold.pid, signal.SIGTERM)
        hold.communicate(timeout=120)
    assert reach(done, "n1")["problem"] in {"scheduler", "busy"}
    assert is_soon(lab, done["seconds"])


def test_a_step_that_hangs_is_ended(lab: Lab) -> None:
    """What came is used, and nothing of it stays in the queue."""
    probes = {"name": "uname -n", "hang": ["setsid sleep 300 & uname -n", 1]}
    done = ask(lab, lab.nodes, via="srun", probes=probes, immediate_s=20, margin_s=10)
    for node in lab.nodes:
        assert said(done, node) == f"{node}\n"
    assert is_soon(lab, done["seconds"] - done["timeout_s"] - 20 - 10)
    await_no_job(lab, "running")


def test_an_interrupt_gives_the_allocation_back(lab: Lab) -> None:
    wait_for_state(lab, "idle", "n1")  # a step that another test had ended may be completing
    wanted = '{"via":"srun","nodes":["n1"],"probes":{"slow":["sleep 50",60]},"options":{}}'
    argv = ["python3", "-m", "tests.helpers.ask_client", wanted]
    client = lab.popen("head", argv, env={"PYTHONPATH": "."})
    while not lab.processes("n1", "(^|/)sleep 50"):
        assert client.poll() is None, client.communicate()
        time.sleep(0.1)
    for process in lab.processes("head", "python3 -m tests.helpers.ask_client"):
        os.kill(process.pid, signal.SIGINT)
    client.communicate(timeout=45)  # before the probe ends of itself
    await_no_job(lab, "running")


def test_a_machine_without_srun(lab: Lab) -> None:
    done = ask(lab, ["n1"], via="srun", before=["env", "PATH=/nowhere"])
    assert "cannot run srun" in done["error"]
    assert "--via ssh" in done["error"]
