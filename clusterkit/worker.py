"""What runs once per node: `LaunchTask` starts the node's command and tells how it ended.

`python -m clusterkit.worker RUN_FOLDER` is the process that an executor starts on each node. It
is a submitit task, so that submitit's own result files are there as well, and it exits with the
exit code of the command (128 + N for a command ended by signal N), whatever else happens.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from clusterkit import files, processes, runfolder
from clusterkit.errors import ClusterkitError, UserError
from clusterkit.model import NodeResult, Runtime
from clusterkit.runfolder import RunFolder

TERMINATION = frozenset({signal.SIGTERM, signal.SIGINT})
NOTICES = frozenset({signal.SIGUSR1, signal.SIGUSR2})
WATCHED = TERMINATION | NOTICES | {signal.SIGCHLD}

_START = """trap '' USR1 USR2; exec bash "$0\""""
"""Start the node script with the notices ignored: schedulers send them to every process of a
step, and whoever has no handler for them would die. A handler set later still gets them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who this node is, in the variables that every executor provides."""

    job_id: str
    attempt: int
    """How often the job was restarted before this start."""
    rank: int
    of: int
    """Number of nodes in this attempt."""
    name: str

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Identity:
        """Read the identity of this node.

        Raises:
            UserError: the worker was not started by an executor.
        """
        needed = [Runtime.JOB_ID, Runtime.RESTART_COUNT, Runtime.NODE_RANK, Runtime.NODES]
        missing = [ref.name for ref in needed if not environment.get(ref.name)]
        if missing:
            raise UserError(
                f"not started as a node of a job: {', '.join(missing)} missing",
                hint="the worker is started by `clusterkit submit`; by hand, run node.sh",
            )
        job_id, attempt, rank, nodes = (environment[ref.name] for ref in needed)
        known = nodes.split()
        if not (attempt.isdigit() and rank.isdigit() and int(rank) < len(known)):
            raise UserError(f"no node of this job: rank {rank} of {nodes}, restart {attempt}")
        return cls(
            job_id=job_id,
            attempt=int(attempt),
            rank=int(rank),
            of=len(known),
            name=known[int(rank)],
        )


@dataclass(frozen=True, slots=True)
class LaunchTask:
    """The callable that submitit runs on each node of the job in `run_folder`."""

    run_folder: str
    grace_s: float = 10.0
    """From SIGTERM to SIGKILL; has to stay below Slurm's KillWait (30 s)."""
    peer_grace_s: float = 5.0
    """How long a command may still run, and say why, after another node has failed."""
    poll_s: float = 1.0

    def __call__(self) -> NodeResult:
        """Run the command of this node to its end and return how it ended."""
        run = RunFolder(Path(self.run_folder))
        me = Identity.from_environment(os.environ)
        marker = run.marker(me.rank)
        with _blocked(WATCHED):
            processes.adopt_orphans()
            _sweep(marker)  # what an earlier attempt may have left on this node
            started_at = time.time()
            with _guardian(marker):
                spared = processes.descendants(os.getpid())
                pid = _start(run, me, marker)
                watch = _Watch(task=self, run=run, me=me, pid=pid, spared=spared)
                exit_code, reason = watch.until_end()
        result = NodeResult(
            node_rank=me.rank,
            node=me.name,
            exit_code=exit_code,
            started_at=started_at,
            ended_at=time.time(),
            reason=reason,
        )
        try:
            runfolder.write_result(run, result, attempt=me.attempt, of=me.of)
        except UserError as error:
            # The exit code is now the only thing that can tell how the command ended.
            print(f"clusterkit: {error}", file=sys.stderr)
            raise SystemExit(exit_code) from error
        return result


class _Watch:
    """The life of one command: what has been asked of it, and by when."""

    def __init__(
        self, *, task: LaunchTask, run: RunFolder, me: Identity, pid: int, spared: set[int]
    ) -> None:
        self.task = task
        self.spared = spared
        self.run = run
        self.me = me
        self.pid = pid
        self.reason: str | None = None
        self.peer_code: int | None = None
        self.terminate_at: float | None = None
        self.kill_at: float | None = None

    def until_end(self) -> tuple[int, str | None]:
        """Wait for the command; return its exit code and why it ended, if not by itself."""
        while True:
            arrived = signal.sigtimedwait(WATCHED, self._patience())
            code = _reap(self.pid)
            if code is not None:
                self._sweep()
                return self._ending(code)
            signum = signal.Signals(arrived.si_signo) if arrived else None
            if signum in TERMINATION:
                self._terminate(signum)
            elif signum in NOTICES:
                _pass_on(signum)
            self._keep_time()

    def _patience(self) -> float:
        deadlines = [at for at in (self.terminate_at, self.kill_at) if at is not None]
        left = min(deadlines, default=float("inf")) - time.monotonic()
        return max(0.0, min(self.task.poll_s, left))

    def _keep_time(self) -> None:
        now = time.monotonic()
        if self.kill_at is not None:
            if now >= self.kill_at:
                self._sweep()
                self.kill_at = now + self.task.poll_s
        elif self.terminate_at is not None:
            if now >= self.terminate_at:
                self.reason = "peer"
                self._terminate(signal.SIGTERM)
        elif (peer := self._failed_peer()) is not None:
            self.peer_code = peer.exit_code
            self.terminate_at = now + self.task.peer_grace_s

    def _terminate(self, signum: signal.Signals) -> None:
        if self.kill_at is None:
            self.kill_at = time.monotonic() + self.task.grace_s
            self.reason = self.reason or self._why()
        processes.send(self.pid, signum)

    def _why(self) -> str:
        """Find out why somebody ends this node; the signal itself does not say."""
        if self.run.cancelled.exists():
            return "cancelled"
        peer = self._failed_peer()
        if peer is not None:
            self.peer_code = peer.exit_code
            return "peer"
        limit = os.environ.get("SLURM_JOB_END_TIME", "")
        over = limit.isdigit() and time.time() >= int(limit) - 2
        return "timeout" if over or self.run.timeout.exists() else "terminated"

    def _sweep(self) -> None:
        # Orphans come back to this process, so the tree also holds what hid its environment.
        _sweep(self.run.marker(self.me.rank), tree=os.getpid(), spared=self.spared)

    def _failed_peer(self) -> NodeResult | None:
        failure = runfolder.first_failure(self.run, self.me.attempt)
        return failure if failure is not None and failure.node_rank != self.me.rank else None

    def _ending(self, code: int) -> tuple[int, str | None]:
        if self.reason == "peer" and self.peer_code:
            return self.peer_code, self.reason
        if self.reason is not None and code == 0:
            # It tidied up and left quietly because it was told to; its work is not done.
            return 128 + signal.SIGTERM, self.reason
        return code, self.reason


def main(arguments: list[str]) -> int:
    """Run the task of this node inside submitit; return the exit code of its command."""
    # From the first line on: a signal that comes while submitit is still being imported waits.
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    run = RunFolder(Path(arguments[0]).absolute())
    try:
        me = Identity.from_environment(os.environ)
        _run_in_submitit(run)
    except ClusterkitError as error:
        print(f"clusterkit: error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        # submitit could not write its own result; ours, where it is there, still counts.
        print(f"clusterkit: {error}", file=sys.stderr)
    results = runfolder.read_results(run)
    codes = [result.exit_code for result in results.nodes if result.node_rank == me.rank]
    return codes[0] if codes and results.attempt == me.attempt else 1


def _run_in_submitit(run: RunFolder) -> None:
    # submitit loads numpy where there is one, for the sake of pickles that hold arrays. Ours
    # holds a path, and on a shared disk with many nodes that import costs seconds.
    sys.modules.setdefault("numpy", None)  # type: ignore[arg-type]
    from submitit.core import submission  # noqa: PLC0415 - after the line above
    from submitit.core.job_environment import JobEnvironment  # noqa: PLC0415

    os.environ["SUBMITIT_FOLDER"] = str(run.submitit)
    environment = JobEnvironment()
    paths = environment.paths
    _adopt_pickle(run, paths.submitted_pickle)
    _adopt_job_id(run, environment.job_id)
    for leftover in (paths.result_pickle, paths.result_pickle.with_suffix(".pkl.save_tmp")):
        leftover.unlink(missing_ok=True)  # of an attempt before a restart
    submission.process_job(run.submitit)


def _adopt_pickle(run: RunFolder, wanted: Path) -> None:
    """Give the submitted task the name that submitit looks for.

    The client does that when it learns the job id; it may have died before, or be slower than
    this node. There is one job in the folder, so the task under a temporary name is ours.
    """
    for candidate in run.submitit.glob("*.pkl"):
        if wanted.exists():
            return
        if not candidate.name.endswith(("_submitted.pkl", "_result.pkl")):
            # A file that has gone was renamed by the client: the wanted name is there now.
            with suppress(FileExistsError, FileNotFoundError):
                wanted.symlink_to(candidate.name)


def _adopt_job_id(run: RunFolder, job_id: str) -> None:
    submission = runfolder.read_submission(run)
    if submission is not None and submission.job_id is None:
        document = files.read_json(run.submission) or {}
        files.write_json(run.submission, {**document, "job_id": job_id})


def _start(run: RunFolder, me: Identity, marker: str) -> int:
    environment = {**os.environ, **runfolder.read_secrets(run), processes.MARKER: marker}
    log = files.open_for_append(run.log(me.rank))
    try:
        if me.attempt:
            now = datetime.now(tz=UTC).astimezone().isoformat(timespec="seconds")
            os.write(log, f"--- clusterkit: restart {me.attempt} on {me.name}, {now}\n".encode())
        return os.posix_spawnp(
            "bash",
            ["bash", "-c", _START, str(run.path / "node.sh")],
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


@contextmanager
def _guardian(marker: str) -> Iterator[None]:
    """Keep a process that kills what is marked should this one be killed (SIGKILL, no memory)."""
    command = [sys.executable, "-I", "-S", processes.__file__, marker]
    nothing = subprocess.DEVNULL
    # It keeps the blocked signals of this process, and so outlives those sent to a whole step.
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=nothing, stderr=nothing, start_new_session=True
    ) as guardian:
        try:
            yield
        finally:
            with suppress(BrokenPipeError):
                guardian.communicate(b".")


@contextmanager
def _blocked(signals: frozenset[signal.Signals]) -> Iterator[None]:
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


def _pass_on(signum: signal.Signals) -> None:
    for pid in processes.descendants(os.getpid()):
        if processes.catches(pid, signum):
            processes.send(pid, signum)


def _sweep(
    marker: str, *, tree: int | None = None, spared: set[int] | frozenset[int] = frozenset()
) -> None:
    """Kill what carries the marker, and what stands below process `tree` but is not spared."""

    def leftovers() -> set[int]:
        below = processes.descendants(tree) - spared if tree is not None else set()
        return processes.marked(marker) | below

    processes.kill_all(leftovers)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
