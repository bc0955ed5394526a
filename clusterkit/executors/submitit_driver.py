"""Drive a submitit executor, whose own files may fail to be written at any moment."""

from __future__ import annotations

from typing import Any, Protocol

from clusterkit.core import files
from clusterkit.core.errors import UserError
from clusterkit.executors.base import Launched
from clusterkit.executors.node import LaunchTask
from clusterkit.executors.run.runfolder import RunFolder


class Submitting(Protocol):
    """A submitit executor of ours: it remembers what came of handing the job over."""

    launched: Launched | None

    def submit(self, fn: LaunchTask) -> Any:
        """Pickle the task, start the job, and give the pickle the name of the job."""


def launch_by(executor: Submitting, run: RunFolder) -> Launched:
    """Submit the task of `run`.

    Raises:
        UserError: the task cannot be written; nothing was started.
    """
    try:
        with files.explained(run.submitit):
            executor.submit(LaunchTask(str(run.path)))
    except UserError:
        # With the job under way, all that was left was to rename the pickle; the workers take
        # it under its first name as well.
        if executor.launched is None:
            raise
    if executor.launched is None:
        raise AssertionError("submitit has submitted nothing")
    return executor.launched
