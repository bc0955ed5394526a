"""Tell whether Slurm ends this job because it takes its nodes for another one.

Where a partition has a GraceTime, a preempted job is told to end like any other, and Slurm calls it
failed if it does so in time. Only the job's record says why, and Slurm forgets that within minutes.
"""

from __future__ import annotations

import os
import re

from clusterkit.core.commands import run_command

_TAKEN = re.compile(r"\bPreemptTime=\d")
_PATIENCE_S = 3.0
"""For Slurm's answer: the time until it kills the job is running."""


def is_preempted() -> bool:
    """Return whether `scontrol show job` names a time at which this job was preempted."""
    job_id = os.environ.get("SLURM_JOB_ID")
    if job_id is None:
        return False
    answer = run_command(["scontrol", "show", "job", "-o", job_id], timeout_s=_PATIENCE_S)
    return answer.code == 0 and _TAKEN.search(answer.output) is not None
