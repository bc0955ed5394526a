"""What the run folder of a local job tells of it, and how such a job is ended.

Its controller is the only writer of `controller.json` and `ended.json`.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from clusterkit import files, processes
from clusterkit.errors import RemoteError
from clusterkit.executors.base import SchedulerState
from clusterkit.executors.holding import began_at, state_of_held
from clusterkit.model import JobState
from clusterkit.records import record_of
from clusterkit.runfolder import RunFolder, Submission

_START_PATIENCE_S = 30.0
"""How long a submitted job may be without a controller before nobody believes in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """What stands in `ended.json`."""

    state: JobState
    exit_code: int | None
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
    controller = files.read_json(run.controller)
    if controller is None:
        held = state_of_held(run)
        if held is not None:
            return held
        young = time.time() - began_at(submission, log_of(run)) < _START_PATIENCE_S
        return SchedulerState(state=JobState.PENDING, word="starting") if young else None
    if controller.get("host") != socket.gethostname():
        return None
    if _living(controller) is not None:
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
    pid = _living(controller)
    if pid is not None:
        processes.send(pid, signal.SIGTERM)
    else:
        processes.kill_all(lambda: processes.marked(run.marker(), prefix=True))
        ended = {"state": "cancelled", "exit_code": None, "reason": "its controller had gone"}
        files.write_json(run.ended, ended)


def _living(controller: Mapping[str, object]) -> int | None:
    """Return the pid of this very controller; None where it is gone and the number is reused."""
    pid = controller.get("pid")
    same = (
        isinstance(pid, int)
        and controller.get("boot_id") == processes.boot_id()
        and controller.get("start_time") == processes.start_time(pid)
        and processes.alive(pid)
    )
    return pid if same and isinstance(pid, int) else None


def _await_controller(run: RunFolder, submission: Submission) -> Mapping[str, object] | None:
    deadline = min(submission.submitted_at + _START_PATIENCE_S, time.time() + 5.0)
    while (controller := files.read_json(run.controller)) is None and time.time() < deadline:
        time.sleep(0.05)
    return controller


def _require_here(controller: Mapping[str, object], run: RunFolder) -> None:
    host = controller.get("host")
    if host != socket.gethostname():
        raise RemoteError(
            f"the job runs on {host}, and this is {socket.gethostname()}",
            hint=f"on {host}: clusterkit cancel {run.path}",
        )
