"""Why a job of Slurm waits, in plain words, with Slurm's own in brackets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from clusterkit.core.data import read_table

_WORD = re.compile(r"(?:\A|(?<=: ))(?:[A-Z]\w+|[a-z ]+ held(?: state)?)")
"""A reason stands alone, before what nodes it is about, or behind `attempt 2 of 3 is queued: `.

It is a word, or `launch failed requeued held` and the like.
"""


def in_words(reason: str, job_id: str) -> str:
    """Return the reason of a job that waits; as it is where Slurm's word is not known.

    >>> in_words("Priority", "7")
    'jobs with a higher priority go first (Priority)'
    """
    return _WORD.sub(lambda word: _explained(word[0], job_id), reason)


def meaning(word: str, job_id: str) -> str | None:
    """Return the plain words for one reason of Slurm; None where it is not known."""
    found = next((words for known, words in _reasons() if known.fullmatch(word)), None)
    return found.format(job=job_id) if found else None


def reasons() -> Mapping[str, str]:
    """Return the plain words for each reason; what differs in many of them is `...`."""
    return {
        re.sub(r"\\w[+*]", "...", reason): words.format(job="JOB")
        for known, words in _reasons()
        for reason in known.pattern.split("|")
    }


def _explained(word: str, job_id: str) -> str:
    found = meaning(word, job_id)
    return f"{found} ({word})" if found else word


@cache
def _reasons() -> tuple[tuple[re.Pattern[str], str], ...]:
    rows = read_table(__file__, "pending_reasons.tsv")
    return tuple((re.compile(row["reason"], re.ASCII), row["words"]) for row in rows)
