"""Fold jobs that failed for the same reason. Pure."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable

from clusterkit.observe.diagnose.job import JobDiagnosis

_BETWEEN_WORDS = re.compile(r"[^\w.+-]+")


def by_cause(found: Iterable[JobDiagnosis]) -> list[tuple[JobDiagnosis, ...]]:
    """Return these jobs in groups, the largest first, each in the order in which they came.

    Two jobs are in one group where the same rule fired and its texts are alike but for words with
    digits in them: sizes, values of the sweep, ranks, nodes, folders. Where no line of a log says
    why, they have to have ended in the same way, too.
    """
    groups: dict[Hashable, list[JobDiagnosis]] = {}
    for one in found:
        groups.setdefault(_cause(one), []).append(one)
    return sorted(map(tuple, groups.values()), key=len, reverse=True)


def _cause(one: JobDiagnosis) -> Hashable:
    status, cause = one.job.status, one.diagnosis.cause
    ending = (status.state, status.exit_code, _alike(status.reason or ""))
    if cause is None:
        return ending
    known = (cause.rule, _alike(cause.title), _alike(cause.says))
    return known if cause.evidence.line else (known, status.state, status.exit_code)


def _alike(text: str) -> tuple[str, ...]:
    words = _BETWEEN_WORDS.split(text)
    return tuple("#" if any(map(str.isdigit, word)) else word for word in words)
