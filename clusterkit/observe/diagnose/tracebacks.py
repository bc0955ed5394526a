"""How a traceback ends whose last line no rule knows, or that has none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from clusterkit.observe.diagnose.evidence import FRAME_AT, LIBRARY, lines_before
from clusterkit.observe.diagnose.hits import Hit, Scanned
from clusterkit.observe.diagnose.lines import read_line
from clusterkit.observe.diagnose.open_log import WINDOW, read_part
from clusterkit.observe.diagnose.rules import Rule

_REASON = re.compile(r"\b(?i:error|failed|exception|fatal)\b.{0,80}?: +\S")
Ended = tuple[Rule, Hit, Mapping[str, str]]


def unknown_ends(rules: Mapping[str, Rule], scanned: Scanned) -> Iterator[Ended]:
    """Yield the rules that ask for how a traceback ends, each with its place and its groups.

    None where another rule knows the line at the end of it.
    """
    for head in scanned.tracebacks:
        end, inside = _end_of(head, scanned.size)
        if end is None or _known(rules, scanned, end):
            continue
        for name in head.rules:
            found = (pattern.search(end.text) for pattern in rules[name].ends)
            match = next(filter(None, found), None)
            if match is not None:
                told = {**match.groupdict(), **_last(inside), **({} if end.text else _above(head))}
                yield rules[name], end if end.text else head, told
                break


def _end_of(head: Hit, size: int) -> tuple[Hit | None, tuple[str, ...]]:
    """Return the line below the frames of a traceback, and what stands between.

    It is empty where the log ends before, and None where that is not known.
    """
    part = read_part(head.file, head.excerpts, head.offset, WINDOW)
    at, inside = 0, list[str]()
    for raw in part.replace(b"\r", b"\n").split(b"\n"):
        line = read_line(raw, head.learnt)
        other = head.rank is not None and line.rank != head.rank
        if at and line.text and not other:
            if not line.text.startswith("  "):
                number, offset = head.line + part.count(b"\n", 0, at), head.offset + at
                return _at(head, offset, number, line.text), tuple(inside)
            inside.append(line.text)
        at += len(raw) + 1
    whole = head.offset + len(part) >= size
    return _at(head, size, head.line, "") if whole else None, tuple(inside)


def _at(head: Hit, offset: int, number: int, text: str) -> Hit:
    return replace(head, offset=offset, last=offset, line=number, last_line=number, text=text)


def _known(rules: Mapping[str, Rule], scanned: Scanned, end: Hit) -> bool:
    if any(end.offset in {hit.offset, hit.last} for hit in scanned.hits):
        return True
    sure = [rule for rule in rules.values() if (rule.by_line or rule.generic) and not rule.closing]
    return any(rule.match(end.text) or rule.excuses(end.text) for rule in sure)


def _above(head: Hit) -> Mapping[str, str]:
    """Return what stands just above a traceback, where that tells of an error and its message."""
    said = next(iter(lines_before(head, 1)), "")
    return {"reason": f"; above it stands: {said.strip()}"} if _REASON.search(said) else {}


def _last(inside: tuple[str, ...]) -> Mapping[str, str]:
    """Return the last frame, and the last of no library where that is another."""
    frames = [f"{frame[1]}:{frame[2]}" for frame in map(FRAME_AT.match, inside) if frame]
    own = [frame for frame in frames if not LIBRARY.search(frame)]
    if not frames:
        return {}
    by = f", called at {own[-1]}" if own and own[-1] != frames[-1] else ""
    return {"frame": f"; the last frame is {frames[-1]}{by}"}
