"""What the run folder of a local job tells of it, and how such a job is ended.

Its controller is the only writer of `controller.json` and `ended.json`.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from clusterkit.core import files, processes
from clusterkit.core.bounds import ExitCode, Pid
from clusterkit.core.errors import RemoteError
from clusterkit.core.model import JobState
from clusterkit.core.records import record_of
from clusterkit.executors.base import SchedulerState
from clusterkit.executors.held import began_at, state_of_held
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.executors.run.submit_journal import ProcessId

MODULE = "clusterkit.executors.local.controller"
"""What Python runs as the controller of a job, with the run folder as its only argument."""
_START_PATIENCE_S = 30.0
"""How long a submitted job may be without a controller before nobody believes in it."""


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


def log_of(run: RunFolder) -> Path:
    """Return the file of what the controller itself says."""
    return run.submitit / "controller.log"


def state_of(run: RunFolder, submission: Submission) -> SchedulerState | None:
    """Return the state of a job that has, or had, a controller on this machine."""
    ended = _ended(run)
    if ended is not None:
        return ended
    controller = _controller(run)
    if controller is None:
        held = state_of_held(run)
        if held is not None:
            return held
        young = time.time() - began_at(submission, log_of(run)) < _START_PATIENCE_S
        return SchedulerState(state=JobState.PENDING, word="starting") if young else None
    if controller.host != socket.gethostname():
        return None
    if _lives(controller, run):
        return SchedulerState(state=JobState.RUNNING, word="running")
    # It may have written its last word and left between the two looks.
    return _ended(run)


def _ended(run: RunFolder) -> SchedulerState | None:
    end = record_of(_End, files.read_json(run.ended))
    if end is None:
        return None
    return SchedulerState(state=end.state, word="ended", reason=end.reason, exit_code=end.exit_code)


def end(run: RunFolder, submission: Submission) -> None:
    """Ask the controller to end the job; end its nodes directly where it has gone.

    Raises:
        RemoteError: the job runs on another machine.
    """
    if run.ended.exists() or (run.held.exists() and not run.controller.exists()):
        return
    controller = _await_controller(run, submission)
    if controller is None:
        return  # never begun: a controller that still comes finds the job cancelled
    _require_here(controller, run)
    if _lives(controller, run):
        processes.send(controller.pid, signal.SIGTERM)
    else:
        processes.kill_all(lambda: processes.marked(run.marker(), prefix=True))
        ended = {"state": "cancelled", "exit_code": None, "reason": "its controller had gone"}
        files.write_json(run.ended, ended)


def is_gone(run: RunFolder) -> bool:
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
    return controller.lives and _controls(controller.pid, run)


def _controls(pid: int, run: RunFolder) -> bool:
    words = processes.command_of(pid)
    return MODULE in words and os.path.realpath(words[-1]) == os.path.realpath(run.path)


def _await_controller(run: RunFolder, submission: Submission) -> _Controller | None:
    deadline = min(submission.submitted_at + _START_PATIENCE_S, time.time() + 5.0)
    while (controller := _controller(run)) is None and time.time() < deadline:
        time.sleep(0.05)
    return controller


def _require_here(controller: _Controller, run: RunFolder) -> None:
    host = controller.host
    if host != socket.gethostname():
        raise RemoteError(
            f"the job runs on {host}, and this is {socket.gethostname()}",
            hint=f"on {host}: clusterkit cancel {run.path}",
        )
