"""Run folders of jobs that ended long ago, as a listing finds them."""

from __future__ import annotations

import time
from pathlib import Path

from clusterkit.core.model import ClusterKind, ClusterSpec, JobState, JobStatus
from clusterkit.executors.run import runfolder
from clusterkit.executors.run.runfolder import Submission

JOBS = 500


def write_old_jobs(run_dir: Path, *, jobs: int = JOBS) -> None:
    """Write the folders of failed jobs of 64 nodes, an hour apart."""
    cluster = ClusterSpec(name="lab", kind=ClusterKind.SLURM, run_dir=str(run_dir))
    names = tuple(f"n{number}" for number in range(64))
    status = JobStatus(
        state=JobState.FAILED, exit_code=1, reason="n7: rank 63 exited with 1", nodes=names
    )
    for number in range(jobs):
        at = time.time() - 3600 * (jobs - number)
        run = runfolder.create(cluster, "pretrain", now=at)
        submission = Submission(
            run_id=run.run_id, name="pretrain", cluster="lab", kind=ClusterKind.SLURM,
            framework="torchrun", nodes=64, tasks=64, submitted_at=at, job_id=str(4000 + number),
            command_line=("clusterkit", "submit", "--nodes", "64", "train.py"),
        )  # fmt: skip
        runfolder.write_submission(run, submission)
        runfolder.write_state(run, submission, status)
