"""Faults that jobs on the practice cluster have to survive, or to end by and say so.

Each is a test (tests/test_lab_faults.py), and a row of docs/reliability.md: `make faults` strikes
with all of them and writes down what the user was told, and after how long.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from clusterkit import files
from clusterkit.runfolder import RunFolder
from tests.lab import Lab
from tests.lab_jobs import Cluster, await_true, started

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reliability.md"
_START, _END = "<!-- make faults -->", "<!-- end -->"
SLEEP = "echo on; sleep 300"
SHORT = "echo on; sleep 12"

Strike = Callable[[Cluster, RunFolder], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens to a running job, and how that has to end."""

    words: str
    strike: Strike
    ends: dict[str, str]
    """Kind of cluster -> a pattern of `STATE` or `STATE: REASON`."""
    body: str = SLEEP


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What came of a fault."""

    end: str
    seconds: float
    """From the fault to the answer of `clusterkit wait`."""


def suffer(cluster: Cluster, fault: Fault) -> Told:
    """Start a job, strike, and return what `wait` says.

    No process of the job is left then, and where nodes keep slots, they are free.
    """
    run = cluster.submit(fault.body)
    await_true(started(run))
    began = time.monotonic()
    fault.strike(cluster, run)
    cluster.ck("wait", run.run_id)
    seconds = time.monotonic() - began
    document = json.loads(cluster.ck("status", run.run_id, "--json")[1])
    await_true(lambda: not cluster.left(run))
    if cluster.kind == "ssh":
        cluster.ck("wait", cluster.submit("true").run_id)
    reason = document["reason"]
    end = document["state"] + (f": {reason}" if reason else "")
    return Told(end=end, seconds=seconds)


def kill(lab: Lab, host: str, pattern: str) -> None:
    """Kill the first process of a host that matches, with signal 9."""
    os.kill(lab.processes(host, pattern)[0].pid, signal.SIGKILL)


@contextmanager
def cut_off(lab: Lab, host: str) -> Iterator[None]:
    """Take the link of a host down."""
    lab.run(host, ["ip", "link", "set", "eth0", "down"], check=True)
    try:
        yield
    finally:
        lab.run(host, ["ip", "link", "set", "eth0", "up"], check=True)


def _kill_command(cluster: Cluster, run: RunFolder) -> None:
    kill(cluster.lab, "n2", r"^sleep 300")
    del run


def _kill_worker(cluster: Cluster, run: RunFolder) -> None:
    kill(cluster.lab, "n2", rf"clusterkit\.worker .*{run.run_id}")


def _kill_keeper(cluster: Cluster, run: RunFolder) -> None:
    kill(cluster.lab, "n3", rf"ssh_keeper .*{run.run_id}")


def _kill_client(cluster: Cluster, run: RunFolder) -> None:
    argv = [sys.executable, "-m", "clusterkit", "logs", "-f", run.run_id]
    with cluster.lab.popen("head", argv, env=cluster.environment, cwd=Path.cwd()) as client:
        time.sleep(2)
        os.killpg(client.pid, signal.SIGKILL)


def _kill_sshd(cluster: Cluster, run: RunFolder) -> None:
    del run
    kill(cluster.lab, "n2", r"^sshd: .*\[listener\]")
    time.sleep(5)
    cluster.lab.up()


def _restart_controller(cluster: Cluster, run: RunFolder) -> None:
    argv = [sys.executable, "-m", "clusterkit", "wait", run.run_id]
    with cluster.lab.popen("head", argv, env=cluster.environment, cwd=Path.cwd()) as waiting:
        time.sleep(2)
        (controller,) = cluster.lab.processes("head", r"^slurmctld")
        # Without a last word it would forget what it did, and start the job a second time.
        os.kill(controller.pid, signal.SIGTERM)
        await_true(lambda: not cluster.lab.processes("head", r"^slurmctld"))
        time.sleep(3)
        cluster.lab.up()
        assert waiting.wait(60) == 0


def _short_outage(cluster: Cluster, run: RunFolder) -> None:
    del run
    with cut_off(cluster.lab, "n3"):
        time.sleep(5)


def _long_outage(cluster: Cluster, run: RunFolder) -> None:
    with cut_off(cluster.lab, "n3"):
        await_true(lambda: not cluster.left(run))


def _power(cluster: Cluster, run: RunFolder) -> None:
    cluster.lab.kill_host("n3")
    try:
        await_true(lambda: not cluster.left(run, nodes=("n1", "n2")), 90)
    finally:
        cluster.lab.up()


def _cancel(cluster: Cluster, run: RunFolder) -> None:
    cluster.ck("cancel", run.run_id)


FAULTS = {
    "command": Fault(
        words="the command of a node is killed (`kill -9`)",
        strike=_kill_command,
        ends=dict.fromkeys(("slurm", "ssh"), r"failed: n2 was ended by signal 9"),
    ),
    "worker": Fault(
        words="clusterkit's worker on a node is killed",
        strike=_kill_worker,
        ends={"slurm": r"failed(: .*)?", "ssh": r"failed: n2 was ended by signal 9"},
    ),
    "keeper": Fault(
        words="the keeper of a node is killed",
        strike=_kill_keeper,
        ends={"ssh": r"failed: (the keeper of )?n3 .*"},
    ),
    "client": Fault(
        words="the client is killed",
        strike=_kill_client,
        body=SHORT,
        ends=dict.fromkeys(("slurm", "ssh"), "succeeded"),
    ),
    "sshd": Fault(
        words="the SSH server of a node is killed, and started again",
        strike=_kill_sshd,
        body=SHORT,
        ends={"ssh": "succeeded"},
    ),
    "slurmctld": Fault(
        words="slurmctld is restarted in the middle of `wait`",
        strike=_restart_controller,
        body=SHORT,
        ends={"slurm": "succeeded"},
    ),
    "outage": Fault(
        words="the network of a node is gone for 5 s",
        strike=_short_outage,
        body=SHORT,
        ends=dict.fromkeys(("slurm", "ssh"), "succeeded"),
    ),
    "cut-off": Fault(
        words="the network of a node is gone for good",
        strike=_long_outage,
        ends={"ssh": "failed: n3 no longer answers"},
    ),
    "power": Fault(
        words="a node loses its power",
        strike=_power,
        ends={"ssh": "failed: n3 no longer answers"},
    ),
    "cancel": Fault(
        words="`clusterkit cancel`",
        strike=_cancel,
        ends=dict.fromkeys(("slurm", "ssh"), "cancelled"),
    ),
}
STRIKES = [(kind, name) for name, fault in FAULTS.items() for kind in fault.ends]


def main() -> None:
    """Strike with every fault, and write the table."""
    lab = Lab()
    lab.up()
    rows = []
    try:
        for kind, name in STRIKES:
            fault = FAULTS[name]
            with tempfile.TemporaryDirectory(dir="/tmp") as folder:
                told = suffer(Cluster(lab, Path(folder), kind), fault)
            assert re.fullmatch(fault.ends[kind], told.end), (kind, name, told)
            rows.append(f"| {fault.words} | {kind} | {told.end} | {told.seconds:.0f} s |")
            print(rows[-1], flush=True)
    finally:
        lab.down()
    head = ["| what happens to a running job | cluster | `clusterkit wait` says | after |"]
    table = "\n".join([*head, "|---|---|---|---|", *rows])
    before, rest = PAGE.read_text().split(_START)
    files.write_text(PAGE, f"{before}{_START}\n{table}\n{_END}{rest.split(_END)[1]}")


if __name__ == "__main__":
    main()
