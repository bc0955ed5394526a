"""Look after the workers of a job on this machine: start them, keep the time limit, end them all.

What a scheduler's daemon does on a node: used by the controller of a local job, which has all
nodes as its children, and by the node agent of one node of a job over ssh.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from clusterkit.core import files, processes
from clusterkit.core.errors import UserError
from clusterkit.core.model import JobState
from clusterkit.core.timing import scaled
from clusterkit.executors.run import runfolder
from clusterkit.executors.run.runfolder import RunFolder

WATCHED = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGCHLD})
"""What a supervisor fetches one by one."""
BLOCKED = WATCHED | {signal.SIGUSR1, signal.SIGUSR2}
"""To be blocked before anything is started. Workers inherit it: a notice that comes before they
can heed it waits for them, and does not kill them."""
_MADE = re.compile(r"clusterkit-.+-[A-Za-z0-9]{6}")
"""What mktemp makes of the name in a node script (templates/scripts/node/node.sh.j2)."""

_POLL_S = scaled(0.5, 0.2)
_NOTICE_S = 90.0
"""How long before the time limit SIGUSR2 is sent where the job does not say it, as submitit has
it; less for short limits."""
_PEER_GRACE_S = scaled(40.0, 30.0)
"""How long nodes may take to notice by themselves that another has failed, and to read what their
commands printed, which a busy machine takes long for."""
_END_GRACE_S = scaled(15.0, 7.0)
"""From SIGTERM to SIGKILL of a worker; more than the grace that the worker gives its command."""
_FUNCTION_GRACE_S = 3.0
"""The same of a function, which runs in submitit's own process: that passes over SIGTERM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A worker to be started: its words, all of its environment, the file of its own output."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path
    workdir: str | None = None
    """None: that of whoever starts it."""


@dataclass(slots=True)
class _Deadlines:
    """Moments on the monotonic clock at which something is due; None for never."""

    notice: float | None = None
    limit: float | None = None
    terminate: float | None = None
    kill: float | None = None


class Supervisor:
    """Everything that is known of the workers while they run."""

    def __init__(
        self,
        run: RunFolder,
        *,
        marker: str,
        time_limit_s: float | None,
        attempt: int = 0,
        aware: bool = True,
        is_cancelled: Callable[[], bool] | None = None,
        failed_elsewhere: Callable[[], bool] = lambda: False,
    ) -> None:
        """Look after workers whose commands carry a marker that begins with `marker`.

        Workers that are not `aware` of the job get no SIGUSR2 ahead of the time limit, and are
        not waited for when a node fails; `failed_elsewhere` tells whether one that is not here has.
        Whether the job is cancelled, `is_cancelled` tells, else its folder.
        """
        self.run = run
        self.marker = marker
        self.time_limit_s = time_limit_s
        self.attempt = attempt
        self.aware = aware
        self.is_cancelled = is_cancelled or (lambda: runfolder.is_cancelled(run))
        self.failed_elsewhere = failed_elsewhere
        self.workers: list[subprocess.Popen[bytes]] = []
        self.state: JobState | None = None
        """Why the workers are being ended, once they are."""
        self.due = _Deadlines()
        self._spared: set[int] = set()

    def run_to_end(self, starts: Sequence[Start]) -> tuple[int, ...]:
        """Start the workers and return their exit codes, as Popen has them.

        None is started where the job is cancelled. Whatever they left on this machine is gone
        afterwards, whatever is raised.

        Raises:
            UserError: a worker cannot be started, or its log not be opened.
        """
        self._spared = processes.descendants(os.getpid())
        try:
            if self.is_cancelled():
                self.state = JobState.CANCELLED
            else:
                self._start(starts)
            while any(worker.poll() is None for worker in self.workers):
                if processes.await_signal(WATCHED, _POLL_S) not in {None, signal.SIGCHLD}:
                    self._terminate(JobState.CANCELLED)
                _reap_orphans(self.workers)
                self._keep_time()
        finally:
            self._signal(signal.SIGKILL)
            self._sweep()
        return tuple(worker.wait() for worker in self.workers)

    def _start(self, starts: Sequence[Start]) -> None:
        now = time.monotonic()
        limit = self.time_limit_s
        if limit is not None:
            self.due.limit = now + limit
            submission = runfolder.read_submission(self.run)
            notice_s = (submission and submission.notice_s) or min(_NOTICE_S, limit / 4)
            self.due.notice = self.due.limit - notice_s if self.aware else None
        for start in starts:
            descriptor = files.open_for_append(start.log)
            with (
                open(descriptor, "ab") as log,  # noqa: PTH123 - a descriptor
                files.explained(Path(start.workdir or start.argv[0]), f"start {start.argv[0]} in"),
            ):
                self.workers.append(
                    subprocess.Popen(
                        start.argv,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        env=dict(start.environment),
                        cwd=start.workdir,
                        start_new_session=True,
                    )
                )

    def _keep_time(self) -> None:
        now = time.monotonic()
        due = self.due
        if due.notice is not None and now >= due.notice:
            due.notice = None
            self._signal(signal.SIGUSR2)
        if due.limit is not None and now >= due.limit:
            due.limit = None
            with suppress(UserError):  # to end in time matters more than to note why
                files.create_text(self.run.timeout(self.attempt), "")
            self._terminate(JobState.TIMEOUT)
        if due.kill is None and (self.is_cancelled() or runfolder.is_removed(self.run)):
            self._terminate(JobState.CANCELLED)
        if due.terminate is None and (
            any(worker.poll() for worker in self.workers) or self.failed_elsewhere()
        ):
            due.terminate = now + (_PEER_GRACE_S if self.aware else 0.0)
        if due.terminate is not None and now >= due.terminate:
            self._terminate(JobState.FAILED)
        if due.kill is not None and now >= due.kill:
            self._signal(signal.SIGKILL)
            self._sweep()

    def _terminate(self, why: JobState) -> None:
        if self.due.kill is None:
            self.state = why
            grace_s = _END_GRACE_S if self.aware else _FUNCTION_GRACE_S
            self.due.kill = time.monotonic() + grace_s
            self._signal(signal.SIGTERM)

    def _signal(self, signum: signal.Signals) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                processes.send(worker.pid, signum)

    def _sweep(self) -> None:
        sweep(self.marker, prefix=True, spared=self._spared)


def sweep(marker: str, *, prefix: bool = False, spared: set[int] | None = None) -> None:
    """Kill what carries the marker, and what stands below this process but is not `spared`.

    Orphans come back to this process, so its tree also holds what hid its environment. Without
    `spared`, what stands below it is left alone. A node script that is killed cannot remove its
    folder, `CK_TMP`: that is done here.
    """
    folders: set[Path] = set()

    def leftovers() -> set[int]:
        below = set() if spared is None else processes.descendants(os.getpid()) - spared
        found = processes.marked(marker, prefix=prefix) | below
        folders.update(folder for pid in found for folder in _temporary(pid))
        return found

    processes.kill_all(leftovers)
    for folder in folders:
        files.remove_tree(folder)


def _temporary(pid: int) -> Iterator[Path]:
    """Yield the folder that the node script of a process has made."""
    for item in processes.environment(pid):
        name, _, value = item.partition(b"=")
        folder = Path(os.fsdecode(value))
        if name == b"CK_TMP" and folder.is_absolute() and _MADE.fullmatch(folder.name):
            yield folder


def _reap_orphans(workers: list[subprocess.Popen[bytes]]) -> None:
    """Collect children that are no workers: orphans that came back to this process."""
    ours = {worker.pid for worker in workers}
    for pid in processes.children(os.getpid()):
        if pid not in ours and not processes.alive(pid):
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
