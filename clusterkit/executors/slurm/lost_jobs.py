"""Find the Slurm jobs whose ids nobody has written down, each by a comment that no other has.

Only jobs of this user count: others may write any comment into theirs.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping

from clusterkit.core.errors import RemoteError
from clusterkit.core.model import LaunchPlan
from clusterkit.core.timing import scaled
from clusterkit.executors.run.runfolder import RunFolder, Submission, listed
from clusterkit.executors.slurm.states import is_script, sacct, since, squeue

_SILENT_S = 45.0
"""How long a client waits for a Slurm that does not answer."""
_UNLISTED_S = scaled(5.0, 2.0)
"""How long for one that answers, and does not list the job."""
_PAUSE_S = scaled(1.0, 0.3)
_BATCH_LOG = re.compile(r"([0-9]{1,18})_batch\.out")


def comment_of(run: RunFolder) -> str:
    """Return the comment of the job of this run."""
    return f"clusterkit:{run.run_id}"


def may_comment(plan: LaunchPlan) -> bool:
    """Tell whether the comment is ours; else the job is known by the path of its script alone."""
    cluster = plan.cluster
    given = plan.directives.keys() | cluster.extra_directives.keys() | {*cluster.skip_directives}
    return "comment" not in given


def find(runs: Mapping[RunFolder, Submission]) -> dict[RunFolder, str]:
    """Return the jobs of those runs that have one, in one question for all of them.

    Raises:
        RemoteError: Slurm does not answer.
    """
    found = {run: job_id for run in runs if (job_id := _from_log(run)) is not None}
    missing = [run for run in runs if run not in found]
    if missing:
        found |= _listed(missing)
    missing = [run for run in missing if run not in found]
    if missing:
        found |= _accounted(missing, min(runs[run].submitted_at for run in missing))
    return found


def await_one(runs: Mapping[RunFolder, Submission]) -> str | None:
    """Return the job of the one run in `runs`, or None where Slurm does not list it in time."""
    deadline = time.monotonic() + _SILENT_S
    unlisted_since: float | None = None
    while True:
        try:
            found = find(runs)
        except RemoteError:
            found = None
        now = time.monotonic()
        if found:
            return next(iter(found.values()))
        if found is not None:
            unlisted_since = unlisted_since or now
        if now > deadline or (unlisted_since is not None and now - unlisted_since > _UNLISTED_S):
            return None
        time.sleep(_PAUSE_S)


def _from_log(run: RunFolder) -> str | None:
    """Return the id in the name of the batch script's own output, which Slurm creates."""
    names = (_BATCH_LOG.fullmatch(name) for name in listed(run.submitit))
    return min((match[1] for match in names if match is not None), key=int, default=None)


def _listed(runs: Iterable[RunFolder]) -> dict[RunFolder, str]:
    output = squeue("-a", "-u", str(os.geteuid()), "-o", "%A|%o|%k")
    rows = [line.partition("|")[::2] for line in output.splitlines()]
    jobs = [(job_id, rest) for job_id, rest in rows if job_id.isdigit()]
    found: dict[RunFolder, str] = {}
    for run in runs:
        ours = [job for job, rest in jobs if rest.endswith(f"|{comment_of(run)}")]
        ours = ours or [job for job, rest in jobs if _has_script(rest, run)]
        if ours:
            # Submitted once; a later one was submitted by hand.
            found[run] = min(ours, key=int)
    return found


def _has_script(command_and_comment: str, run: RunFolder) -> bool:
    script = run.sbatch
    if command_and_comment.startswith(f"{script}|"):
        return True
    return is_script(command_and_comment.rpartition("|")[0], script)


def _accounted(runs: Iterable[RunFolder], began_at: float) -> dict[RunFolder, str]:
    """Ask accounting for jobs that have ended and are forgotten; no answer where there is none."""
    output = sacct("-u", str(os.geteuid()), "-S", since(began_at), "-o", "JobIDRaw,SubmitLine")
    found: dict[RunFolder, str] = {}
    for line in output.splitlines():
        job_id, _, submitted = line.partition("|")
        arguments = submitted.split()
        for run in runs:
            marks = (f"--comment={comment_of(run)}", str(run.sbatch))
            ours = marks[0] in arguments or submitted.endswith(f" {marks[1]}")
            if ours and job_id.isdigit():
                found.setdefault(run, job_id)
    return found
