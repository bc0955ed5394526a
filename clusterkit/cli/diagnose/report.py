"""A diagnosis as people read it: what happened, where, what to do; evidence; what followed."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterkit.cli.diagnose.job_failure import LAST_ROWS, rows
from clusterkit.cli.frame import console

if TYPE_CHECKING:
    from clusterkit.observe.diagnose.job import Advice
    from clusterkit.observe.diagnose.verdict import Diagnosis, Finding

WIDTH = 80
_MOST_OTHERS = 8
_MOST_ROWS = 8
"""Of one text: a message that a script made may be a whole tensor."""


def answer(found: Finding, advice: Advice | None = None) -> Iterator[str]:
    """Yield the lines that say what happened, where, and what to do."""
    says = "" if found.says.rstrip(".").lower() == found.title.lower() else f". {found.says}"
    yield from _labelled("what", found.title + (says or "."), console.bold)
    yield from _labelled("where", _where(found))
    yield from _labelled("do", found.do)
    if advice is not None:
        yield from _labelled("", advice.answer or "the estimator says what fits:")
        yield f"       $ {advice.command}"


def evidence(found: Finding) -> Iterator[str]:
    """Yield where it stands, and the lines."""
    shown = found.evidence
    if not shown.line:
        yield f"{_short(shown.file)}"
        for row in rows(shown.text.removeprefix("clusterkit fact: "), 1):
            yield console.dim(row)
        return
    times = f"  ({found.count} lines like it)" if found.count > 1 else ""
    yield f"{_short(shown.file)}:{shown.line}{times}"
    for text, most in (
        *((text, 1) for text in shown.before),
        (shown.text, LAST_ROWS),
        *((text, 1) for text in shown.after),
    ):
        yield from (console.dim(row) for row in rows(_printable(text), most))


def others(found: Iterable[Finding]) -> Iterator[str]:
    """Yield a line for everything else that was found, with everybody to whom it happened."""
    from clusterkit.observe.diagnose.rules import Role
    from clusterkit.observe.diagnose.verdict import everybody

    every = list(found)
    for one in every[:_MOST_OTHERS]:
        who = everybody(one)
        times = f" ({one.count} lines)" if one.count > 1 else ""
        word = "then" if one.role is Role.CONSEQUENCE else "also"
        yield from _labelled(word, f"{who}: {one.title}{times}" if who else one.title + times)
    if len(every) > _MOST_OTHERS:
        yield from _labelled("", f"and {len(every) - _MOST_OTHERS} more: --json lists all")


def document(found: Diagnosis, advice: Advice | None) -> dict[str, Any]:
    """Return what `--json` tells of a diagnosis."""
    return {
        "found": found.cause is not None,
        "cause": _finding(found.cause) if found.cause is not None else None,
        "advice": {"command": advice.command, "answer": advice.answer} if advice else None,
        "others": [_finding(one) for one in found.others],
        "notes": found.notes,
        "files": found.files,
        "bytes": found.bytes,
    }


def _finding(found: Finding) -> dict[str, Any]:
    shown = found.evidence
    lines = {"file": str(shown.file), "line": shown.line or None, "text": shown.text}
    return {
        "rule": found.rule,
        "role": found.role,
        "title": found.title,
        "says": found.says,
        "do": found.do,
        "node": found.node,
        "rank": found.rank,
        "time": None if found.time is None else _moment(found.time).isoformat(),
        "nodes": found.nodes,
        "ranks": found.ranks,
        "count": found.count,
        "evidence": {**lines, "before": shown.before, "after": shown.after},
    }


def _where(found: Finding) -> str:
    from clusterkit.observe.diagnose.verdict import everybody

    words = found.where or ("the job" if not found.evidence.line else "no line says which rank")
    if found.time is not None:
        words += f", {_moment(found.time):%H:%M:%S}"
    if max(len(found.ranks), len(found.nodes)) > 1:
        words += f"; the same on {everybody(found)}"
    return words


def _moment(time: float) -> datetime:
    return datetime.fromtimestamp(time, tz=UTC).astimezone()


def _labelled(label: str, text: str, style: Any = str) -> Iterator[str]:
    room = WIDTH - 7
    wrapped = textwrap.wrap(
        _printable(text), room, break_on_hyphens=False, max_lines=_MOST_ROWS, placeholder=" ..."
    )
    first, *more = wrapped or [""]
    yield f"{label:<7}{style(first)}"
    yield from (f"       {row}" for row in more)


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)


def _short(path: Path) -> str:
    """Return a path relative to here, where that is shorter."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)
