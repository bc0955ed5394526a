"""Jobs on this machine: every node is a process group with a loopback address of its own.

No scheduler: a controller process, detached from the client, starts the nodes and looks after them.
It is the only writer of `controller.json` and `ended.json`. A queued job keeps the environment of
the shell that submitted it, and starts later as if it were started there.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from clusterkit.core import files, processes, reading
from clusterkit.core.bounds import ExitCode, Pid
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.model import JobState, LaunchPlan
from clusterkit.core.moved import new_name
from clusterkit.core.records import record_of
from clusterkit.executors.base import (
    Executor,
    Launched,
    RefusalError,
    SchedulerState,
    Show,
    scrubbed_environment,
    state_without_processes,
    untold,
)
from clusterkit.executors.run import submit_journal
from clusterkit.executors.run.dependencies import Dependencies
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.executors.run.submit_journal import ProcessId

MODULE = "clusterkit.executors.local.controller"
"""What Python runs as the controller of a job, with the run folder as its only argument."""
_START_TIMEOUT_S = 30.0
"""How long a submitted job may be without a controller before nobody believes in it."""
_BEGIN_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Controller(ProcessId):
    """What stands in `controller.json`."""

    pid: Pid


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """What stands in `ended.json`."""

    state: JobState
    exit_code: ExitCode | None
    reason: str | None


def job_id_of(run: RunFolder) -> str:
    """Return the job id of a local run."""
    return f"local-{run.key}"


class LocalExecutor(Executor):
    """The executor of kind `local`. Nodes on one machine share what there is: nothing is refused.

    The controller starts the next attempt by itself, and has said what there is to say of an end.
    """

    ask_every_s = 0.0
    unknown_timeout_s = 2.0
    absence = "its controller has gone"

    def launch(self, plan: LaunchPlan, run: RunFolder, show: Show = untold) -> Launched:
        """Start the controller of this job and wait until it has begun."""
        del show
        return _launch(run, scrubbed_environment(plan.secrets))

    def queue(self, plan: LaunchPlan, run: RunFolder, dependencies: Dependencies) -> str:
        """Keep the environment, which is that of the job; return the job id."""
        del dependencies
        kept = {"host": socket.gethostname(), "variables": scrubbed_environment(plan.secrets)}
        # As ASCII: a variable may hold bytes that are no UTF-8.
        files.write_text(run.shell, json.dumps(kept), mode=files.PRIVATE)
        return job_id_of(run)

    def start_queued(self, run: RunFolder, submission: Submission) -> None:
        """Start the controller of the job.

        Raises:
            RemoteError: it belongs to another machine, or its controller did not start.
            UserError: its environment cannot be read.
        """
        del submission
        host, variables = _shell_of(run)
        if host != socket.gethostname():
            message = f"{job_id_of(run)} is to run on {host}, and this is another machine"
            raise RemoteError(message, hint=f"on {host}: clusterkit wait {run.path}")
        try:
            _launch(run, variables)
        except (RefusalError, UserError):
            files.create_text(run.queued, "")  # its controller has gone
            raise
        files.remove(run.shell)

    def find_lost(self, runs: Mapping[RunFolder, Submission]) -> Mapping[RunFolder, str]:
        """Return the job ids, which follow from the run ids."""
        return {run: job_id_of(run) for run in runs if run.controller.exists()}

    def states(self, runs: Mapping[RunFolder, Submission]) -> Mapping[RunFolder, SchedulerState]:
        """Return the state of each job that has, or had, a controller on this machine."""
        found = {run: _state_of(run, submission) for run, submission in runs.items()}
        return {run: state for run, state in found.items() if state is not None}

    def cancel(self, run: RunFolder, submission: Submission) -> None:
        """Ask the controller to end the job; end its nodes directly where it has gone.

        Raises:
            RemoteError: the job runs on another machine.
        """
        if run.ended.exists() or (run.queued.exists() and not run.controller.exists()):
            return
        deadline = min(submission.submitted_at + _START_TIMEOUT_S, time.time() + 5.0)
        while (controller := _controller(run)) is None and time.time() < deadline:
            time.sleep(0.05)
        if controller is None:
            return  # never begun: a controller that still comes finds the job cancelled
        host, here = controller.host, socket.gethostname()
        if host != here:
            hint = f"on {host}: clusterkit cancel {run.path}"
            raise RemoteError(f"the job runs on {host}, and this is {here}", hint=hint)
        if _lives(controller, run):
            processes.send(controller.pid, signal.SIGTERM)
        else:
            processes.kill_all(lambda: processes.marked(run.marker(), prefix=True))
            ended = {"state": "cancelled", "exit_code": None, "reason": "its controller had gone"}
            files.write_json(run.ended, ended)

    def lingering(self, runs: Mapping[RunFolder, Submission]) -> Collection[RunFolder]:
        """Return the jobs of which a process is left on this machine."""
        return {run for run in runs if not _is_gone(run)}


def _launch(run: RunFolder, environment: dict[str, str]) -> Launched:
    """Start the controller of the job in a session of its own, so that it outlives this one.

    Raises:
        UserError: the task cannot be written.
        RefusalError: its controller did not come up.
    """
    from clusterkit.executors.submitit_job import write_task  # noqa: PLC0415 - loads slowly

    write_task(run, job_id_of(run))
    log_path = run.submitit / "controller.log"
    log = files.open_for_append(log_path)
    with open(log, "ab") as stream, files.explained(log_path):  # noqa: PTH123 - a descriptor
        submit_journal.hand_over(run)
        controller = subprocess.Popen(
            [sys.executable, "-P", "-u", "-m", MODULE, str(run.path)],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env=environment,
            start_new_session=True,
        )
    deadline = time.monotonic() + _BEGIN_S
    while not run.controller.exists():
        if controller.poll() is not None or time.monotonic() > deadline:
            controller.kill()
            tail = log_path.read_text(encoding="utf-8", errors="replace").strip()[-2000:]
            raise RefusalError(
                f"the job's controller did not start\n{tail}", hint=f"see {log_path}"
            )
        time.sleep(0.01)
    # It is left on its own from here on; without this Python warns that it still runs.
    controller.returncode = 0
    return Launched(job_id=job_id_of(run))


def _shell_of(run: RunFolder) -> tuple[str, dict[str, str]]:
    """Return the host and the environment of the shell that submitted a queued job.

    Raises:
        UserError: they cannot be read, or somebody else may have written them.
    """
    try:
        # Not as other documents: half of a surrogate pair stands for a byte here.
        kept = json.loads(reading.read_bytes(run.shell, own=True))
        host, variables = str(kept["host"]), dict(kept["variables"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        host, variables = "", {}
    if not host or not all(isinstance(text, str) for item in variables.items() for text in item):
        raise UserError(f"no readable {run.shell}", hint="submit the job again")
    return host, variables


def _state_of(run: RunFolder, submission: Submission) -> SchedulerState | None:
    ended = _ended(run)
    if ended is not None:
        return ended
    controller = _controller(run)
    if controller is None:
        log = run.submitit / "controller.log"
        return state_without_processes(run, submission, log, _START_TIMEOUT_S)
    if controller.host != socket.gethostname():
        return None
    if _lives(controller, run):
        return SchedulerState(state=JobState.RUNNING, word="running", start=_began_at(run))
    # It may have written its last word and left between the two looks.
    return _ended(run)


def _ended(run: RunFolder) -> SchedulerState | None:
    end = record_of(_End, files.read_json(run.ended))
    if end is None:
        return None
    return SchedulerState(state=end.state, word="ended", reason=end.reason, exit_code=end.exit_code)


def _began_at(run: RunFolder) -> float | None:
    """Return when the controller wrote that it is there."""
    try:
        return run.controller.stat().st_mtime
    except OSError:
        return None


def _is_gone(run: RunFolder) -> bool:
    """Tell whether no process of the job is left on this machine, nor its controller."""
    controller = _controller(run)
    if controller is not None and _lives(controller, run):
        return False
    return not any(map(processes.alive, processes.marked(run.marker(), prefix=True)))


def _controller(run: RunFolder) -> _Controller | None:
    return record_of(_Controller, files.read_json(run.controller, own=True))


def _lives(controller: _Controller, run: RunFolder) -> bool:
    """Tell whether this very controller lives: no later process, and none of another job.

    A file may say anything, so the process itself has to say that it controls this run.
    """
    arguments = processes.command_of(controller.pid)
    return (
        controller.lives
        and MODULE in {new_name(word) or word for word in arguments}
        and os.path.realpath(arguments[-1]) == os.path.realpath(run.path)
    )


EXECUTOR = LocalExecutor()
