"""What Slurm says of jobs: squeue first, because it needs no accounting; sacct for older ones.

squeue lists ended jobs too, for as long as slurmctld keeps them (MinJobAge, five minutes unless
the site says otherwise). Job ids are used again after a reset of the controller, so a job counts
as ours only where its script (squeue) or its name (sacct) is ours too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from clusterkit.core.commands import run_command
from clusterkit.core.errors import RemoteError
from clusterkit.core.hosts import hostlist
from clusterkit.core.model import JobState
from clusterkit.executors.base import SchedulerState
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.executors.slurm import node_failures

SCRIPT = "job.sbatch"
"""The rendered file that is submitted, word for word."""

_STATES = {
    "PENDING": JobState.PENDING,
    "CONFIGURING": JobState.PENDING,
    "RUNNING": JobState.RUNNING,
    "COMPLETING": JobState.RUNNING,
    "STAGE_OUT": JobState.RUNNING,
    "SUSPENDED": JobState.RUNNING,
    "STOPPED": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "RESIZING": JobState.RUNNING,
    "COMPLETED": JobState.SUCCEEDED,
    "FAILED": JobState.FAILED,
    "NODE_FAIL": JobState.FAILED,
    "OUT_OF_MEMORY": JobState.FAILED,
    "BOOT_FAIL": JobState.FAILED,
    "LAUNCH_FAILED": JobState.FAILED,
    "RECONFIG_FAIL": JobState.FAILED,
    "TIMEOUT": JobState.TIMEOUT,
    "DEADLINE": JobState.TIMEOUT,
    "CANCELLED": JobState.CANCELLED,
    "REVOKED": JobState.CANCELLED,
    "PREEMPTED": JobState.PREEMPTED,
    "REQUEUED": JobState.REQUEUED,
    "REQUEUE_FED": JobState.REQUEUED,
    "REQUEUE_HOLD": JobState.REQUEUED,
    "SPECIAL_EXIT": JobState.REQUEUED,
}
"""Every state of squeue(1) and sacct(1), Slurm 20.11 to 25.05."""

_REASONS = {
    "NODE_FAIL": node_failures.LOST,
    "OUT_OF_MEMORY": "out of memory",
    "BOOT_FAIL": node_failures.NOT_BOOTED,
    "LAUNCH_FAILED": "Slurm could not start it",
    "RECONFIG_FAIL": "a node could not be reconfigured",
    "DEADLINE": "its deadline passed",
}
_SQUEUE_FORMAT = "%A|%T|%r|%o"
_SACCT_FIELDS = "JobIDRaw,State,ExitCode,JobName"
_UNKNOWN_ID = "invalid job id"
"""squeue's error where the only id it was asked for is not known any more."""
DAY_S = 86400


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a job must be for its id to mean ours."""

    script: Path
    name: str
    since: float
    """When it was submitted, in seconds since the epoch."""

    @classmethod
    def of(cls, run: RunFolder, submission: Submission) -> Wanted:
        """Return what the job of this run must be."""
        return cls(script=run.path / SCRIPT, name=submission.name, since=submission.submitted_at)


def query(wanted: Mapping[str, Wanted]) -> dict[str, SchedulerState]:
    """Return the state of every job of these ids that Slurm still knows and that is ours.

    Raises:
        RemoteError: squeue is missing or could not ask; that a job has gone is another answer.
    """
    if not wanted:
        return {}
    ids = ",".join(wanted)
    answer = run_command(["squeue", "-h", "-t", "all", "-j", ids, "-o", _SQUEUE_FORMAT])
    if answer.code != 0 and _UNKNOWN_ID not in answer.errors.lower():
        raise RemoteError(f"Slurm does not answer: {answer.errors.strip() or 'squeue failed'}")
    found = parse_squeue(answer.output, wanted)
    missing = {job_id: job for job_id, job in wanted.items() if job_id not in found}
    if missing:
        found |= _query_accounting(missing)
    lost = [job_id for job_id, said in found.items() if said.reason in node_failures.OF_NODES]
    for job_id in lost:
        why = node_failures.explain(job_id)
        found[job_id] = replace(found[job_id], reason=f"{found[job_id].reason}: {why}")
    return found


def nodes_of(job_id: str) -> tuple[str, ...]:
    """Return the nodes of a job that runs, in Slurm's order.

    Raises:
        RemoteError: squeue does not say which they are.
    """
    answer = run_command(["squeue", "-h", "-t", "R", "-j", job_id, "-o", "%N"])
    nodes = hostlist.expand(answer.output.strip(), source="squeue") if not answer.code else ()
    if not nodes:
        said = answer.errors.strip() or "squeue lists none"
        raise RemoteError(
            f"Slurm does not say on which nodes {job_id} runs: {said}",
            hint=f"squeue -j {job_id} shows what it says",
        )
    return nodes


def exit_code_of(job_id: str) -> int | None:
    """Return the exit code that Slurm holds of the batch script, as a shell would give it."""
    answer = run_command(["scontrol", "show", "job", "-o", job_id])
    match = re.search(r"\bExitCode=(\d+):(\d+)", answer.output)
    return shell_code(match[1], match[2]) if match else None


def parse_squeue(text: str, wanted: Mapping[str, Wanted]) -> dict[str, SchedulerState]:
    """Read `squeue -h -t all -o "%A|%T|%r|%o"`; lines that are no rows are passed over."""
    found = {}
    for line in text.splitlines():
        parts = line.split("|", 3)
        if len(parts) != 4 or parts[0] not in wanted:
            continue
        job_id, word, reason, command = (part.strip() for part in parts)
        if is_script(command, wanted[job_id].script):
            found[job_id] = state_of(word, reason=reason)
    return found


def parse_sacct(text: str, wanted: Mapping[str, Wanted]) -> dict[str, SchedulerState]:
    """Read `sacct -n -X -P -o JobIDRaw,State,ExitCode,JobName`."""
    found = {}
    for line in text.splitlines():
        parts = line.split("|", 3)
        if len(parts) != 4 or parts[0] not in wanted:
            continue
        job_id, word, code, name = parts
        if name == wanted[job_id].name:
            status, _, signum = code.partition(":")
            known = status.isdigit() and signum.isdigit()
            found[job_id] = state_of(word, code=shell_code(status, signum) if known else None)
    return found


def is_script(command: str, script: Path) -> bool:
    """Tell whether what Slurm calls the command of a job is this script, by whatever path.

    The folder of a run has a name that no other has; only paths with that name are resolved,
    which takes a look at the disk.
    """
    if command == str(script):
        return True
    same_end = Path(command).parts[-2:] == script.parts[-2:]
    return same_end and os.path.realpath(command) == os.path.realpath(script)


def state_of(word: str, *, reason: str = "", code: int | None = None) -> SchedulerState:
    """Translate a state as Slurm prints it, such as `CANCELLED by 1000` or `NODE_FAIL`."""
    first = word.split(maxsplit=1)[0].rstrip("+") if word.split() else ""
    state = _STATES.get(first, JobState.UNKNOWN)
    said = reason if reason not in {"None", "(null)", ""} else None
    return SchedulerState(
        state=state,
        word=first,
        reason=_REASONS.get(first, said if state is not JobState.SUCCEEDED else None),
        exit_code=code if state.final else None,
    )


def shell_code(status: str, signum: str) -> int:
    """Return Slurm's `status:signal` as a shell would: 128 + N for a signal.

    Slurm writes a batch script that ended with 143 as `143:0` or `0:15`, by release.
    """
    return 128 + int(signum) if int(signum) else int(status)


def _query_accounting(wanted: Mapping[str, Wanted]) -> dict[str, SchedulerState]:
    """Ask sacct; where accounting is disabled, as at many small sites, that is no answer.

    Only how a job ended counts. A job that squeue does not list, and that is still running here, is
    one whose end never reached the database (a "runaway job"): it would run for ever.
    """
    earliest = min(job.since for job in wanted.values()) - DAY_S
    start = datetime.fromtimestamp(earliest, tz=UTC).strftime("%Y-%m-%d")
    command = ["sacct", "-n", "-X", "-P", "-S", start, "-j", ",".join(wanted)]
    answer = run_command([*command, "-o", _SACCT_FIELDS])
    told = parse_sacct(answer.output, wanted) if answer.code == 0 else {}
    # Without Slurm's word for it: what is only in the database does not start again.
    return {job_id: replace(said, word="") for job_id, said in told.items() if said.state.final}
