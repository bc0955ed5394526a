"""`diagnose`: why a job failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clusterkit.api.jobs import JobHandle, find_job
from clusterkit.core.files import versioned
from clusterkit.observe.diagnose.document import advice_for, finding_document, job_document
from clusterkit.observe.diagnose.job import JobDiagnosis, diagnose_run
from clusterkit.observe.diagnose.rules import load_rules


@dataclass(frozen=True, slots=True)
class Diagnosed:
    """What happened to a job."""

    found: JobDiagnosis

    @property
    def document(self) -> dict[str, Any]:
        """What `clusterkit diagnose JOB --json` prints."""
        return versioned(job_document(self.found, advice_for(self.found)))

    @property
    def cause(self) -> dict[str, Any] | None:
        """The first failure: its `title`, `says`, `do`, `node`, `rank`; None without one."""
        cause = self.found.diagnosis.cause
        return None if cause is None else finding_document(cause)

    def __repr__(self) -> str:
        """Show what happened."""
        cause = self.found.diagnosis.cause
        return f"<diagnosis: {cause.title if cause else 'no failure found'}>"


def diagnose(job: str | JobHandle = "latest") -> Diagnosed:
    """Say why a job failed, from the logs of all its ranks: what happened, where, what to do.

    Args:
        job: What `submit` returned, or a word as of `find_job`.

    Raises:
        UserError: there is no such job, or several.
    """
    handle = find_job(job) if isinstance(job, str) else job
    return Diagnosed(diagnose_run(handle.run, load_rules(())))
