"""The controller of a local job: one process, detached, that starts the nodes and ends them.

Run as `python -m clusterkit.executors.local_controller RUN_FOLDER`. It gives each node what an
allocation would give it, keeps the time limit, ends all nodes when one fails, and leaves
nothing behind. It ends by writing `ended.json`; a job without that and without a controller is
unknown.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterkit import files, processes, runfolder
from clusterkit.errors import UserError
from clusterkit.executors.base import scrubbed_environment
from clusterkit.executors.local_nodes import LocalLayout, node_environment
from clusterkit.executors.local_runs import job_id_of
from clusterkit.model import JobState
from clusterkit.runfolder import RunFolder

_WATCHED = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
_POLL_S = 0.5
_NOTICE_S = 90.0
"""How long before the time limit SIGUSR2 is sent, as submitit has it; less for short limits."""
_PEER_GRACE_S = 20.0
"""How long nodes may take to notice by themselves that another has failed."""
_END_GRACE_S = 15.0
"""From SIGTERM to SIGKILL of a worker; more than the grace that the worker gives its command."""


@dataclass(slots=True)
class _Deadlines:
    """Moments on the monotonic clock at which something is due; None for never."""

    notice: float | None = None
    limit: float | None = None
    terminate: float | None = None
    kill: float | None = None


class Controller:
    """Everything the controller knows while the nodes run."""

    def __init__(self, run: RunFolder, layout: LocalLayout) -> None:
        self.run = run
        self.layout = layout
        self.workers: list[subprocess.Popen[bytes]] = []
        self.state: JobState | None = None
        """Why the job is being ended, once it is."""
        self.due = _Deadlines()

    def run_to_end(self) -> None:
        """Start the nodes, look after them, and write how it ended."""
        if self.run.cancelled.exists():
            self.state = JobState.CANCELLED
        else:
            self._start()
        while any(worker.poll() is None for worker in self.workers):
            arrived = signal.sigtimedwait(_WATCHED, _POLL_S)
            if arrived is not None and arrived.si_signo != signal.SIGCHLD:
                self._terminate(JobState.CANCELLED)
            _reap_orphans(self.workers)
            self._keep_time()
        self._sweep()
        self._write_end()

    def _start(self) -> None:
        now = time.monotonic()
        limit = self.layout.time_limit_s
        if limit is not None:
            self.due.limit = now + limit
            self.due.notice = self.due.limit - min(_NOTICE_S, limit / 4)
        inherited = scrubbed_environment()
        for rank in range(self.layout.tasks):
            environment = {**inherited, **node_environment(self.layout, rank)}
            path = self.run.submitit / f"{self.layout.job_id}_{rank}_log.out"
            with open(files.open_for_append(path), "ab") as log:  # noqa: PTH123 - a descriptor
                self.workers.append(
                    subprocess.Popen(
                        [sys.executable, "-u", "-m", "clusterkit.worker", str(self.run.path)],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        env=environment,
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
            files.create_text(self.run.timeout, "")
            self._terminate(JobState.TIMEOUT)
        if due.terminate is None and any(worker.poll() for worker in self.workers):
            due.terminate = now + _PEER_GRACE_S
        if due.terminate is not None and now >= due.terminate:
            self._terminate(JobState.FAILED)
        if due.kill is not None and now >= due.kill:
            self._signal(signal.SIGKILL)
            self._sweep()

    def _terminate(self, why: JobState) -> None:
        if self.due.kill is None:
            self.state = why
            self.due.kill = time.monotonic() + _END_GRACE_S
            self._signal(signal.SIGTERM)

    def _signal(self, signum: signal.Signals) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                processes.send(worker.pid, signum)

    def _sweep(self) -> None:
        prefix = self.run.marker()
        processes.kill_all(lambda: processes.marked(prefix, prefix=True))

    def _write_end(self) -> None:
        codes = [worker.returncode for worker in self.workers]
        results = runfolder.read_results(self.run)
        first = runfolder.first_failure(self.run, results.attempt)
        exit_code = first.exit_code if first else next((c for c in codes if c), None)
        if exit_code is None:
            exit_code = 0 if codes else None
        elif exit_code < 0:
            exit_code = 128 - exit_code
        state = JobState.SUCCEEDED if codes and not any(codes) else self.state or JobState.FAILED
        if first is not None:
            # A node failed by itself before anybody ended the job.
            state = JobState.FAILED
        reason = runfolder.blame(first) if first else None
        if len(results.nodes) < len(codes) and state is JobState.FAILED and reason is None:
            reason = f"a worker ended without a result, see {self.run.submitit}"
        document = {"schema": runfolder.SCHEMA, "state": state, "exit_code": exit_code}
        files.write_json(self.run.ended, {**document, "reason": reason, "ended_at": time.time()})


def main(arguments: list[str]) -> int:
    """Control the job in the run folder that is the only argument."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    run = RunFolder(Path(arguments[0]))
    processes.adopt_orphans()
    layout = LocalLayout.from_plan(job_id_of(run), _plan(run), tasks=_tasks(run))
    files.write_json(
        run.controller,
        {
            "schema": runfolder.SCHEMA,
            "pid": os.getpid(),
            "start_time": processes.start_time(os.getpid()),
            "boot_id": processes.boot_id(),
            "host": socket.gethostname(),
            "port": layout.port,
        },
    )
    Controller(run, layout).run_to_end()
    return 0


def _plan(run: RunFolder) -> dict[str, Any]:
    plan = files.read_json(run.plan)
    if plan is None:
        raise UserError(f"no plan in {run.plan}", hint="the folder was made by `clusterkit submit`")
    return plan


def _tasks(run: RunFolder) -> int:
    submission = runfolder.read_submission(run)
    if submission is None:
        raise UserError(f"no submission in {run.submission}")
    return submission.tasks


def _reap_orphans(workers: list[subprocess.Popen[bytes]]) -> None:
    """Collect children that are no workers: orphans that came back to this process."""
    ours = {worker.pid for worker in workers}
    for pid in processes.children(os.getpid()):
        if pid not in ours and not processes.alive(pid):
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
