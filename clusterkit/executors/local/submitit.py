"""The submitit side of local jobs: pickle the task, start the controller, hand out a Job."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Collection

from clusterkit.core import files
from clusterkit.core.model import LaunchPlan
from clusterkit.executors.base import (
    Launched,
    RefusalError,
    scrubbed_environment,
    tasks_of,
)
from clusterkit.executors.local import runs
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.executors.submitit_driver import launch_by
from clusterkit.executors.submitit_job import DirectExecutor, RunJob

_BEGIN_S = 60.0


class LocalExecutor(DirectExecutor):
    """A submitit executor with several nodes on one machine, which submitit's own has not."""

    def __init__(
        self,
        run: RunFolder,
        tasks: int,
        environment: dict[str, str],
        handing_over: Callable[[], None],
    ) -> None:
        """Submit into the folder of `run`."""
        super().__init__(run.submitit)
        self.run = run
        self.tasks = tasks
        self.environment = environment
        self.handing_over = handing_over
        self.launched: Launched | None = None
        """What came of it, once the controller is there."""

    def _num_tasks(self) -> int:
        return self.tasks

    def _submit_command(self, command: str) -> RunJob:
        del command
        with files.explained(self.run.submitit):
            _begin(self.run, self.environment, self.handing_over)
        job_id = runs.job_id_of(self.run)
        self.launched = Launched(job_id=job_id)
        return RunJob(folder=self.folder, job_id=job_id, tasks=list(range(self.tasks)))


def launch(
    plan: LaunchPlan,
    run: RunFolder,
    *,
    hidden: Collection[str],
    handing_over: Callable[[], None],
) -> Launched:
    """Start the job in `run`.

    Raises:
        UserError: the task cannot be written.
        RefusalError: its controller did not come up.
    """
    executor = LocalExecutor(run, tasks_of(plan), scrubbed_environment(hidden), handing_over)
    return launch_by(executor, run)


def _begin(run: RunFolder, environment: dict[str, str], handing_over: Callable[[], None]) -> None:
    """Start the controller in a session of its own, so that it outlives this one."""
    log_path = runs.log_of(run)
    log = files.open_for_append(log_path)
    with open(log, "ab") as stream:  # noqa: PTH123 - a descriptor, not a path
        handing_over()
        controller = subprocess.Popen(
            [sys.executable, "-P", "-u", "-m", runs.MODULE, str(run.path)],
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
