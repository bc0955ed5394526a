"""A diagnosis as programs read it, of `--json` and of `clusterkit.diagnose()`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from clusterkit.core.records import picked
from clusterkit.jobs.document import document_of
from clusterkit.observe.diagnose.job import Advice, JobDiagnosis, advise
from clusterkit.observe.diagnose.verdict import Diagnosis, Finding


def advice_for(found: JobDiagnosis) -> Advice | None:
    """Return what the engine's own hooks have to add to the cause."""
    cause = found.diagnosis.cause
    applies = cause is not None and cause.advice == "estimate"
    return advise(found.job.run) if applies else None


def job_document(found: JobDiagnosis, advice: Advice | None) -> dict[str, Any]:
    """Return what `--json` tells of a job and its diagnosis."""
    return {"job": document_of(found.job), **document(found.diagnosis, advice)}


def document(found: Diagnosis, advice: Advice | None) -> dict[str, Any]:
    """Return what `--json` tells of a diagnosis."""
    return {
        "found": found.cause is not None,
        "cause": finding_document(found.cause) if found.cause is not None else None,
        "advice": {"command": advice.command, "answer": advice.answer} if advice else None,
        "others": [finding_document(one) for one in found.others],
        **picked(found, "notes", "files", "bytes", "step"),
    }


def finding_document(found: Finding) -> dict[str, Any]:
    """Return what `--json` tells of one failure."""
    shown = found.evidence
    lines = {"file": str(shown.file), "line": shown.line or None, "text": shown.text}
    names = (
        "rule", "role", "title", "says", "do", "node", "rank", "hardware", "nodes", "ranks",
        "count",
    )  # fmt: skip
    return {
        **picked(found, *names),
        "time": None if found.time is None else moment(found.time).isoformat(),
        "evidence": {**lines, "before": shown.before, "after": shown.after},
    }


def moment(time: float) -> datetime:
    """Return a time in seconds since 1970 in the time zone of this machine."""
    return datetime.fromtimestamp(time, tz=UTC).astimezone()
