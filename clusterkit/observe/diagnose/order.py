"""Which of many finds is the cause, told from what followed from it; and who is waited for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile, takewhile
from math import inf
from pathlib import Path

from clusterkit.core.text import some_of
from clusterkit.launch.array.spec import ranks_in_words
from clusterkit.observe.diagnose.evidence import (
    WENT_ON,
    at_last,
    dealt_with,
    lines_after,
    raised_while_handling,
    steps_after,
    time_near,
    well_between,
)
from clusterkit.observe.diagnose.hits import Hit
from clusterkit.observe.diagnose.lines import form_of
from clusterkit.observe.diagnose.rules import Role, Rule

MOMENT_S = 5.0
"""Clocks of nodes differ, and ranks that lose one of them fail within moments: finds that are no
further apart are at the same moment, and the more precise one is taken."""
BARE = 5
"""Rules up to this priority know no word of it, but the code that a process ended with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A find with the rule that has it, and all that is known of its place and time."""

    rule: Rule
    groups: Mapping[str, str]
    hit: Hit
    node: str | None
    rank: int | None
    time: float | None
    """Seconds since the epoch; None where no line nearby tells."""
    timed: bool
    """Whether the line itself tells its time."""
    handled: bool = False
    """Whether the training went on after it: it did not end the job."""

    @property
    def generic(self) -> bool:
        """Whether it says no more than that a rank has failed."""
        return self.rule.generic


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a job is known to have failed first."""

    node: str | None = None
    rank: int | None = None
    local: str = ""
    """The local rank, where no more is known."""
    alone: bool = False
    """Whether no other rank failed: what one process printed once is of this one."""
    ended: tuple[str, ...] = ()
    """In which words torchrun tells of its end, where that was a signal."""


_ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+|[0-9a-f]*+:[0-9a-f:]*")


def ranked(event: Event, first: Place, *, sole: bool = False) -> Event:
    """Take a line that names no rank for one of the rank that failed first, on the node of that.

    Most of what a process prints when it ends names none; what is the `sole` failure in the logs
    was printed by that rank as well as by others. Ray names its nodes by address, which
    nobody here can tell from that of the first.
    """
    if event.rank is not None:
        return event
    if event.node is None:
        once = first.alone and event.hit.count == 1
        told = any(words in event.hit.text for words in first.ended)
        own = event.hit.line and (told or ((once or sole) and not event.hit.local))
        if not own:
            return event
        hit = replace(event.hit, local=first.local)
        return replace(event, hit=hit, node=first.node, rank=first.rank)
    if first.node is None or (event.node != first.node and not _ADDRESS.fullmatch(event.node)):
        return event
    return replace(event, node=first.node, rank=first.rank)


def root_of(events: Sequence[Event], first: Place | None = None) -> Event | None:
    """Return the event that the others follow from; None where there are no events.

    What is known of the rank that failed first counts most, then the time, then how precise the
    rule is. A symptom is taken only without a cause, and a consequence only without either, or
    beside no more than an exit code. What the training went on after is taken only without a cause
    or a symptom that a log tells.
    """
    place = first or Place()
    live = [event for event in events if not event.handled]
    if any(e.rule.role is Role.CAUSE or (e.rule.role is Role.SYMPTOM and e.hit.line) for e in live):
        events = live
    causes = [event for event in events if event.rule.role is Role.CAUSE]
    symptoms = [event for event in events if event.rule.role is Role.SYMPTOM]
    symptoms = _not_dealt_with(symptoms)
    symptoms = [one for one in symptoms if not _explained(one, symptoms)]
    symptoms = _without_aftermath(symptoms, events)
    symptoms = _of_each_place(_before_the_end(symptoms) or symptoms)
    lost = [event for event in events if event.rule.alone and not event.rule.closing]
    symptoms = [one for one in symptoms if not any(_ended_after(one, other) for other in lost)]
    stops = [event for event in events if _CTRL_C in event.hit.text]
    symptoms = [one for one in symptoms if not _any_led_to(stops, one)]
    best = _first_of(causes, place)
    best = best and _short_first(best, causes)
    if best is not None and best.rule.id in _OF_OPTIONS:
        best = next((event for event in live if event.rule.id == _OPTIONS_LOST), best)
    if best is not None and _WANDB in best.groups.get("host", ""):
        best = next((event for event in causes if event.rule.id in _OF_WANDB), best)
    if best is not None and best.rank is not None and not best.hit.line:
        return best  # all ranks together tell of another than the first that failed
    if best is None:
        telling = [event for event in symptoms if event.rule.priority > BARE]
        if telling and (before := _failed_before(telling, events)):
            return _first_of(before, place)
        events = [event for event in events if not _any_led_to(stops, event)]
        alone = [event for event in events if event.rule.alone and not _stopped(stops, event)]
        alone = _of_last_series(alone)
        return _quoted(_first_of(telling or alone or symptoms or events, place), events)
    raised = [event for event in symptoms if event.generic and event.hit.line]
    if best.rule.id in _CRASHES:
        own = _raised_just_before((*causes, *raised), best) or _raised_by_many(raised, best)
        if own:
            return _first_of(own, Place())
    exception = _first_of(raised, place)
    if exception is None or _distance(exception, place) or _distance(best, place) < _ELSEWHERE:
        return best
    return best if _earlier(best, exception) else exception


_WANDB = "wandb"
_OF_WANDB = frozenset({"wandb-not-reached", "wandb-unreachable"})
_OPTIONS_LOST = "line-not-continued"
_OF_OPTIONS = frozenset(
    {"address-in-use", "gpus-too-few", "process-group-missing", "wrong-arguments"}
)
"""Rules of what a launcher or a script meets without the options on the line that was cut off."""
_LOST = "spark-executor-lost"
_QUOTES = re.compile(r"^Last \d+ bytes of \S+ ?:")
_RAY_DIED = "ray-worker-died"
_RAY_TASK = "ray-task-failed"
_SHARED = frozenset({"bus-error", "shared-memory"})
MEMORY = frozenset({"host-out-of-memory", "oom-killer", "slurm-memory-limit"})
"""Rules of one node whose shared memory, and of another whose memory was not enough."""
_ALSO = (
    "On {} shared memory was not enough (a bus error): both hold.",
    "On {} memory was not enough (OOM): both hold.",
)
_CTRL_C = "KeyboardInterrupt"
_CRASHES = frozenset({"bus-error", "segmentation-fault"})
_OWN = re.compile(
    r"(?:Key|Type|Value|Attribute|Index|Name|Assertion|Syntax|Import|ModuleNotFound|FileNotFound"
    r"|ZeroDivision|NotImplemented)Error\b"
)
"""Exceptions that code raises of itself, and not because another rank has gone."""
_LOOK_UP = re.compile(r"(?:Index|Key)Error\b")
"""What code raises that looks for something which is not there."""
_UPON = 8
"""Lines before a crash in which the same process says of what it ends."""
_SAME = 3
"""Ranks that have raised one and the same exception, so that it is no accident."""
_ALL_ERRORS = 48
"""Lines at the end of a file that are all errors, so that they are of more than one run."""
_CHAINED = 200
"""Lines of the tracebacks that a Ctrl-C may lead to as a program ends."""
_ELSEWHERE = 2
_LATE = 2
"""Steps that others may end, or print, after a failure for which they then wait."""
_EXITED = ": Exited with exit code "
_LONG_S = 60.0
_FAR = 40
"""Lines before the end from outside that are no more of those that processes print as they go."""


def _quoted(best: Event | None, events: Iterable[Event]) -> Event | None:
    """Return what an executor that was lost had printed at last, where Spark quotes that."""
    if best is None or best.rule.id != _LOST:
        return best
    below = dropwhile(lambda line: not _QUOTES.match(line), lines_after(best.hit, _FAR))
    quoted = tuple(takewhile(lambda line: "ExecutorLostFailure" not in line, below))
    told = [
        event
        for event in events
        if event.hit.file == best.hit.file
        and event.rule.role is not Role.CONSEQUENCE
        and event.rule is not best.rule
        and not {event.hit.text, at_last(event.hit).text}.isdisjoint(quoted)
    ]
    return _first_of(told, Place()) or best


def _short_first(best: Event, causes: Iterable[Event]) -> Event:
    """Return what came first where one node was short of memory and another of shared memory."""
    before = (e for e in causes if _elsewhere_short(best, e) and _known_before(e, best))
    return next(before, best)


def also_short(root: Event, events: Iterable[Event]) -> str:
    """Tell of the other shortage on another node, of which one may have led to the other."""
    others = [event for event in events if _elsewhere_short(root, event)]
    if not others:
        return ""
    where = some_of(sorted({event.node or "" for event in others}), _MOST_NAMED, rest="others")
    return f"{_ALSO[root.rule.id in _SHARED].format(where)} What lies in /dev/shm counts as memory."


def _known_before(one: Event, other: Event) -> bool:
    if one.time is not None and other.time is not None and one.time != other.time:
        return one.time < other.time
    return one.hit.file == other.hit.file and 0 < one.hit.line < other.hit.line


def _elsewhere_short(one: Event, other: Event) -> bool:
    kinds = ((_SHARED, MEMORY), (MEMORY, _SHARED))
    of_both = any(one.rule.id in a and other.rule.id in b for a, b in kinds)
    return of_both and one.node != other.node and bool(other.node) and not other.handled


def _not_dealt_with(symptoms: list[Event]) -> list[Event]:
    """Leave out what a library printed, and went on, until a job was ended from outside."""
    if not any(event.rule.outside for event in symptoms):
        return symptoms
    return [
        one for one in symptoms if one.rule.outside or not (one.hit.line and dealt_with(one.hit))
    ]


def _explained(one: Event, symptoms: Iterable[Event]) -> bool:
    """Tell whether code that handled an exception of a look-up raised another that explains it."""
    if not (one.generic and one.hit.line and _LOOK_UP.match(one.hit.text)):
        return False
    told = raised_while_handling(one.hit)
    return told != "" and any(
        other.generic and other.hit.file == one.hit.file and other.hit.text == told
        for other in symptoms
    )


def _before_the_end(symptoms: Sequence[Event]) -> list[Event]:
    """Return what had failed before a job was ended from outside: the others waited until then."""
    ends = [event for event in symptoms if event.rule.outside]
    return [one for one in symptoms if ends and all(_stands_before(one, end) for end in ends)]


def _failed_before(ends: Sequence[Event], events: Iterable[Event]) -> list[Event]:
    """Return what a launcher tells of tasks that had failed long before a job was ended."""
    if not all(end.rule.outside for end in ends):
        return []
    began = min(map(_time, ends))
    return [
        event
        for event in events
        if event.rule.id == "slurm-report"
        and _EXITED in event.hit.text
        and (time_near(event.hit) or inf) < began - _LONG_S
    ]


def _stands_before(event: Event, end: Event) -> bool:
    if event.handled or event.rule.outside or not event.hit.line:
        return False
    if steps_after(event.hit).get(event.rank, 0) > _LATE:
        return False
    timed = event.time is not None and end.time is not None
    if timed and _earlier(event, end, MOMENT_S):
        return True
    if end.hit.line and event.hit.file == end.hit.file:
        return event.hit.line < end.hit.line - (_FAR if event.rule.ending else 0)
    return not timed and not event.rule.ending


def _first_of(events: Sequence[Event], place: Place) -> Event | None:
    times = [event.time for event in events if event.time is not None]
    began = min(times, default=0.0)

    def key(event: Event) -> tuple[object, ...]:
        late = event.time is not None and event.time - began > MOMENT_S
        exception = event.generic and event.rule.role is Role.SYMPTOM
        return (
            _distance(event, place),
            event.time if late else 0.0,
            not exception,
            -event.rule.priority,
            began if event.time is None else event.time,
            str(event.hit.file),
            event.hit.offset,
        )

    return min(events, key=key, default=None)


def _distance(event: Event, first: Place) -> int:
    """Return 0 for what is of the rank that failed first, 1 where nobody knows, or 2."""
    if first.rank is not None and event.rank is not None:
        return 0 if event.rank == first.rank else _ELSEWHERE
    if first.node is not None and event.node is not None:
        return 0 if event.node == first.node else _ELSEWHERE
    return 1 if first.rank is not None or first.node is not None else 0


def _earlier(one: Event, other: Event, by_s: float = 1.0) -> bool:
    return one.time is not None and other.time is not None and one.time < other.time - by_s


def _of_each_place(events: Sequence[Event]) -> list[Event]:
    """Return of each node and rank the most precise events, and what was there before them.

    An exception may name a time-out, and never counts beside what is more precise; but it does
    beside what a process says of its own end just after it (`parting`).
    """
    began: dict[object, dict[Rule, Event]] = {}
    for event in events:
        of_place = began.setdefault((event.node, event.rank), {})
        first = of_place.setdefault(event.rule, event)
        if _time(event) < _time(first):
            of_place[event.rule] = event
    return [event for event in events if not _outdone(event, began[event.node, event.rank])]


def _outdone(event: Event, began: Mapping[Rule, Event]) -> bool:
    """Tell whether a more precise rule has a find that is not known to have come later."""
    until = inf if event.generic or event.time is None else event.time + MOMENT_S
    return any(
        rule.priority > event.rule.priority
        and _time(first) <= until
        and not _parts_after(event, first)
        for rule, first in began.items()
    )


def _parts_after(event: Event, end: Event) -> bool:
    """Tell whether `end` is how a process ended that had raised an exception just before."""
    if not (end.rule.parting and event.generic and event.hit.line) or event.rule.ending:
        return False
    return not end.hit.line or (
        event.hit.file == end.hit.file and 0 < end.hit.line - event.hit.line <= _FAR
    )


def _ended_after(end: Event, lost: Event) -> bool:
    """Tell whether a process ended without a word just after it had lost another."""
    if not end.rule.parting or end.groups.get("what") or not (end.hit.line and lost.hit.line):
        return False
    return end.hit.file == lost.hit.file and 0 < end.hit.line - lost.hit.line <= _FAR


def _any_led_to(stops: Iterable[Event], event: Event) -> bool:
    """Tell whether a process printed an error as it ended after a Ctrl-C, and not later."""
    hit = event.hit
    return not event.rule.outside and any(
        (stop.hit.file, stop.node, stop.rank) == (hit.file, event.node, event.rank)
        and 0 < stop.hit.line < hit.line <= stop.hit.line + _CHAINED
        and not well_between(stop.hit, hit)
        for stop in stops
    )


def _without_aftermath(symptoms: Sequence[Event], events: Iterable[Event]) -> list[Event]:
    """Leave out what processes of Ray print after the exception with which its task failed.

    They are ended then, in the midst of what they do; and a worker that said why it ends did not
    die of itself.
    """
    tasks = [event for event in events if event.rule.id == _RAY_TASK]
    raised = [
        one
        for one in symptoms
        if _OWN.fullmatch(kind := one.groups.get("kind", ""))
        and any(task.groups.get("kind") == kind and _soon_after(task, one) for task in tasks)
    ]
    told = [one for one in symptoms if not (one.generic or one.rule.ending)]
    return [
        one
        for one in symptoms
        if not any(_soon_after(own, one) for own in raised)
        and not (one.rule.id == _RAY_DIED and any(_soon_after(why, one) for why in told))
    ]


def _soon_after(one: Event, later: Event) -> bool:
    hit = later.hit
    return one.hit.file == hit.file and 0 < hit.line - one.hit.line <= _CHAINED and one.hit.line > 0


def _stopped(stops: Iterable[Event], event: Event) -> bool:
    """Tell whether last words stand before a Ctrl-C, which is how the program ended."""
    hit = event.hit
    return event.rule.closing and any(
        stop.hit.file == hit.file and hit.line < stop.hit.line for stop in stops
    )


def _of_last_series(events: list[Event]) -> list[Event]:
    """Return the last errors of a file that ends with errors alone, one sort after another.

    Runs of a script that are appended to it leave such a file. An error that comes no more once
    others have begun to repeat themselves was mended before these; ranks print fewer lines.
    """
    lines = sorted((e for e in events if e.rule.closing), key=lambda event: event.hit.line)
    numbers = [event.hit.line for event in lines]
    one_file = len({(event.hit.file, event.rank) for event in events}) == 1
    if len(lines) < _ALL_ERRORS or not one_file or numbers[-1] - numbers[0] >= len(lines):
        return events
    forms = [form_of(event.hit.text) for event in lines]
    often = Counter(forms)
    ended = [at for at, form in enumerate(forms) if form not in forms[at + 1 :]]
    began = {form: forms.index(form) for form in often if often[form] >= _SAME}
    after = [at + 1 for at in ended if any(begin > at for begin in began.values())]
    return lines[max(after) :] if after else events


def _raised_just_before(events: Iterable[Event], crash: Event) -> list[Event]:
    """Return the exceptions of a rank's own that stand just before it crashed.

    Native code is torn down in a wrong order as a process ends of an exception.
    """
    known = str(crash.rank) if crash.rank is not None else crash.groups.get("local", "")
    return [
        event
        for event in events
        if _OWN.match(event.hit.text)
        and not event.handled
        and event.hit.file == crash.hit.file
        and 0 < crash.hit.line - event.hit.last_line <= _UPON
        and (event.rank is None or known in {"", str(event.rank)})
    ]


def _raised_by_many(raised: Sequence[Event], crash: Event) -> list[Event]:
    """Return the exceptions that several ranks had raised of themselves before one crashed.

    Whoever is ended in the midst of its work may crash at that.
    """
    before = [
        event
        for event in raised
        if _OWN.fullmatch(event.groups.get("kind", ""))
        and event.hit.file == crash.hit.file
        and event.hit.line < crash.hit.line
    ]
    ranks = Counter(
        text
        for text, _ in {(event.hit.text, event.rank) for event in before if event.rank is not None}
    )
    return [event for event in before if ranks[event.hit.text] >= _SAME]


def _time(event: Event) -> float:
    return -inf if event.time is None else event.time


_MOST_READ = 512
"""Times that it is looked for steps after the same find in a file."""


def handled_by_all(events: Sequence[Event]) -> tuple[Event, ...]:
    """Take what a rank has handled for handled on all that print the same, and no steps."""
    alike: dict[tuple[Rule, str], dict[Path, list[Event]]] = {}
    for event in events:
        if event.hit.line and not event.rule.silent:
            files = alike.setdefault((event.rule, form_of(event.hit.text)), {})
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


_OF_OTHERS = frozenset({
    "collective-mismatch-timeout", "nccl-remote-error", "nccl-watchdog", "nccl-watchdog-timeout",
    "nccl-watchdog-work",
})  # fmt: skip
"""Rules of lines that tell of a rank that others have waited for."""
_COUNTS = "nccl-watchdog-work"
_WAITS = "nccl-watchdog-timeout"
_MOST_NAMED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    """The node or the rank that most others name."""

    says: str
    node: str | None = None
    rank: int | None = None


def awaited(root: Event, events: Sequence[Event]) -> Awaited | None:
    """Return whom the others wait for; None where the logs do not tell of one."""
    if root.rule.id not in _OF_OTHERS:
        return None
    known = next(_behind(events), None) or _lowest(events)
    return known or _lost([one for one in events if "peer" in one.groups])


def _behind(events: Iterable[Event]) -> Iterator[Awaited]:
    """Yield ranks that have not called what more of the others wait in, by process group."""
    groups: dict[str, dict[int, tuple[int, int, str | None]]] = {}
    for event in events:
        if event.rule.id == _COUNTS and event.rank is not None:
            known = groups.setdefault(event.groups.get("group", ""), {})
            work, called = (int(event.groups[name]) for name in ("work", "called"))
            known.setdefault(event.rank, (work, called, event.node))
    for known in groups.values():
        stuck = max(work for work, _, _ in known.values())
        behind = {rank: node for rank, (_, called, node) in known.items() if called < stuck}
        waiting = sum(work == stuck for work, _, _ in known.values())
        if behind and len(behind) < waiting:
            alone = next(iter(behind)) if len(behind) == 1 else None
            who = ranks_in_words(behind)
            says = f"{waiting} ranks wait in work {stuck} of NCCL, which {who} had not called."
            yield Awaited(says=says, rank=alone, node=None if alone is None else behind[alone])


def _lowest(events: Iterable[Event]) -> Awaited | None:
    """Return the ranks that wait in the lowest work, where each tells only in which it waits."""
    works: dict[int, tuple[int, str | None]] = {}
    for event in events:
        if event.rule.id == _WAITS and event.rank is not None and "work" in event.groups:
            works.setdefault(event.rank, (int(event.groups["work"]), event.node))
    first, last = (of(work for work, _ in works.values()) if works else 0 for of in (min, max))
    if first == last:
        return None
    low, high = ([rank for rank, (work, _) in works.items() if work == of] for of in (first, last))
    rank = low[0] if len(low) == 1 else None
    says = (
        f"The lowest is {first}, in which {ranks_in_words(low)} waited; {ranks_in_words(high)} had"
        f" come to {last}. In one process group, the later ones wait for the lowest."
    )
    return Awaited(says=says, rank=rank, node=None if rank is None else works[rank][1])


def _lost(events: Iterable[Event]) -> Awaited | None:
    """Return the node that is named and says nothing itself, or that most name."""
    pairs = {
        (event.node or event.hit.file.name, event.groups["peer"].partition("<")[0])
        for event in events
    }
    telling = {_short(who) for who, _ in pairs}
    named = Counter(peer for _, peer in pairs)
    silent = [peer for peer in named if _short(peer) not in telling]
    most = [peer for peer, count in named.items() if 2 * count > len(pairs)]
    found = silent if len(silent) == 1 else most
    if not found or not found[0]:
        return None
    who = sorted({who for who, peer in pairs if peer == found[0]})
    says = f"{found[0]} was lost by {some_of(who, _MOST_NAMED, rest='others')}."
    return Awaited(says=says, node=found[0])


def _short(host: str) -> str:
    """Return a name without its domain, and an address as it is."""
    name = host.partition(".")[0]
    return host if name.isdigit() else name
