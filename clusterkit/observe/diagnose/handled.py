"""What one rank has handled, others have too: of most ranks nobody sees that they go on.

They all print that a package is missing, and then the first alone prints steps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from clusterkit.observe.diagnose.evidence import WENT_ON, steps_after, time_near
from clusterkit.observe.diagnose.order import MOMENT_S, Event
from clusterkit.observe.diagnose.rules import Rule

_NUMBERS = re.compile(r"[0-9.]+")
_MOST_READ = 512
"""Times that it is looked for steps after the same find in a file."""


def handled_by_all(events: Sequence[Event]) -> tuple[Event, ...]:
    """Take what a rank has handled for handled on all that print the same, and no steps."""
    alike: dict[tuple[Rule, str], dict[Path, list[Event]]] = {}
    for event in events:
        if event.hit.line and not event.rule.silent:
            files = alike.setdefault((event.rule, _NUMBERS.sub("", event.hit.text)), {})
            files.setdefault(event.hit.file, []).append(event)
    handled: set[int] = set()
    reads = 0
    for files in alike.values():
        same = [event for of_file in files.values() for event in of_file]
        for of_file in files.values():
            if len(same) > 1 and reads < _MOST_READ and not all(one.handled for one in of_file):
                reads += 1
                handled.update(map(id, _handled(of_file, same)))
    return tuple(
        replace(event, handled=True) if id(event) in handled else event for event in events
    )


def _handled(of_file: Sequence[Event], same: Sequence[Event]) -> Iterator[Event]:
    """Yield the events of a file whose ranks take no steps, if one that does has had the same."""
    last = max(of_file, key=lambda event: event.hit.last)
    steps = steps_after(last.hit)
    if any(steps.get(event.rank, 0) >= WENT_ON for event in of_file) or any(
        event.handled and _at_once(event, last) for event in same
    ):
        yield from (event for event in of_file if not steps.get(event.rank))


def _at_once(handled: Event, event: Event) -> bool:
    """Tell whether an event of another file is none that came later than the one handled."""
    if handled.hit.file == event.hit.file or (handled.rank is None) != (event.rank is None):
        return False
    before, time = _last_time(handled), _last_time(event)
    return before is None or time is None or time <= before + MOMENT_S


def _last_time(event: Event) -> float | None:
    hit = event.hit
    return event.time if hit.count == 1 else time_near(replace(hit, offset=hit.last))
