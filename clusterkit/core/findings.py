"""Verdicts and findings: what preflight, the lint and the topology reader answer with."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How a check ended. `unknown` is never `pass`, `skip` is never `fail`."""

    SKIP = "skip"
    """It does not apply: the machine does not have that part."""
    PASS = "pass"  # noqa: S105 - a verdict
    UNKNOWN = "unknown"
    """It could not be determined: the probe did not run, hung, or answered in no known way."""
    WARN = "warn"
    FAIL = "fail"

    @property
    def severity(self) -> int:
        """Rank for sorting, worst last."""
        return _SEVERITY[self]


_SEVERITY = {verdict: rank for rank, verdict in enumerate(Verdict)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check concluded about some nodes."""

    id: str
    """Stable id of the check, such as `GPU004`."""
    check: str
    """Name of the check, such as `gpu-row-remap`."""
    verdict: Verdict
    nodes: tuple[str, ...]
    """In the order of the job; empty where the finding is about the job and not about nodes."""
    summary: str
    evidence: str = ""
    """The part of a probe's output, or the figures, that the verdict rests on."""
    hint: str = ""
    """What to do about it."""
    command: str = ""
    """The next command to type."""
