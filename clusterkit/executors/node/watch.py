"""Watch over a running command: pass signals on, keep deadlines, notice failing peers.

On Slurm, a job is given back from inside: for its next attempt (submitit's checkpoint), or for
good. `scontrol requeue` keeps the job id and ends what runs with SIGTERM. One node does it; a file
that is created exclusively decides which, and says why.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from clusterkit.core import files, processes
from clusterkit.core.commands import run_command
from clusterkit.core.errors import UserError
from clusterkit.core.model import NodeResult
from clusterkit.core.timing import scaled
from clusterkit.executors.node.failure import read_rank_failure
from clusterkit.executors.node.identity import Identity
from clusterkit.executors.node.notices import Notice, read_notice
from clusterkit.executors.node.supervisor import BLOCKED, sweep
from clusterkit.executors.run import hangs, node_results, restarts, runfolder
from clusterkit.executors.run.runfolder import RunFolder, Submission

TERMINATION = frozenset({signal.SIGTERM, signal.SIGINT})
NOTICES = frozenset({signal.SIGUSR1, signal.SIGUSR2})

BATCH_HOST = "CK_BATCH_HOST"
"""The node of the batch script, of a job that restarts in its allocation."""
_EARLY_S = 60.0
"""How much earlier than it was asked to Slurm may announce a time limit (sbatch(1), --signal)."""
_LATE_S = 30.0
"""How much later than its job a worker may start: prologue, port probe, imports."""


_SAME_SIGNAL_S = 0.3
"""How far apart a signal to all processes of a step may reach two of them."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long to wait for what."""

    grace_s: float = scaled(8.0, 3.0)
    """From SIGTERM to SIGKILL; has to stay below Slurm's KillWait (30 s, at some sites 10)."""
    peer_grace_s: float = scaled(5.0, 2.5)
    """How long a command may still run, and say why, after another node has failed."""
    poll_s: float = scaled(1.0, 0.25)
    notice_share: float = 2 / 3
    """How much of the time between notice and limit a script gets to save what it needs."""
    linger_s: float = 600.0
    """How long a job that may be requeued stays after SIGTERM, for Slurm to kill it."""


def say(message: str) -> None:
    """Print a line on the standard error, which may lie on a disk that takes no more."""
    with suppress(OSError):
        os.write(2, f"{message}\n".encode(errors="replace"))


class Watch:
    """The life of one command: what has been asked of it, and by when."""

    def __init__(
        self,
        *,
        timeouts: Timeouts,
        run: RunFolder,
        me: Identity,
        pid: int,
        spared: set[int],
        heeds_cloud: bool = False,
        hung: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.timeouts = timeouts
        self.spared = spared
        self.run = run
        self.me = me
        self.heeds_cloud = heeds_cloud
        self.heeds_batch = "SLURM_JOB_ID" in os.environ
        self._hung = hung
        self.hung: str | None = None
        """Why the command is ended, where it makes no progress."""
        self.pid = pid
        began = os.environ.get("CK_BEGAN", "").rpartition(".")[2]
        self.began = float(began) if began.isdecimal() else time.time()
        self.reason: str | None = None
        self.peer_code: int | None = None
        self.own_code: int | None = None
        """The exit code of a rank of this node, where the others have ended because of it."""
        self.noticed = False
        """Whether the time limit has been announced."""
        self.passed_on = False
        """Whether the command was given a notice, on which it may give the job back by itself."""
        self.notice: Notice | None = None
        """What the cloud of a node has announced."""
        self.again_at: float | None = None
        """When this node gives the job back to Slurm, to be started again."""
        self.terminate_at: float | None = None
        self.kill_at: float | None = None

    def until_end(self) -> tuple[int, str | None]:
        """Wait for the command; return its exit code and why it ended, if not by itself."""
        while True:
            self._heed(processes.await_signal(BLOCKED, self._next_look_s()))
            code = _reap(self.pid)
            if code is not None:
                if code != 0 and self.reason is None:
                    # Slurm sends SIGTERM to every process of a step, so the command may be gone
                    # before this process has seen its own.
                    self._heed(processes.await_signal(TERMINATION, _SAME_SIGNAL_S))
                    self._heed_others()
                if code != 0 and self.reason is None and self.noticed:
                    # It has saved what it needs, and left before it was told to.
                    self.reason = "timeout" if self.notice is None else "preempted"
                    self._start_again()
                self._sweep()
                return self._ending(code)
            self._keep_time()

    def _heed(self, signum: signal.Signals | None) -> None:
        if signum in TERMINATION:
            self._terminate(signum)
        elif signum in NOTICES:
            # slurmstepd has sent it to every process of the step already
            self._tell_ranks(signum, below="SLURM_STEP_ID" not in os.environ)
            if signum is signal.SIGUSR2:
                self._heed_notice()

    def _tell_ranks(self, signum: signal.Signals, *, below: bool = True) -> None:
        self.passed_on = True
        _pass_on(signum, self.run.marker(self.me.rank), below=below)

    def _heed_notice(self) -> None:
        """Plan the end of this attempt, where the time limit comes and another may follow."""
        submission = runfolder.read_submission(self.run)
        if submission is None or not submission.requeue or not self._may_be_late(submission):
            return
        self._plan_end(submission, submission.notice_s)

    def _heed_files(self) -> None:
        """Heed what the batch script, to which alone Slurm sends SIGUSR2, and a cloud have left."""
        heeds_cloud = self.heeds_cloud and self.notice is None
        if not (self.heeds_batch or heeds_cloud):
            return
        names = runfolder.listed(self.run.path)
        if self.heeds_batch and self.run.usr2(self.me.attempt).name in names:
            self.heeds_batch = False
            self._tell_ranks(signal.SIGUSR2)
            self._heed_notice()
        if heeds_cloud and self.run.notice(self.me.attempt).name in names:
            self._heed_cloud()

    def _heed_cloud(self) -> None:
        """Let the ranks save, and plan the end of this attempt, before the cloud takes a node."""
        self.notice = read_notice(self.run, self.me.attempt)
        submission = runfolder.read_submission(self.run) if self.notice is not None else None
        if self.notice is None or submission is None:
            return
        say(f"clusterkit: {self.notice.text}")
        self._tell_ranks(signal.SIGUSR2)
        self._plan_end(submission, max(0.0, self.notice.at - time.time()))

    def _plan_end(self, submission: Submission, left_s: float) -> None:
        self.noticed = True
        if self.me.rank == 0 and may_requeue(self.run, submission, self.me):
            due = time.monotonic() + left_s * self.timeouts.notice_share
            self.again_at = min(self.again_at or due, due)

    def _may_be_late(self, submission: Submission) -> bool:
        """Tell a notice of the time limit from a signal that somebody sent for another reason.

        Slurm sends it up to a minute early, and knows limits that nobody asked for.
        """
        if submission.time_limit_s is None:
            return "SLURM_JOB_ID" in os.environ
        left_s = submission.time_limit_s - (time.time() - self.began)
        notice_s = submission.notice_s or submission.time_limit_s
        return left_s <= notice_s + _EARLY_S + _LATE_S

    def _start_again(self, why: str | None = None, *, lost: NodeResult | None = None) -> None:
        """Let the job start again: Slurm has to be told before its time limit comes.

        When a node has gone, Slurm would do so by itself, had the others not ended before.
        """
        self.again_at = None
        cancelled = self.kill_at is not None or runfolder.is_cancelled(self.run)
        if not cancelled and may_requeue(self.run, runfolder.read_submission(self.run), self.me):
            ends = "time limit" if self.notice is None else self.notice.text
            if why is None:
                with suppress(UserError):
                    line = f"clusterkit: the job is put back and starts again: {ends}"
                    files.append_line(self.run.log(self.me.rank), line)
            requeue(self.run, self.me, why or ends, lost=lost)

    def _heed_others(self) -> None:
        """Note that the job is being ended, where that broke the ranks here before a signal came.

        Over ssh, an end reaches one node before another.
        """
        ended = runfolder.is_cancelled(self.run) or self.run.timeout(self.me.attempt).exists()
        if self.reason is None and ended:
            self.reason = self._why()

    def _next_look_s(self) -> float:
        due = (self.terminate_at, self.kill_at, self.again_at)
        deadlines = [at for at in due if at is not None]
        left = min(deadlines, default=float("inf")) - time.monotonic()
        return max(0.0, min(self.timeouts.poll_s, left))

    def _keep_time(self) -> None:
        now = time.monotonic()
        if self.again_at is not None and now >= self.again_at:
            self._start_again()
        if self.kill_at is None:
            self._heed_files()
        if self.kill_at is not None:
            if now >= self.kill_at:
                self._sweep()
                self.kill_at = now + self.timeouts.poll_s
        elif self.terminate_at is not None:
            if now >= self.terminate_at or self._is_awaited():
                self.reason = "peer"
                self._terminate(signal.SIGTERM)
        elif self._is_in_vain():
            self._terminate(signal.SIGTERM)
        elif (peer := self._failed_peer()) is not None:
            self.peer_code = peer.exit_code
            if peer.lost is not None and not batch_decides(self.run, lost=peer):
                self._start_again(node_results.failure_text(peer), lost=peer)
                give_up(self.run, self.me, lost=peer)
            self.terminate_at = now + self.timeouts.peer_grace_s

    def _is_awaited(self) -> bool:
        """Tell whether the node that failed waits for this one, which srun then does not end."""
        first = node_results.first_failure(self.run, self.me.attempt)
        return (
            "SLURM_JOB_ID" in os.environ
            and first is not None
            and first.lost is None
            and node_results.has_result(self.run, first.node_rank, self.me.attempt)
        )

    def _is_in_vain(self) -> bool:
        """Tell whether the command hangs, or nobody can ask for it or its output any more."""
        if runfolder.is_removed(self.run):
            self.reason = "cancelled"
            return True
        self.hung = self._hung()
        return self.hung is not None

    def _terminate(self, signum: signal.Signals) -> None:
        self.again_at = None
        if self.kill_at is not None:
            return  # Slurm repeats itself; a launcher that is tidying up must not be disturbed
        self.kill_at = time.monotonic() + self.timeouts.grace_s
        processes.send(self.pid, signum)
        if self.hung is None:
            self.reason = self.reason or self._why()

    def _why(self) -> str | None:
        """Find out why somebody ends this node; the signal itself does not say.

        None where a rank of this node has failed, and others have ended because of that already:
        srun ends what still ends its other ranks here.
        """
        if runfolder.is_cancelled(self.run):
            return "cancelled"
        peer = self._failed_peer()
        if peer is not None:
            self.peer_code = peer.exit_code
            return "peer"
        ended = self.run.requeued(self.me.attempt), self.run.timeout(self.me.attempt)
        if any(path.exists() for path in ended) or self._out_of_time():
            return "timeout" if self.notice is None else "preempted"
        if is_preempted():
            return "preempted"
        code = self._blamed_by_others()
        # Where somebody ends the whole job, ranks may fail of that before each node has heard it.
        self.own_code = None if code is None or is_cancelled() else code
        return "terminated" if self.own_code is None else None

    def _blamed_by_others(self) -> int | None:
        """Return the code of a rank of this node that failed first, where others have ended of it.

        That this node has one that failed is not enough: it may have been told to end as well.
        """
        first = read_rank_failure(self.run, self.me.attempt)
        if first is None or first.node != self.me.name:
            return None
        others = node_results.read_results(self.run, self.me.attempt).nodes
        return first.exit_code if any(one.reason == "peer" for one in others) else None

    def _out_of_time(self) -> bool:
        """Tell whether Slurm's time limit has come, counted from the start of this worker."""
        submission = runfolder.read_submission(self.run)
        limit = submission.time_limit_s if submission is not None else None
        # Slurm counts from the start of the job and is never early.
        return limit is not None and time.time() - self.began >= max(limit - _LATE_S, limit / 2)

    def _sweep(self) -> None:
        sweep(self.run.marker(self.me.rank), spared=self.spared)

    def _failed_peer(self) -> NodeResult | None:
        failure = node_results.first_failure(self.run, self.me.attempt)
        if failure is None:
            return None
        # A node that the others have given up has to end as well, should it be alive.
        others = failure.node_rank != self.me.rank or failure.lost is not None
        return failure if others else None

    def _ending(self, code: int) -> tuple[int, str | None]:
        if self.hung is not None and self.reason is None:
            return hangs.HUNG, None
        if self.reason == "peer" and self.peer_code:
            return self.peer_code, self.reason
        if self.reason is None and self.own_code is not None:
            return self.own_code, None
        if self.reason is not None and code == 0:
            # It tidied up and left quietly because it was told to; its work is not done.
            return 128 + signal.SIGTERM, self.reason
        return code, self.reason


@contextmanager
def blocked(signals: frozenset[signal.Signals]) -> Iterator[None]:
    """Hold these signals back, to be fetched by `sigtimedwait` one by one."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _reap(pid: int) -> int | None:
    """Collect every child that has ended; return the exit code of `pid` if it is among them."""
    code = None
    with suppress(ChildProcessError):
        while True:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended == 0:
                break
            if ended == pid:
                raw = os.waitstatus_to_exitcode(status)
                code = raw if raw >= 0 else 128 - raw
    return code


def _pass_on(signum: signal.Signals, marker: str, *, below: bool) -> None:
    """Give a notice to every process that has a handler for it; it would kill the others.

    Those of a Docker container are no descendants, and known by the marker alone. Descendants are
    passed over unless `below`.
    """
    descendants = processes.descendants(os.getpid())
    found = processes.marked(marker)
    for pid in found | descendants if below else found - descendants:
        if processes.catches(pid, signum):
            processes.send(pid, signum)


_MISSED = {"DOWN", "NOT_RESPONDING"}
"""States of a node of which Slurm gets no answer."""
_BATCH_S = scaled(30.0, 15.0)
"""How long the batch script may take to decide, or to end its step."""
_PING_S = 10.0
"""How long Slurm may take to answer (MessageTimeout, slurm.conf(5)); a node that has lost the
network gets no answer."""
_FIRST = 8
"""So many nodes ask Slurm at once, and the others only where none of them has started the job."""
_OTHERS_AFTER_S = scaled(2.0, 1.0)
_AGAIN_AFTER_S = (2.0, 4.0)
"""Pauses after a controller that did not take a request, or did not answer (10 s by itself)."""


def may_requeue(run: RunFolder, submission: Submission | None, me: Identity) -> bool:
    """Tell whether this attempt is one that Slurm can be asked to follow by another."""
    if submission is None or "SLURM_JOB_ID" not in os.environ:
        return False
    return me.attempt - restarts.count(run, me.attempt) < submission.requeue


def batch_decides(run: RunFolder, *, lost: NodeResult | None = None) -> bool:
    """Tell whether the batch script decides what follows (`--restarts`); not if it is `lost`."""
    host, submission = os.environ.get(BATCH_HOST), runfolder.read_submission(run)
    if host is None or submission is None or not submission.restarts:
        return False
    return lost is None or lost.node != host or lost.among is not None


def take_over(run: RunFolder, me: Identity) -> None:
    """End the job or have it start again, where the batch script has gone and nobody can tell.

    Nodes that lost each other leave it to that; Slurm would let the job be, as `--no-kill` says.
    One of them need not wait where Slurm misses the node of the batch script as well: once Slurm
    takes that for down (SlurmdTimeout), it kills this worker with the step.
    """
    lost, host = node_results.first_failure(run, me.attempt), os.environ.get(BATCH_HOST)
    if lost is None or not lost.among or me.name == host or not batch_decides(run, lost=lost):
        return
    there = {run.restarted(me.attempt).name, run.requeued(me.attempt).name, run.cancelled.name}
    deadline = time.monotonic() + _BATCH_S
    while TERMINATION.isdisjoint(signal.sigpending()):
        if there & runfolder.listed(run.path):
            return
        if time.monotonic() >= deadline or (me.rank == 1 and _is_missed(host)):
            requeue_or_end(run, me, lost=lost)
            return
        time.sleep(1.0)


def _is_missed(node: str | None) -> bool:
    """Return whether Slurm gets no answer of a node (the `*` of sinfo(1)), or takes it for down."""
    answer = run_command(["sinfo", "-a", "-h", "-n", str(node), "-o", "%T"], timeout_s=_PING_S)
    # Only a job that has lost a node asks; every worker would load it.
    from clusterkit.transport.probe import Unparsed  # noqa: PLC0415
    from clusterkit.transport.slurm_nodes import states_of  # noqa: PLC0415

    state = next(iter(answer.output.split()), "") if answer.ok else ""
    with suppress(Unparsed):
        return not _MISSED.isdisjoint(states_of(state))
    return False


def requeue_or_end(run: RunFolder, me: Identity, *, lost: NodeResult) -> None:
    """Ask Slurm to start a job that has lost a node again, or to end it."""
    if may_requeue(run, runfolder.read_submission(run), me):
        requeue(run, me, node_results.failure_text(lost), lost=lost)
    give_up(run, me, lost=lost)


def write_left_out(run: RunFolder) -> None:
    """Write for the batch script which nodes it is not to use.

    Raises:
        UserError: they cannot be written.
    """
    left_out = sorted(node_results.left_out(run))
    if left_out:
        files.write_text(run.left_out, "".join(f"{node}\n" for node in left_out))


def give_up(run: RunFolder, me: Identity, *, lost: NodeResult) -> None:
    """Ask Slurm to end a job that has lost a node, unless it starts again.

    The step ends by itself on the nodes that are left, but srun waits until Slurm has noticed, and
    would keep them for so long.
    """
    submission = runfolder.read_submission(run)
    on_slurm = submission is not None and submission.kind.scheduled
    asks = {0, 1} if lost.among else {1 if lost.node_rank == 0 else 0}
    # Another node may be the one that starts it again, now; else Slurm does when it misses a node.
    if on_slurm and me.rank in asks and not may_requeue(run, submission, me):
        run_command(["scancel", os.environ["SLURM_JOB_ID"]])


def requeue(run: RunFolder, me: Identity, why: str, *, lost: NodeResult | None = None) -> None:
    """Ask Slurm to start the job again, unless another node has.

    Of nodes that lost each other, the one that reaches Slurm does; a node that is `lost` may share
    the folder with the others, and would only keep them from it.
    """
    if lost is not None:
        if lost.node_rank == me.rank and not lost.among:
            return
        if me.rank > _FIRST:
            time.sleep(_OTHERS_AFTER_S)
        started = run.requeued(me.attempt).exists()
        if started or run_command(["scontrol", "ping"], timeout_s=_PING_S).code:
            return
    write_left_out(run)
    document = json.dumps({"why": why, "node": me.name, "attempt": me.attempt})
    if not files.create_text(run.requeued(me.attempt), document):
        return
    # Whoever times out is asked again: a job that is requeued ends this process, or is pending and
    # takes no second request.
    for pause_s in (*_AGAIN_AFTER_S, 0.0):
        answer = run_command(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]])
        if not answer.code:
            return
        say(f"clusterkit: scontrol requeue: {answer.errors.strip()}")
        time.sleep(pause_s)


_TAKEN = re.compile(r"\bPreemptTime=\d")
_CANCELLED = re.compile(r"\bJobState=CANCELLED\b")
_QUERY_TIMEOUT_S = 3.0
"""For Slurm's answer: the time until it kills the job is running."""


def is_preempted() -> bool:
    """Return whether `scontrol show job` names a time at which this job was preempted."""
    return _TAKEN.search(_shown()) is not None


def is_cancelled() -> bool:
    """Return whether `scontrol show job` says that somebody has cancelled this job."""
    return _CANCELLED.search(_shown()) is not None


def _shown() -> str:
    """Return what Slurm tells of this job; nothing where there is none, or no answer."""
    job_id = os.environ.get("SLURM_JOB_ID")
    if job_id is None:
        return ""
    answer = run_command(["scontrol", "show", "job", "-o", job_id], timeout_s=_QUERY_TIMEOUT_S)
    return answer.output if answer.ok else ""
