"""The callable that submitit runs once per node, and what it starts."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from clusterkit.core import files, ownership, processes, reading
from clusterkit.core.errors import UserError
from clusterkit.core.hosts import hostlist
from clusterkit.core.model import NodeResult, OnHang, RequeueOn, Runtime
from clusterkit.core.timing import scaled
from clusterkit.executors.node import notices
from clusterkit.executors.node.coordinator import in_touch
from clusterkit.executors.node.driver import gpu_driver
from clusterkit.executors.node.ending import tell_on_slurm
from clusterkit.executors.node.failure import VARIABLE, explain
from clusterkit.executors.node.hang import HangWatch
from clusterkit.executors.node.health import drain, why_broken, why_unhealthy, with_cause
from clusterkit.executors.node.identity import Identity
from clusterkit.executors.node.network import network_fault
from clusterkit.executors.node.samples import sampled
from clusterkit.executors.node.supervisor import BLOCKED, sweep
from clusterkit.executors.node.watch import (
    NOTICES,
    TERMINATION,
    Timeouts,
    Watch,
    batch_decides,
    blocked,
    may_requeue,
    requeue,
    say,
    take_over,
)
from clusterkit.executors.run import attempts, node_results, placement, runfolder
from clusterkit.executors.run.runfolder import RunFolder, Submission

ROUNDS = "CK_ROUNDS"
"""Where the launcher of an elastic job writes down who trains together, from round to round."""

_CAUSE_S = scaled(16.0, 8.0)
"""A little longer than a node agent takes to miss the first node (executors/node/peers.py)."""
_LOOKS_S = 50.0
"""More than a node takes to be told of a failure, to end its command, and to look at itself."""


@dataclass(frozen=True, slots=True)
class LaunchTask:
    """The callable that submitit runs on each node of the job in `run_folder`."""

    run_folder: str
    timeouts: Timeouts = field(default_factory=Timeouts)

    def __call__(self) -> NodeResult:
        """Return how the command of this node ended; run it unless the worker just has."""
        run = RunFolder(Path(self.run_folder))
        me = Identity.from_environment(os.environ)
        return node_results.read_result(run, me.rank, me.attempt) or run_node(
            run, me, self.timeouts
        )


def run_node(run: RunFolder, me: Identity, timeouts: Timeouts) -> NodeResult:
    """Run the command of this node to its end; write and return how it ended."""
    marker, agent = run.marker(me.rank), os.getppid()
    since = reading.size_of(run.log(me.rank))
    with blocked(BLOCKED):
        _ignore_notices()
        processes.adopt_orphans()
        sweep(marker)  # what an earlier attempt may have left on this node
        started_at = time.time()
        result = NodeResult(
            node_rank=me.rank,
            node=me.name,
            exit_code=UNHEALTHY,
            started_at=started_at,
            ended_at=started_at,
            driver=gpu_driver(),
        )
        result = _result_of(run, me, timeouts, result, since=since)
    ended_by_others = result.reason in node_results.TOLD_TO_END
    result = replace(
        result,
        ended_at=time.time(),
        lost=_why_lost(result, agent),
        among=hostlist.fold(me.among) if ended_by_others else None,
    )
    submission = runfolder.read_submission(run)
    min_nodes = submission.least if submission is not None else None
    if min_nodes is not None and result.exit_code and result.reason is None:
        _await_the_cause(run, me)
    looks = submission is not None and _failed(result) and _may_start_again(run, submission, me)
    if submission is not None and looks:
        if result.reason is None:
            # Before it looks: the look of a broken node takes longest, and others fail meanwhile.
            with suppress(UserError):
                node_results.note_failure(run, result, attempt=me.attempt, n_nodes=me.of)
        result = _explained(run, me, submission, result, since=since)
    try:
        node_results.write_result(
            run, result, attempt=me.attempt, n_nodes=me.of, min_nodes=min_nodes
        )
    except UserError as error:
        node_results.note_unwritten(run, result, error, attempt=me.attempt, of=me.of)
        # The exit code may now be the only thing that can tell how the command ended.
        say(f"clusterkit: {error}")
        raise SystemExit(result.exit_code) from error
    if submission is not None:
        _tell(run, me, submission, result, looks=looks)
    if "SLURM_JOB_ID" in os.environ:
        take_over(run, me)
    if ended_by_others:
        _linger(run, timeouts.linger_s)
    return result


def _ignore_notices() -> None:
    """Have the command begin with notices ignored; a handler that it sets later still gets them.

    Schedulers send them to every process of a step, and whoever has no handler would die, bash as
    it starts as well. This process fetches them all the same; one that waits for it is kept.
    """
    waiting = NOTICES & signal.sigpending()
    for notice in NOTICES:
        signal.signal(notice, signal.SIG_IGN)  # which also forgets those that wait
    for notice in waiting:
        os.kill(os.getpid(), notice)


def _result_of(
    run: RunFolder, me: Identity, timeouts: Timeouts, unfit: NodeResult, *, since: int
) -> NodeResult:
    """Return how the command of this node ended, or why it was not begun."""
    try:
        why = None
        if not run.cancelled.exists():
            why = why_unhealthy(run, me) or network_fault(run, me)
        if why is not None:
            return replace(unfit, unfit=why)
        result = _run_command(run, me, timeouts, unfit, since=since)
    except UserError as error:
        unwritten = files.why_no_room(error)
        if unwritten is None:
            raise
        say(f"clusterkit: {error}")
        never = replace(unfit, exit_code=UNWRITABLE, message=node_results.UNBEGUN)
        return replace(never, unwritten=unwritten)
    if result.exit_code and result.reason is None:
        return replace(result, unwritten=files.refuses_data(run.path))
    return result


def _failed(result: NodeResult) -> bool:
    """Tell whether the command failed, or was ended because that of another node did."""
    begun = result.unfit is None and result.lost is None and result.message != node_results.UNBEGUN
    return bool(begun and result.exit_code and result.reason in {None, "peer"})


def _may_start_again(run: RunFolder, submission: Submission, me: Identity) -> bool:
    """Tell whether another attempt may follow one that fails: mostly on other nodes."""
    only_here = submission.kind.shares_machine and submission.requeue_on is RequeueOn.HARDWARE
    if only_here or submission.least is not None:
        return False
    return attempts.may_follow(submission, me.attempt) and not runfolder.is_cancelled(run)


def _explained(
    run: RunFolder, me: Identity, submission: Submission, result: NodeResult, *, since: int
) -> NodeResult:
    """Add a fault of this node, but of the local machine; where its checks find none, its output's.

    Nobody can replace the local machine.
    """
    alone = submission.kind.shares_machine
    fault = None if alone else why_broken(run, me)
    if fault is not None:
        return replace(result, fault=fault)
    found = with_cause(run, me, result, since=since, shared=submission.once and me.of > 1)
    return replace(found, fault=None) if alone else found


def _tell(
    run: RunFolder, me: Identity, submission: Submission, result: NodeResult, *, looks: bool
) -> None:
    """Tell the site, Slurm and whoever wants to know how this node has ended."""
    if result.fault and not result.rule:
        _take_out(run, me, submission, result)
    if may_requeue(run, submission, me) and not batch_decides(run):
        _give_back(run, me, submission, result)
    if submission.kind.scheduled:
        if looks and result.found is None:
            # srun ends the others with the first that fails, and Slurm kills them after KillWait
            # (30 s, at some sites 10): a broken one takes long to look at itself.
            _await_results(run, me, submission, _LOOKS_S, until=TERMINATION)
        tell_on_slurm(run, me, submission, result)


def _take_out(run: RunFolder, me: Identity, submission: Submission, result: NodeResult) -> None:
    """Run the command of the site where a check found this node's hardware broken.

    What the output alone says is the script's, and takes no node from others. The result is there
    before: the command may end the node.
    """
    before = (one for one in node_results.read_attempts(run) if one.attempt < me.attempt)
    known = any(node.node == me.name and node.fault for one in before for node in one.nodes)
    if known or not attempts.may_follow(submission, me.attempt) or runfolder.is_cancelled(run):
        return
    drained = drain(run, me, result.fault or "")
    if drained is not None:
        with suppress(UserError):
            told = replace(result, drained=drained)
            node_results.replace_result(run, told, attempt=me.attempt, n_nodes=me.of)


def _give_back(run: RunFolder, me: Identity, submission: Submission, result: NodeResult) -> None:
    """Ask Slurm for another attempt, where this node is to blame for the end of this one.

    So is the first to fail, where any failure is a reason.
    """
    why = node_results.in_a_line(result.found or "")
    why = f"{me.name} is unhealthy: {why}" if why else ""
    if not why and result.hung is not None and submission.on_hang is OnHang.RESTART:
        why = result.hung
    if not why and submission.requeue_on is RequeueOn.FAILURE and _failed(result):
        first = node_results.first_failure(run, me.attempt)
        mine = first is not None and first.node_rank == me.rank and submission.least is None
        why = node_results.failure_text(result) if mine else ""
    if why and not _is_in_vain(run, me, submission, result) and not _is_cancelled(run, me):
        requeue(run, me, why)


def _is_in_vain(run: RunFolder, me: Identity, submission: Submission, result: NodeResult) -> bool:
    """Tell whether the attempt before failed just so, unless the checks of this node blame it.

    The others are waited for: one of them may tell which step it was, or be the one to blame.
    """
    blamed = result.found is not None
    if blamed and (result.rule is None or not me.attempt):
        return False
    _await_results(run, me, submission, _CAUSE_S)
    return node_results.why_in_vain(run, me.attempt) is not None


def _await_results(
    run: RunFolder,
    me: Identity,
    submission: Submission,
    seconds: float,
    *,
    until: frozenset[signal.Signals] = frozenset(),
) -> None:
    """Wait until all nodes have ended, the job is over or given back, or a signal has come."""
    n_nodes = 1 if submission.once else me.of
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and until.isdisjoint(signal.sigpending()):
        over = runfolder.is_cancelled(run) or run.requeued(me.attempt).exists()
        if over or node_results.count_ended(run, me.attempt) >= n_nodes:
            return
        time.sleep(0.5)


def _is_cancelled(run: RunFolder, me: Identity) -> bool:
    """Tell whether the job was cancelled while this node looked at itself; Slurm would revive it.

    SIGTERM comes of `scancel`, but as well of srun once another node has ended.
    """
    if runfolder.is_cancelled(run):
        return True
    failed = {r.node_rank for r in node_results.read_results(run, me.attempt).nodes if r.exit_code}
    return failed <= {me.rank} and not TERMINATION.isdisjoint(signal.sigpending())


def _why_lost(ending: NodeResult, agent: int) -> str | None:
    """Tell a command that was killed because the process `node agent` was, which kept this node.

    A watchdog of that process kills everything that is left of the job, but not the worker.
    """
    killed = ending.exit_code == 128 + signal.SIGKILL and ending.reason is None
    return "has lost the process that kept it" if killed and os.getppid() != agent else None


def _await_the_cause(run: RunFolder, me: Identity) -> None:
    """Let the first node be blamed before this one, where losing it broke the command here.

    Over ssh the node agent of this node notices that; elsewhere nobody does.
    """
    deadline = time.monotonic() + _CAUSE_S
    while me.rank and run.agents.exists() and time.monotonic() < deadline:
        head = node_results.read_result(run, 0, me.attempt)
        if head or run.cancelled.exists() or node_results.first_failure(run, me.attempt):
            return
        time.sleep(0.5)


def _run_command(
    run: RunFolder, me: Identity, timeouts: Timeouts, result: NodeResult, *, since: int
) -> NodeResult:
    """Run the command of this node to its end; return `result` with how it ended."""
    if run.cancelled.exists():
        # Cancelled before anyone knew the id of the job, and so by this file alone.
        return replace(result, exit_code=128 + signal.SIGTERM, reason="cancelled")
    submission = runfolder.read_submission(run)
    if submission is not None and node_results.ended_well(run, submission, me.attempt - 1):
        # Slurm gives a job back whose nodes it did not reach for a while, though they worked on.
        say(f"clusterkit: attempt {me.attempt} has ended well on all nodes: nothing is left to do")
        return replace(result, exit_code=0)
    marker = run.marker(me.rank)
    with processes.guarded(marker):
        spared = processes.descendants(os.getpid())
        with in_touch(run, me), sampled(run, me):
            array = submission.array if submission is not None else None
            pid = _start(run, me, marker, array)
            asks = submission is not None and submission.notices and submission.requeue > 0
            heeds_cloud = asks and notices.begin(run, me)
            hang_watch = HangWatch(run, me, pid, since=since)
            hang_watch.begin()
            watch = Watch(
                timeouts=timeouts,
                run=run,
                me=me,
                pid=pid,
                spared=spared,
                heeds_cloud=heeds_cloud,
                hung=lambda: hang_watch.to_end,
            )
            exit_code, reason = watch.until_end()
            hang_watch.end()
    if watch.hung is not None and reason is None:
        return replace(result, exit_code=exit_code, hung=watch.hung, step=hang_watch.step)
    ended = replace(result, exit_code=exit_code, reason=reason, noticed=watch.passed_on)
    return explain(run, me, ended, since=since)


def _linger(run: RunFolder, seconds: float) -> None:
    """Stay until Slurm kills this process, where the job is to be started again.

    A job that is being preempted and ends by itself within the grace time counts as failed, and
    is not requeued; only one that has to be killed is.
    """
    submission = runfolder.read_submission(run)
    if submission is None or not submission.requeue or "SLURM_JOB_ID" not in os.environ:
        return
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not run.cancelled.exists():
        time.sleep(1.0)


def _own_script(run: RunFolder) -> str:
    """Return the name by which bash finds the script of the node, judged as it is opened.

    Where others can put another folder in the place of the run folder, that is the open file:
    its path may lead elsewhere by the time bash opens it.

    Raises:
        UserError: somebody else can write it.
    """
    try:
        with ownership.open_own(run.script, use="run it", hint="submit it again") as descriptor:
            if ownership.is_replaceable(run.path):
                kept = os.dup(descriptor)
                os.set_inheritable(kept, True)
                return f"/dev/fd/{kept}"
    except FileNotFoundError:
        pass  # bash says so in the log
    return str(run.script)


def _start(run: RunFolder, me: Identity, marker: str, array: str | None) -> int:
    environment = {
        **os.environ,
        **runfolder.read_secrets(run),
        processes.MARKER: marker,
        Runtime.RESULTS.name: str(run.results),
        Runtime.RUN.name: run.run_id,
        **({Runtime.ARRAY.name: array} if array else {}),
        VARIABLE: str(run.rank_failure(me.attempt)),
        ROUNDS: str(run.rounds(me.attempt)),
    }
    files.create_folder(run.results)
    if me.rank == 0:
        placement.note(run, me.attempt, me.among)
    log = files.open_for_append(run.log(me.rank))
    try:
        script = _own_script(run)
        if me.attempt:
            now = datetime.now(tz=UTC).astimezone().isoformat(timespec="seconds")
            os.write(log, f"--- clusterkit: restart {me.attempt} on {me.name}, {now}\n".encode())
        return os.posix_spawnp(
            "bash",
            ["bash", script],
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, log, 1),
                (os.POSIX_SPAWN_DUP2, log, 2),
            ],
            setsid=True,
            setsigmask=(),
        )
    except OSError as error:
        raise UserError(f"cannot start bash on {me.name}: {error.strerror}") from error
    finally:
        os.close(log)


UNHEALTHY = 69
"""Exit code of a node that is unhealthy (EX_UNAVAILABLE of sysexits.h)."""
UNWRITABLE = 74
"""Exit code of a node that could not begin, for the disk of the run folder is full (EX_IOERR)."""
