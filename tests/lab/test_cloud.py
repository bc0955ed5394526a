"""An elastic Slurm on the practice cluster: what wakes its nodes, and what a lost client leaves."""

from __future__ import annotations

import json
import os
import pty
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.helpers import lab_scripts
from tests.helpers.desk import Desk
from tests.helpers.lab_ask import await_no_job
from tests.helpers.lab_faults import configured, full_shared_memory, shaped, wait_for_state
from tests.lab import Lab
from tests.lab.layout import write_changed

pytestmark = pytest.mark.lab

ROUNDS = int(os.environ.get("CLUSTERKIT_FAULT_ROUNDS", "2"))
CTRL_C, LOST = "Ctrl-C", "a lost session"
WAYS = ("SIGKILL", "SIGTERM", "SIGHUP", CTRL_C, LOST)
"""How a client is struck."""
STRIKES = ROUNDS * len(WAYS) if ROUNDS > 2 else ROUNDS
"""Moments at which each verb is struck: of few, each verb has other ways than the one before."""
CLOUD = ("n3", "n4", "n5", "n6")
CONFIG = """\
default_cluster: cloud
clusters:
"""
CLUSTER = """\
  {name}:
    kind: slurm
    partition: {name}
    gpus_per_node: 2
    time: "10"
    python: {python}
    run_dir: runs
    setup: ["true"]  # so that a torch without GPUs is no fault of the nodes
"""
HELLO = "import os; print('hello from', os.uname().nodename, os.environ['RANK'], flush=True)\n"
JOB = ("--framework", "env", "--gpus-per-node", "1", "--nodes", "2")
CAPACITY = "(Code:InsufficientInstanceCapacity) Failure when resuming nodes"
SLOW_S, LEFT_S = 120, 90.0
"""How long a question takes by itself; how long until nothing of it is left once its client is:
a step that SIGTERM met before it had begun is killed KillWait (10 s here) later."""
SRUN = """\
#!/bin/bash
# srun that notes what it is asked for outside of jobs; questions of clusterkit take SLOW_S more.
[ -n "$SLURM_JOB_ID" ] || echo "$@" >>{folder}/log
case "$*" in
*--job-name=clusterkit-*" sh")
    [ -z "$SLOW_S" ] || set -- "${{@:1:$#-1}}" sh -c "sleep $SLOW_S; sh"
    ;;
esac
exec {real} "$@"
"""


@pytest.fixture
def desk(cloud_lab: Lab, request: pytest.FixtureRequest) -> Desk:
    desk = Desk.of(cloud_lab, re.sub(r"\W+", "-", request.node.name))
    names = ("cloud", "mixed", "gpu")
    clusters = (CLUSTER.format(name=name, python=sys.executable) for name in names)
    (desk.folder / "clusterkit.yaml").write_text(CONFIG + "".join(clusters))
    desk.write("hello.py", HELLO)
    return desk


@pytest.fixture
def resumed(cloud_lab: Lab) -> Iterator[Callable[[], list[str]]]:
    """Power all cloud nodes down; give a function that tells which were resumed since.

    A job that has succeeded may not be over for Slurm, which would start it again: its nodes fail.
    """
    cloud_lab.run("head", ["scancel", "--user=root"], check=True)
    await_no_job(cloud_lab)
    states = "--format=%T", f"--nodes={','.join(CLOUD)}", "--noheader"
    down = ["scontrol", "update", f"nodename={','.join(CLOUD)}", "state=power_down_force"]
    if cloud_lab.run("head", ["sinfo", *states]).stdout.split() != ["idle~"]:
        cloud_lab.run("head", down, check=True)
    wait_for_state(cloud_lab, "idle~", *CLOUD, within_s=60)
    log = cloud_lab.layout.power / "log"
    log.write_text("")

    def told() -> list[str]:
        words = (line.split() for line in log.read_text().splitlines())
        listed = ",".join(what for word, what in words if word == "resume")
        if not listed:
            return []
        names = cloud_lab.run("head", ["scontrol", "show", "hostnames", listed])
        return sorted(names.stdout.split())

    yield told
    wait_for_state(cloud_lab, "idle", "n1", "n2")


def test_nothing_but_a_job_wakes_a_node(desk: Desk, resumed: Callable[[], list[str]]) -> None:
    asked = desk.clusterkit("preflight", "--cluster", "mixed")
    assert asked.returncode == 0, asked.stderr
    assert "n[3-6]  powered down: checked when it starts" in asked.stdout
    assert "2 nodes usable" in asked.stdout
    few = desk.clusterkit("preflight", "--cluster", "mixed", "--nodes", "3")
    assert "  n3  powered down" in few.stdout
    by_ssh = desk.clusterkit("preflight", "--via", "ssh", "--select", "SSH")
    assert (by_ssh.returncode, "fail" in by_ssh.stdout) == (0, False)
    quiet: tuple[tuple[str, ...], ...] = (
        ("top", "--once", "--via", "srun"),
        ("top", "--once", "--via", "ssh"),
        ("top", "--once", "--via", "srun", "--cluster", "mixed"),
        ("submit", "--dry-run", "--preflight", "full", *JOB, "hello.py"),
    )
    for words in quiet:
        done = desk.clusterkit(*words)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
    free = json.loads(desk.clusterkit("nodes", "free", "--json", "--cluster", "mixed").stdout)
    assert {(one["node"], one["state"], one["open"]) for one in free["nodes"]} == {
        *((f"n{k}", "idle", True) for k in (1, 2)),
        *((f"n{k}", "powered down", True) for k in (3, 4, 5, 6)),
    }
    desk.clusterkit("doctor")
    desk.clusterkit("init", "--yes", "--force")
    assert resumed() == []


def test_a_job_wakes_its_own_nodes_alone(desk: Desk, resumed: Callable[[], list[str]]) -> None:
    """Where one of them is unhealthy when it has started, another one takes its place."""
    adds = desk.write("adds.py", lab_scripts.ADDS)
    torchrun = ("--framework", "torchrun", *JOB[2:])
    with full_shared_memory(desk.lab, "n3"):
        done = desk.submit("--wait", "--requeue", "1", *torchrun, adds)
    assert done["state"] == "succeeded"
    assert "world size 2, sum 1\n" in desk.clusterkit("logs", done["job_id"]).stdout
    assert [node["node"] for node in done["nodes"]] == ["n4", "n5"]
    first = done["attempts"][0]["nodes"]
    assert {node["node"]: node["unfit"] for node in first}["n3"] == "HOST010 /dev/shm is full"
    assert resumed() == ["n3", "n4", "n5"]


def test_the_network_of_nodes_that_were_down_is_measured_in_the_job(
    desk: Desk, resumed: Callable[[], list[str]]
) -> None:
    """And a node that is badly connected is left out, as one that is unhealthy by itself."""
    slow = "tc class change dev eth0 classid 1:1 htb rate 20mbit quantum 6000"
    job = (*JOB[:-1], "3", "--requeue", "1", "--preflight", "full")
    with shaped(desk.lab, "100mbit", slow={}):
        desk.lab.run("n4", slow.split(), check=True)
        done = desk.submit("--wait", *job, "hello.py")
    assert done["state"] == "succeeded"
    assert [node["node"] for node in done["nodes"]] == ["n3", "n5", "n6"]
    unfit = {node["node"]: node["unfit"] or "" for node in done["attempts"][0]["nodes"]}
    assert unfit["n4"].startswith("NET003 bandwidth from n4 is low"), unfit
    assert resumed() == ["n3", "n4", "n5", "n6"]


def test_spares_are_nodes_of_the_job_and_wake_no_others(
    desk: Desk, resumed: Callable[[], list[str]]
) -> None:
    spare = ("--requeue", "1", "--spares", "1")
    with full_shared_memory(desk.lab, "n3"):
        asked = desk.clusterkit("submit", "--wait", "--json", *spare, *JOB, "hello.py")
    done = json.loads(asked.stdout)
    assert done["state"] == "succeeded"
    booting = r"pending: [0-2] of 3 nodes up, n\S+ boot since [\d:]+, given up after 60 s \(Resume"
    assert re.search(booting, asked.stderr), asked.stderr
    assert [node["node"] for node in done["nodes"]] == ["n4", "n5"]
    assert resumed() == ["n3", "n4", "n5"]


@pytest.fixture
def lacking(cloud_lab: Lab) -> Iterator[Callable[[str, str], None]]:
    """Give a function by which ResumeProgram fails for a node: by that reason, or in silence.

    Slurm gives up on a node that is silent after 15 s.
    """
    with configured(cloud_lab, "ResumeTimeout=60", "ResumeTimeout=15"):
        files = {node: cloud_lab.layout.power / f"{node}.lacks" for node in CLOUD}
        yield lambda node, reason: write_changed(files[node], reason)
        for file in files.values():
            file.unlink(missing_ok=True)
    states = ["sinfo", "--Node", "--noheader", "--format=%N %T", f"--nodes={','.join(CLOUD)}"]
    lines = cloud_lab.run("head", states).stdout.splitlines()
    # those alone: one that is being powered down would stay up
    down = {name for name, state in map(str.split, lines) if state.startswith("down")}
    for name in down:
        cloud_lab.run("head", ["scontrol", "update", f"nodename={name}", "state=resume"])


@pytest.mark.parametrize("again", [(), ("--requeue", "1")], ids=["once", "requeue"])
def test_nodes_that_cannot_be_had_are_told_and_are_no_attempt(
    desk: Desk,
    resumed: Callable[[], list[str]],
    lacking: Callable[[str, str], None],
    again: tuple[str, ...],
) -> None:
    """One that the cloud has no capacity for, and one that never boots; Slurm takes others."""
    lacking("n3", "")
    lacking("n4", CAPACITY)
    asked = desk.clusterkit("submit", "--wait", "--json", *again, *JOB, "hello.py")
    done = json.loads(asked.stdout)
    assert done["state"] == "succeeded", asked.stderr
    assert [node["node"] for node in done["nodes"]] == ["n5", "n6"]
    assert len(done["attempts"]) == 1
    assert f"n4 is down#, {CAPACITY}" in asked.stderr or f"n4 is down~, {CAPACITY}" in asked.stderr
    assert "n3 boot since" in asked.stderr or "n[3,5] boot since" in asked.stderr
    assert "given up after 15 s (ResumeTimeout)" in asked.stderr
    assert re.search(r"n(3|\[3-4\]) is down\S, ResumeTimeout reached", asked.stderr), asked.stderr
    assert resumed() == [*CLOUD]
    record = desk.lab.run("head", ["scontrol", "show", "job", done["job_id"]]).stdout
    assert f" Requeue={int(bool(again))} " in record, record


def noting_srun(desk: Desk, **more: str) -> dict[str, str]:
    """Return variables with which an srun comes first on PATH that notes its arguments."""
    folder = desk.folder / "bin"
    folder.mkdir(exist_ok=True)
    real = desk.lab.run("head", ["sh", "-c", "command -v srun"]).stdout.strip()
    (folder / "srun").write_text(SRUN.format(folder=folder, real=real))
    (folder / "srun").chmod(0o755)
    return {"PATH": f"{folder}:{desk.lab.env()['PATH']}", **more}


def test_no_step_has_more_nodes_than_the_job_wants(
    desk: Desk, resumed: Callable[[], list[str]]
) -> None:
    """A job of one node asks the two that are up one after the other."""
    words = ("--cluster", "mixed", "--preflight", "full", *JOB[:-1], "1", "hello.py")
    done = desk.submit(*words, env=noting_srun(desk))
    desk.clusterkit("cancel", done["job_id"])
    steps = (desk.folder / "bin" / "log").read_text().splitlines()
    assert len(steps) >= 2
    assert all("--nodes=1 " in step for step in steps)
    assert set(resumed()) <= {"n3"}  # the job may have got it


KILLED: dict[str, tuple[str, ...]] = {
    "preflight": ("preflight", "--cluster", "mixed"),
    "submit": ("submit", "--cluster", "mixed", *JOB, "hello.py"),
    "top": ("top", "--cluster", "mixed", "--via", "srun", "--interval", "1"),
    "bench": ("bench", "collectives", "--cluster", "gpu", "--nodes", "2", "--gpus-per-node", "1"),
    "stacks": ("diagnose", "--stacks"),
}


@pytest.mark.timeout(300 * max(2, STRIKES))
@pytest.mark.parametrize("verb", KILLED)
def test_a_killed_client_leaves_no_question(
    desk: Desk, resumed: Callable[[], list[str]], verb: str
) -> None:
    """Of submit and bench the job itself may stay, where it had been handed over before."""
    lab, words = desk.lab, KILLED[verb]
    if verb == "stacks":
        desk.write("sleep.py", "import time; time.sleep(600)\n")
        job = desk.submit("--cluster", "gpu", "--preflight", "off", *JOB, "sleep.py")["job_id"]
        wait_for_state(lab, "mixed", "n1", "n2")
        words = (*words, job)
    chance = random.Random(os.environ.get("CLUSTERKIT_FAULT_SEED"))
    try:
        first = [*KILLED].index(verb) * STRIKES
        for turn in range(STRIKES):
            way, asks = WAYS[(first + turn) % len(WAYS)], bool(turn % 3)
            delay_s = chance.uniform(0.0, 0.6 if asks else 2.0)
            asking = _kill(desk, words, way, delay_s, asks=asks)
            told = f"{verb} struck by {way} after {delay_s:.2f} s, {asking} srun"
            print(f"{told}: clear after {_await_nothing(lab, told):.1f} s")
    finally:
        mine = lab.run("head", ["squeue", "--noheader", "--format=%A"]).stdout.split()
        if mine:
            lab.run("head", ["scancel", *mine])
    assert set(resumed()) <= {"n3", "n4"}  # a job that was handed over may have got them


def _kill(desk: Desk, words: tuple[str, ...], way: str, delay_s: float, *, asks: bool) -> int:
    """Start a client and strike it; return how many srun it had then.

    The delay counts from its start, or from its first srun where `asks`.
    """
    argv = [sys.executable, "-m", "clusterkit", *words]
    environment = desk.environment(**noting_srun(desk, SLOW_S=str(SLOW_S)))
    before = {process.pid for process in desk.lab.processes("head")}
    with _started(desk, argv, environment, on_terminal=way == LOST) as (client, terminal):
        pids: list[int] = []
        while not pids and client.poll() is None:
            found = desk.lab.processes("head", f"-m clusterkit {words[0]}")
            pids = [p.pid for p in found if p.pid not in before and p.argv[0] == sys.executable]
        while asks and client.poll() is None and not desk.lab.processes("head", "(^|/)srun "):
            time.sleep(0.01)
        time.sleep(delay_s)
        asking = len(desk.lab.processes("head", r"(^|/)srun "))
        if way == LOST:
            os.close(terminal)
        elif way == CTRL_C:  # meets its whole process group
            with suppress(ProcessLookupError):
                os.killpg(client.pid, signal.SIGINT)
        else:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.Signals[way])
        client.communicate(timeout=240)
    return asking


@contextmanager
def _started(
    desk: Desk, argv: list[str], environment: dict[str, str], *, on_terminal: bool
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Give a client, and the other end of the terminal that controls it, which the caller closes.

    Without a terminal that is -1.
    """
    if not on_terminal:
        with desk.lab.popen("head", argv, cwd=desk.folder, env=environment) as client:
            yield client, -1
        return
    terminal, its = pty.openpty()
    client = desk.lab.popen(
        "head",
        ["setsid", "--ctty", *argv],
        cwd=desk.folder,
        env=environment,
        stdin=its,
        stdout=its,
        stderr=its,
    )
    os.close(its)
    with client:
        yield client, terminal


def _await_nothing(lab: Lab, told: str) -> float:
    """Wait until neither srun nor an allocation or step of a question is left; tell how long."""
    began = time.monotonic()
    while left := _left(lab):
        assert time.monotonic() < began + LEFT_S, f"{told}: {left}"
        time.sleep(0.2)
    return time.monotonic() - began


def _left(lab: Lab) -> list[str]:
    programs = lab.processes("head", r"(^|/)srun .*--job-name=clusterkit-")
    jobs = lab.run("head", ["squeue", "--noheader", "--format=%A %j %T"]).stdout
    steps = lab.run("head", ["squeue", "--steps", "--noheader", "--format=%i %j"]).stdout
    ours = [line for line in (jobs + steps).splitlines() if " clusterkit-" in line]
    return [" ".join(process.argv)[:200] for process in programs] + ours
