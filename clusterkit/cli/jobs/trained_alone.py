"""Warn of a job whose ranks have each trained by themselves, which "succeeds" as many times."""

from __future__ import annotations

import re
from collections import Counter

from clusterkit.core import files, reading
from clusterkit.core.model import JobState
from clusterkit.core.records import text_of
from clusterkit.jobs.state.load import Job
from clusterkit.launch.scripts.kinds import trains_alone
from clusterkit.launch.scripts.reading import read_path

_WINDOW = 1 << 18
"""Bytes at the end of each log that are looked at."""
_MOST_LOGS = 64
_PROGRESS = re.compile(r"(?i)\b(epoch|step|iter(?:ation)?)[\s:=#\[]{1,3}(\d{1,9})\b")
_LIGHTNING_END = re.compile(r"`Trainer\.fit` stopped: `max_\w+=\d+` reached")
"""Printed by the first rank alone (Lightning pytorch/loops/fit_loop.py, rank_zero_info)."""
_LIGHTNING_JOINED = "All distributed processes registered"


def trained_alone(job: Job) -> list[str]:
    """Return the lines of that warning; none where the ranks have joined, or nobody can tell.

    Looks at the end of each log, and at the script unless it was changed since the job began.
    """
    if job.status.state is not JobState.SUCCEEDED or job.run.foreign is not None:
        return []
    plan = files.read_json(job.run.plan) or {}
    slots = plan.get("slots")
    nodes = slots[: job.submission.nodes] if isinstance(slots, list) else []
    ranks = sum(count for count in nodes if isinstance(count, int))
    if ranks < 2 or job.submission.nodes > _MOST_LOGS:
        return []
    logs = (job.run.log(node) for node in range(job.submission.nodes))
    text = "\n".join(reading.read_end(log, _WINDOW).decode(errors="replace") for log in logs)
    if len(_LIGHTNING_END.findall(text)) >= ranks and _LIGHTNING_JOINED not in text:
        return [_warning(ranks, "Trainer.fit stopped", "Lightning joined no processes")]
    last = _last_progress(text, ranks)
    name, since = text_of(plan, "script") or "", job.submission.submitted_at
    script = read_path(text_of(plan, "workdir") or "", name, unchanged_since=since)
    if last is None or script is None or not trains_alone(script):
        return []
    return [_warning(ranks, last, f"nothing in {name} joins them")]


def _warning(ranks: int, last: str, why: str) -> str:
    return f"warning: each of the {ranks} ranks trained by itself: all printed `{last}`, and {why}"


def _last_progress(text: str, ranks: int) -> str | None:
    """Return the last epoch or step of a training, where every rank has printed it."""
    counts = Counter((found[1].lower(), int(found[2])) for found in _PROGRESS.finditer(text))
    last: dict[str, int] = {}
    for word, number in counts:
        last[word] = max(number, last.get(word, 0))
    complete = [f"{word} {n}" for word, n in last.items() if n and counts[word, n] >= ranks]
    return complete[0] if complete else None
