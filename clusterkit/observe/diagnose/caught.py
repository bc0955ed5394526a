"""Exceptions that a program caught again and again as it trained: of samples, not of the job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from clusterkit.observe.diagnose.evidence import (
    at_last,
    good_after,
    lines_before,
    lines_between,
    steps_in,
)
from clusterkit.observe.diagnose.hits import REPORTS, Hit
from clusterkit.observe.diagnose.lines import TRACEBACK, form_of
from clusterkit.observe.diagnose.order import Event

_OFTEN = 5
_ROUNDS = 2
"""Times that it came again after a step that was new: a rank that has ended prints none again."""
_ALIKE = 40
"""Characters of an exception by which it is known again; the rest may be of the sample."""
_TRACEBACK = 100


def without_caught(events: Sequence[Event]) -> list[Event]:
    """Take for handled what was raised often, with steps completed in between.

    Not where a launcher saw a rank end, after which each run may end alike, nor where the last one
    looks as Python prints what ends a program, and nothing is below.
    """
    alike: dict[tuple[Path, int | None, str], list[Event]] = {}
    ended = {event.hit.file for event in events if event.rule.id in REPORTS}
    for event in events:
        live = event.generic and event.hit.line and not (event.handled or event.rule.closing)
        if live and event.hit.file not in ended:
            key = (event.hit.file, event.rank, _form(event.hit.text))
            alike.setdefault(key, []).append(event)
    caught = {
        id(event)
        for (_, _, form), same in alike.items()
        if sum(event.hit.count for event in same) >= _OFTEN and _was_caught(form, same)
        for event in same
    }
    return [replace(e, handled=True) if id(e) in caught else e for e in events]


def _form(text: str) -> str:
    return form_of(text)[:_ALIKE]


def _was_caught(form: str, same: Sequence[Event]) -> bool:
    first = min((event.hit for event in same), key=lambda hit: hit.offset)
    last = at_last(max((event.hit for event in same), key=lambda hit: hit.last))
    if _ended(last):
        return False
    known: set[str] = set()
    rounds, stepped = 0, False
    for line in lines_between(first.offset, replace(last, offset=last.offset + 1)):
        if _form(line.text) == form:
            rounds += stepped
            stepped = False
        elif not steps_in(line.text) <= known:
            known |= steps_in(line.text)
            stepped = True
    return rounds >= _ROUNDS


def _ended(last: Hit) -> bool:
    above = reversed(lines_before(last, _TRACEBACK))
    head = next((line for line in above if not line.startswith(" ")), "")
    return head == TRACEBACK and not good_after(last)
