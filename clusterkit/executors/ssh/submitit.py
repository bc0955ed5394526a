"""The submitit side of jobs over ssh, for any Python function.

Registered as a submitit plugin (entry points of the group `submitit` in pyproject.toml), so that
`submitit.AutoExecutor(folder, cluster="ssh")` finds it. Every process that uses submitit imports
this module, also those that never go over ssh: what loads slowly is imported where it is used.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any, ClassVar

from submitit.core import core, utils
from submitit.core.job_environment import JobEnvironment, SignalHandler
from submitit.core.utils import JobPaths, UncompletedJobError

from clusterkit.core import files, ownership
from clusterkit.executors.base import REQUEUED
from clusterkit.executors.submitit_job import RunJob, dump_private


class SshJobEnvironment(JobEnvironment):
    """What `submitit.JobEnvironment()` tells a function on a node."""

    _env: ClassVar[dict[str, str]] = {
        "job_id": "SUBMITIT_SSH_JOB_ID",
        "num_tasks": "SUBMITIT_SSH_NTASKS",
        "num_nodes": "SUBMITIT_SSH_JOB_NUM_NODES",
        "node": "SUBMITIT_SSH_NODEID",
        "global_rank": "SUBMITIT_SSH_GLOBALID",
        "local_rank": "SUBMITIT_SSH_LOCALID",
    }

    def _handle_signals(self, paths: JobPaths, submission: utils.DelayedSubmission) -> None:
        """Unblock SIGUSR2, blocked until here; a function without a checkpoint continues."""
        super()._handle_signals(paths, submission)
        handler = SignalHandler(self, paths, submission)
        has_one = hasattr(submission.function, "checkpoint")
        heed = handler.checkpoint_and_try_requeue if has_one else handler.bypass
        for signum in {signal.SIGUSR2, self._usr_sig()}:
            signal.signal(signum, heed)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})

    def _requeue(self, countdown: int) -> None:
        """End so that the node starts the function again, from the checkpoint that was written.

        Raises:
            UncompletedJobError: other nodes are at work for the job, and would not start again.
        """
        if self.num_nodes > 1:
            raise UncompletedJobError(
                f"Job not requeued because: it has {self.num_nodes} nodes, and over ssh only jobs "
                f"of one node are. Its checkpoint is {self.paths.submitted_pickle}"
            )
        print(f"clusterkit: starting again ({countdown} time limits left)", flush=True)
        sys.exit(REQUEUED)


class DelayedSubmission(utils.DelayedSubmission):
    """A call on its way to a node; submitit knows its class by this name."""

    def dump(self, filepath: str | Path) -> None:
        """Write it, readable by the owner only."""
        dump_private(self, filepath)


class SshExecutor(core.PicklingExecutor):
    """Run Python functions on the machines of a cluster of kind `ssh`.

    Parameters: `nodes`, `gpus_per_node` (slots of each node, 1 by default), `timeout_min`, `name`,
    one task per node; and `ssh_cluster` (a name in clusterkit.yaml; else its default, or its only
    cluster of kind ssh), `ssh_hosts` (a hostlist, instead of all hosts of the cluster). Nodes whose
    slots are taken are passed over. `folder` has to be shared by all nodes.
    """

    job_class = RunJob

    @classmethod
    def affinity(cls) -> int:
        """Never be what AutoExecutor chooses by itself."""
        return 0

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        return {"cluster", "hosts"}

    @classmethod
    def _equivalence_dict(cls) -> None:
        return None

    def _num_tasks(self) -> int:
        return int(self.parameters.get("nodes", 1))

    def _internal_process_submissions(
        self, delayed_submissions: list[utils.DelayedSubmission]
    ) -> list[core.Job[Any]]:
        """Submit all of them, or none: who gets no job back could not end what was started.

        Nobody else can write their pickles.
        """
        folder = JobPaths.get_first_id_independent_folder(self.folder)
        files.create_folder(folder)
        ownership.require_own(folder, use="keep pickles in it, which run as you")
        started: list[core.Job[Any]] = []
        try:
            for delayed in delayed_submissions:
                delayed.__class__ = DelayedSubmission
                started += super()._internal_process_submissions([delayed])
        except BaseException:
            for job in started:
                job.cancel()
            raise
        return started

    def _submit_command(self, command: str) -> RunJob:
        del command
        from clusterkit.executors.ssh import submit  # noqa: PLC0415 - paramiko loads slowly

        return submit.start_function(self.folder, self.parameters, self._num_tasks())

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        del command, uid
        return ""

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        del submission_file_path
        return []

    @staticmethod
    def _get_job_id_from_submission_command(string: str | bytes) -> str:
        return string if isinstance(string, str) else string.decode()
