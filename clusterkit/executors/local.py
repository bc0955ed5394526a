"""Jobs on this machine: every node is a process group with a loopback address of its own.

No scheduler: a controller process, detached from the client, starts the nodes and looks after
them. It is the only writer of `controller.json` and `ended.json`, from which its state is read.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from clusterkit import files, processes
from clusterkit.errors import RemoteError
from clusterkit.executors.base import Launched, SchedulerState
from clusterkit.model import JobState, LaunchPlan
from clusterkit.runfolder import RunFolder, Submission

_START_PATIENCE_S = 30.0
"""How long a submitted job may be without a controller before nobody believes in it."""


@dataclass(frozen=True, slots=True)
class LocalJobs:
    """The executor of kind `local`."""

    def check_limits(self, plan: LaunchPlan) -> None:
        """Accept everything: nodes on one machine share what there is."""

    def launch(self, plan: LaunchPlan, run: RunFolder, *, hidden: Collection[str]) -> Launched:
        """Start the controller of this job and wait until it has begun."""
        from clusterkit.executors import local_executor  # noqa: PLC0415 - submitit loads slowly

        return Launched(job_id=local_executor.launch(plan, run, hidden=hidden))

    def find_lost(self, run: RunFolder) -> str | None:
        """Return the job id, which follows from the run id."""
        return job_id_of(run) if run.controller.exists() else None

    def states(self, runs: Mapping[RunFolder, Submission]) -> Mapping[RunFolder, SchedulerState]:
        """Return the state of each job that has, or had, a controller on this machine."""
        found = {run: _state(run, submission) for run, submission in runs.items()}
        return {run: state for run, state in found.items() if state is not None}

    def exit_code(self, run: RunFolder, submission: Submission) -> int | None:
        """Return nothing: the controller has said what there is to say."""

    def cancel(self, run: RunFolder, submission: Submission) -> None:
        """Ask the controller to end; end the nodes directly where there is none any more."""
        if run.ended.exists():
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


EXECUTOR = LocalJobs()


def job_id_of(run: RunFolder) -> str:
    """Return the job id of a local run."""
    return f"local-{run.key}"


def _state(run: RunFolder, submission: Submission) -> SchedulerState | None:
    ended = files.read_json(run.ended)
    if ended is not None:
        return SchedulerState(
            state=JobState(ended.get("state", "unknown")),
            word="ended",
            reason=ended.get("reason"),
            exit_code=ended.get("exit_code"),
        )
    controller = files.read_json(run.controller)
    if controller is None:
        young = time.time() - submission.submitted_at < _START_PATIENCE_S
        return SchedulerState(state=JobState.PENDING, word="starting") if young else None
    if controller.get("host") != socket.gethostname():
        return None
    if _living(controller) is not None:
        return SchedulerState(state=JobState.RUNNING, word="running")
    # It may have written its last word and left between the two looks.
    return _state(run, submission) if run.ended.exists() else None


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
