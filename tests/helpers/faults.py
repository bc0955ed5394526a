"""Faults that jobs on the practice cluster have to survive, or to end by and say so.

Each is a test (tests/lab/test_faults.py), and a row of docs/reliability.md: `make faults` strikes
with all of them and writes down what the user was told, after how long, and when the next attempt
was under way; `python -m tests.helpers.faults restart power-again` only with some, and keeps the
other rows.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterkit.core import files
from clusterkit.executors.run.runfolder import RunFolder, read_submission
from tests.helpers.lab_jobs import Cluster, await_true, one_process, started
from tests.helpers.paths import ROOT
from tests.lab import Lab
from tests.lab.lab import UNSCALED, HostProcess

PAGE = ROOT / "docs" / "reliability.md"
_START, _END = "<!-- make faults -->", "<!-- end -->"
SLEEP = "echo on; sleep 300"
SHORT = "echo on; until [[ -e $CK_RESULTS/go ]]; do sleep 0.2; done; sleep 1"
"""Ends once the strike is over."""
_STEP = "touch $CK_RESULTS/again-$CK_NODE_RANK"
"""The first step of an attempt that follows."""
ONCE = f"echo on; ((CK_RESTART_COUNT)) && {_STEP} || sleep 300"
"""Ends well when it is started again, and not before."""
FILL = "echo on; sleep 1; ((CK_NODE_RANK != 1)) || cat /dev/zero >/dev/full || exit 1; sleep 300"
ECC = (
    f"echo on; ((CK_RESTART_COUNT)) && exec {_STEP}; "
    "until [[ -e $CK_RESULTS/go ]]; do sleep 0.2; done; "
    "((CK_NODE_RANK == 1)) || sleep 300; "
    "echo 'RuntimeError: CUDA error: uncorrectable ECC error encountered'; exit 1"
)
STEPS = (
    f"echo on; ((CK_RESTART_COUNT)) && exec {_STEP}; "
    "for ((k = 0; ; k++)); do touch $CK_RESULTS/$k-$CK_NODE_RANK; "
    "until [[ -e $CK_RESULTS/$k-0 && -e $CK_RESULTS/$k-1 && -e $CK_RESULTS/$k-2 ]]; do sleep 0.1; "
    "done; ((CK_NODE_RANK)) || echo step $k; sleep 0.3; done"
)
"""Each node waits in each step for all others, and takes some processor time for that."""
WHOLE = {"cpus-per-task": "5"}
"""So many that no two jobs share a node."""

Strike = Callable[[Cluster, RunFolder], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens to a running job, and how that has to end."""

    words: str
    strike: Strike
    ends: dict[str, str]
    """Kind of cluster -> a pattern of `STATE` or `STATE: REASON`."""
    body: str = SLEEP
    options: dict[str, Any] = field(default_factory=dict)
    """Of the job, as `Cluster.submit` takes them."""
    within_s: float = 60
    """What passes at most until the user is told."""
    unscaled: tuple[str, ...] = ()
    """Where the times of normal use are tested, and not those that tests shorten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What came of a fault."""

    end: str
    seconds: float
    """From the fault to the answer of `clusterkit wait`."""
    again_s: float | None
    """From the fault until the last node has taken the first step of the next attempt."""


def suffer(cluster: Cluster, fault: Fault) -> Told:
    """Start a job, strike, and return what `wait` says.

    No process of the job is left then, and where nodes keep slots, they are free.
    """
    if cluster.kind in fault.unscaled:
        cluster.environment |= UNSCALED
    run = cluster.submit(fault.body, **fault.options)
    await_true(started(run, nodes=fault.options.get("nodes", 3)))
    began, at = time.monotonic(), time.time()
    fault.strike(cluster, run)
    _let_end(run)
    document = cluster.over(run, timeout_s=180)
    seconds = time.monotonic() - began
    steps = [step.stat().st_mtime for step in run.results.glob("again-*")]
    await_true(lambda: not cluster.left(run))
    if cluster.kind == "ssh":
        cluster.ck("wait", cluster.submit("true").run_id)
    reason = document["reason"]
    end = document["state"] + (f": {reason}" if reason else "")
    return Told(end=end, seconds=seconds, again_s=max(steps) - at if steps else None)


def _let_end(run: RunFolder) -> None:
    """Let the commands of a job end that is `SHORT`."""
    (run.results / "go").touch()


def kill(lab: Lab, host: str, pattern: str) -> None:
    """Kill the first process of a host that matches, with signal 9, once there is one."""
    found: list[HostProcess] = []

    def there() -> bool:
        found[:] = lab.processes(host, pattern)
        return bool(found)

    await_true(there)
    os.kill(found[0].pid, signal.SIGKILL)


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
    kill(cluster.lab, "n2", rf"clusterkit\.executors\.node .*{run.run_id}")


def _kill_agent(cluster: Cluster, run: RunFolder) -> None:
    kill(cluster.lab, "n3", rf"ssh[.]agent .*{run.run_id}")


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
        controller = one_process(cluster.lab, "head", r"^slurmctld")
        # Without a last word it would forget what it did, and start the job a second time.
        os.kill(controller.pid, signal.SIGTERM)
        await_true(lambda: not cluster.lab.processes("head", r"^slurmctld"))
        time.sleep(3)
        cluster.lab.up()
        _let_end(run)
        assert waiting.wait(60) == 0


def _short_outage(cluster: Cluster, run: RunFolder) -> None:
    del run
    with cut_off(cluster.lab, "n3"):
        time.sleep(5)
    time.sleep(6)  # in which a node that is not heard again would be missed


def _long_outage(cluster: Cluster, run: RunFolder) -> None:
    with cut_off(cluster.lab, "n3"):
        cluster.ck("wait", run.run_id, timeout_s=90)
        await_true(lambda: not cluster.left(run))
    _start_anew(cluster.lab, "n3")


def _start_anew(lab: Lab, *nodes: str) -> None:
    """Have Slurm use nodes again that were cut off; of itself it does after a minute and more.

    Also where the job was one over ssh: the next may be Slurm's.
    """
    for node in nodes:
        lab.call_down(node)
        kill(lab, node, r"slurmd\b")
    lab.up()


@contextmanager
def _without_power(cluster: Cluster, run: RunFolder, node: str = "n3") -> Iterator[None]:
    cluster.lab.kill_host(node)
    try:
        yield
        others = [name for name in cluster.lab.nodes if name != node]
        await_true(lambda: not cluster.left(run, nodes=others), 90)
    finally:
        cluster.lab.up()


def _head_outage(cluster: Cluster, run: RunFolder) -> None:
    with cut_off(cluster.lab, "n1"):
        cluster.ck("wait", run.run_id, timeout_s=90)
    await_true(lambda: not cluster.left(run), 90)
    _start_anew(cluster.lab, "n1")


def _controller_outage(cluster: Cluster, run: RunFolder) -> None:
    """Slurm takes all nodes for dead after SlurmdTimeout, though they run on.

    It ends what runs there once they register, of themselves up to 100 s after the link is back.
    """
    began = time.monotonic()
    with cut_off(cluster.lab, "head"):
        cluster.ck("wait", run.run_id, timeout_s=90)
        time.sleep(max(0.0, began + 45 - time.monotonic()))
    _start_anew(cluster.lab, *cluster.lab.nodes)
    await_true(lambda: not cluster.left(run), 90)


def _power(cluster: Cluster, run: RunFolder) -> None:
    with _without_power(cluster, run):
        cluster.ck("wait", run.run_id, timeout_s=90)


def _power_cycle(cluster: Cluster, run: RunFolder) -> None:
    with _without_power(cluster, run):
        pass


def _power_of_the_second(cluster: Cluster, run: RunFolder) -> None:
    with _without_power(cluster, run, "n2"):
        cluster.ck("wait", run.run_id, timeout_s=90)


def _cancel(cluster: Cluster, run: RunFolder) -> None:
    cluster.ck("cancel", run.run_id)


def _kill_slurmd(cluster: Cluster, run: RunFolder) -> None:
    del run
    kill(cluster.lab, "n2", r"slurmd\b")
    time.sleep(3)
    cluster.lab.up()


def _wait_for_the_limit(cluster: Cluster, run: RunFolder) -> None:
    del cluster, run


def _requeue_by_hand(cluster: Cluster, run: RunFolder) -> None:
    submission = read_submission(run)
    assert submission is not None
    cluster.lab.run("head", ["scontrol", "requeue", str(submission.job_id)], check=True)


def _preempt(cluster: Cluster, run: RunFolder) -> None:
    del run
    urgent = cluster.submit("sleep 3", partition="high", directives=WHOLE)
    cluster.ck("wait", urgent.run_id)


def _tell_agent_to_end(cluster: Cluster, run: RunFolder) -> None:
    agent = one_process(cluster.lab, "n2", rf"ssh[.]agent .*{run.run_id}")
    os.kill(agent.pid, signal.SIGTERM)


def _stop_rank(cluster: Cluster, run: RunFolder) -> None:
    await_true(lambda: "step 5" in run.log(0).read_text())
    command = one_process(cluster.lab, "n2", r"^bash -c echo on.*step")
    os.kill(command.pid, signal.SIGSTOP)


FAULTS = {
    "command": Fault(
        words="the command of a node is killed (`kill -9`)",
        strike=_kill_command,
        ends=dict.fromkeys(("slurm", "ssh"), r"failed: n2 was ended by signal 9"),
    ),
    "worker": Fault(
        words="clusterkit's worker on a node is killed",
        strike=_kill_worker,
        ends={
            "slurm": r"failed: n2 has left no word: .*",
            "ssh": r"failed: n2 has lost clusterkit's worker \(signal 9\)",
        },
    ),
    "agent": Fault(
        words="the node agent of a node is killed",
        strike=_kill_agent,
        ends={"ssh": r"failed: (the node agent of )?n3 .*"},
    ),
    "agent-again": Fault(
        words="the node agent of a node is killed, with `--requeue 1`",
        strike=_kill_agent,
        body=ONCE,
        options={"requeue": 1},
        ends={"ssh": "succeeded"},
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
        unscaled=("slurm", "ssh"),
    ),
    "cut-off": Fault(
        words="the network of a node is gone for good",
        strike=_long_outage,
        ends=dict.fromkeys(("slurm", "ssh"), "failed: n3 no longer answers"),
        unscaled=("ssh",),
    ),
    "head-cut-off": Fault(
        words="the network of the first node is gone for good",
        strike=_head_outage,
        ends=dict.fromkeys(("slurm", "ssh"), "failed: n1 (has lost its network|no longer answers)"),
        within_s=150,
    ),
    "controller-cut-off": Fault(
        words="the network of Slurm's controller, and of the client, is gone for 45 s",
        strike=_controller_outage,
        ends={
            "slurm": r"failed: a node failed: n\[1-3\] is down\S*, Not responding, all at once: "
            r"perhaps the controller's own link was cut \(Slurm's reason: NodeDown\)"
        },
        within_s=120,
    ),
    "power": Fault(
        words="a node loses its power",
        strike=_power,
        ends=dict.fromkeys(("slurm", "ssh"), "failed: n3 no longer answers"),
        unscaled=("slurm",),
    ),
    "slurmd": Fault(
        words="slurmd of a node is killed, and started again",
        strike=_kill_slurmd,
        body=SHORT,
        ends={"slurm": "succeeded"},
    ),
    "disk": Fault(
        words="the disk on which a rank writes is full",
        strike=_wait_for_the_limit,
        body=FILL,
        ends=dict.fromkeys(("slurm", "ssh"), r"failed: n2 exited with 1"),
    ),
    "cancel": Fault(
        words="`clusterkit cancel`",
        strike=_cancel,
        ends=dict.fromkeys(("slurm", "ssh"), "cancelled"),
    ),
    "hang": Fault(
        words="a rank is stopped (`SIGSTOP`), with `--on-hang cancel --hang-after 10`",
        strike=_stop_rank,
        body=STEPS,
        options={"on_hang": "cancel", "hang_after": 10},
        ends=dict.fromkeys(
            ("slurm", "ssh"), r"failed: it hangs: no step for [1-9]\d+ s, after step \d+"
        ),
        unscaled=("slurm", "ssh"),
    ),
    "hang-again": Fault(
        words="a rank is stopped (`SIGSTOP`), with `--on-hang restart --hang-after 10 --requeue 1`",
        strike=_stop_rank,
        body=STEPS,
        options={"on_hang": "restart", "hang_after": 10, "requeue": 1},
        ends=dict.fromkeys(("slurm", "ssh"), "succeeded"),
        within_s=120,
    ),
    "limit": Fault(
        words="the time limit",
        strike=_wait_for_the_limit,
        options={"time": "0:12"},
        ends={"ssh": "timeout"},
    ),
    "limit-again": Fault(
        words="the time limit, with `--requeue 1`",
        strike=_wait_for_the_limit,
        body=ONCE,
        options={"time": "0:12", "requeue": 1},
        ends={"ssh": "succeeded"},
    ),
    "limit-again-slurm": Fault(
        words="the time limit (1 min), with `--requeue 1`",
        strike=_wait_for_the_limit,
        body=ONCE,
        options={"time": "1", "requeue": 1},
        ends={"slurm": "succeeded"},
        within_s=120,
    ),
    "power-again": Fault(
        words="a node loses its power and starts again, with `--requeue 1`",
        strike=_power_cycle,
        body=ONCE,
        options={"requeue": 1},
        ends=dict.fromkeys(("slurm", "ssh"), "succeeded"),
        within_s=180,
    ),
    "gpu-again": Fault(
        words="a rank fails of an ECC error of its GPU, with `--requeue 1 --spares 1`",
        strike=_wait_for_the_limit,
        body=ECC,
        options={"nodes": 2, "requeue": 1, "spares": 1},
        ends=dict.fromkeys(("slurm", "ssh"), "succeeded"),
        within_s=120,
    ),
    "restart": Fault(
        words="a rank is killed (`kill -9`), with `--restarts 1 --requeue-on failure`",
        strike=_kill_command,
        body=ONCE,
        options={"restarts": 1, "requeue_on": "failure"},
        ends=dict.fromkeys(("slurm", "ssh"), "succeeded"),
        within_s=30,
        unscaled=("slurm", "ssh"),
    ),
    "restart-power": Fault(
        words="a node loses its power, with `--restarts 1 --spares 1`",
        strike=_power_of_the_second,
        body=ONCE,
        options={"nodes": 2, "restarts": 1, "spares": 1},
        ends=dict.fromkeys(("slurm", "ssh"), "succeeded"),
        within_s=45,
        unscaled=("slurm", "ssh"),
    ),
    "restart-head": Fault(
        words="the network of the first node is gone for good, with `--restarts 1 --spares 1`",
        strike=_head_outage,
        options={"nodes": 2, "restarts": 1, "spares": 1, "time": "2"},
        ends={"slurm": r"failed: (n1 .*|n1 and n2 lost each other: .*)"},
        within_s=150,
    ),
    "told": Fault(
        words="a node is told to end (a shutdown, an administrator), with `--requeue 1`",
        strike=_tell_agent_to_end,
        body=ONCE,
        options={"requeue": 1},
        ends={"ssh": "succeeded"},
    ),
    "preempted": Fault(
        words="another job takes the nodes (preemption), with `--requeue 1`",
        strike=_preempt,
        body=ONCE,
        options={"partition": "low", "requeue": 1, "directives": WHOLE},
        ends={"slurm": "succeeded"},
        within_s=120,
    ),
    "taken": Fault(
        words="another job takes the nodes (preemption)",
        strike=_preempt,
        options={"partition": "low", "directives": WHOLE},
        ends={"slurm": "preempted"},
    ),
    "by-hand": Fault(
        words="`scontrol requeue` by somebody, with `--requeue 1`",
        strike=_requeue_by_hand,
        body=ONCE,
        options={"requeue": 1},
        ends={"slurm": "succeeded"},
        within_s=120,
    ),
}
STRIKES = [(kind, name) for name, fault in FAULTS.items() for kind in fault.ends]
ELSEWHERE = {
    "ssh-command": "test_ssh_jobs.py::test_a_killed_command_is_named",
    "slurm-client": "test_faults.py::test_what_the_user_is_told[ssh-client]",
    "ssh-disk": "test_faults.py::test_what_the_user_is_told[slurm-disk]",
    "slurm-cancel": "test_worker.py::test_cancel_running_then_pending",
    "ssh-cancel": "test_ssh_jobs.py::test_what_hides_from_its_group_is_ended",
    "ssh-limit": "test_ssh_jobs.py::test_at_the_time_limit_scripts_are_told_and_ended",
    **dict.fromkeys(
        ("slurm-gpu-again", "ssh-gpu-again"),
        "test_again.py::test_a_node_that_its_output_blames_is_replaced_by_a_spare",
    ),
    "ssh-told": "test_again.py::test_a_node_that_is_told_to_end_ends_the_attempt_and_not_the_job",
}
"""Strikes whose mechanism another test strikes as well; `make faults` has them all the same."""


def main(names: Sequence[str]) -> None:
    """Strike with every fault, or with some, and write the table.

    Raises:
        SystemExit: there is no such fault; or one ended otherwise than it has to.
    """
    if unknown := set(names) - FAULTS.keys():
        sys.exit(f"no fault {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}")
    before, rest = PAGE.read_text().split(_START)
    old, after = rest.split(_END)
    rows = {tuple(line.split(" | ")[:2]): line for line in old.strip().splitlines()[2:]}
    loads, wrong = list[float](), list[str]()
    lab = Lab()
    lab.up()
    try:
        for kind, name in STRIKES:
            fault = FAULTS[name]
            if names and name not in names:
                continue
            loads.append(os.getloadavg()[0])
            with tempfile.TemporaryDirectory(dir="/tmp") as folder:
                told = suffer(Cluster(lab, Path(folder), kind), fault)
            if not re.fullmatch(fault.ends[kind], told.end):
                wrong.append(f"{name} on {kind}: {told}")
                continue
            again = "" if told.again_s is None else f"{told.again_s:.0f} s"
            row = f"| {fault.words} | {kind} | {told.end} | {again} | {told.seconds:.0f} s |"
            rows[f"| {fault.words}", kind] = row
            print(row, f"load {loads[-1]:.1f}", flush=True)
    finally:
        lab.down()
        columns = "what happens to a running job | cluster | `clusterkit wait` says"
        head = f"| {columns} | continues after | ends after |"
        ordered = [rows.get((f"| {FAULTS[name].words}", kind), "") for kind, name in STRIKES]
        table = "\n".join([head, "|---|---|---|---|---|", *filter(None, ordered)])
        files.write_text(PAGE, f"{before}{_START}\n{table}\n{_END}{after}")
    print(f"load average {min(loads):.1f} to {max(loads):.1f} on {os.cpu_count()} cores")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main(sys.argv[1:])
