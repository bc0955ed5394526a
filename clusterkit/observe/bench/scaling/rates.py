"""From the throughput lines of a run, as they come, to its rate; and when enough were seen."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise

from clusterkit.core.throughput import Throughput, Unit, read
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.jobs.logs import LogReader, ranks_of

UNITS: tuple[Unit, ...] = ("samples", "tokens", "steps")
"""What is told of first: what does not depend on the batch."""
_LEAST = 2
"""Readings that have to count before a run is ended."""
_LONG_S = 60.0
"""Silence before the end of a run that may be no more than its end, such as a last checkpoint."""
_LONGEST = 1 << 16
_ENDS = re.compile("[\r\n]")
"""A progress bar begins each of its states with a carriage return."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much of a run is measured."""

    warmup: int
    """Steps at the beginning that do not count."""
    steps: int | None = None
    """That many steps after them are enough."""
    seconds: float | None = None
    """And so is this time after them; a run that has neither bound is seen to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One throughput line."""

    at_s: float
    """When it was read, on any clock that continues."""
    throughput: Throughput


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How fast one run was, the whole job."""

    per_s: float
    """Over all lines that count: their harmonic mean, weighted by the steps that each is about."""
    low: float
    high: float
    """The least and the most of them."""
    lines: int
    average: bool = False
    """Told by the script as an average since its start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The readings of a run that count."""

    readings: tuple[Reading, ...] = ()
    weights: tuple[int, ...] = ()
    """The steps that each is about: those since the line before of the same unit."""
    steps: int = 0
    """Between the end of the warm-up and the last of them."""
    seconds: float = 0.0
    """Likewise."""
    gap_s: float = 0.0
    """The longest time between two of them."""
    step_s: float | None = None
    """Of one of them; None where there was nothing to tell it from."""


class ThroughputLog:
    """The throughput lines of a run so far.

    Nodes may all tell the rate of the job. The first that tells one is listened to, and no other.
    """

    def __init__(self, run: RunFolder) -> None:
        """Read nothing yet."""
        self.readings: list[Reading] = []
        self._run = run
        self._readers: dict[int, LogReader] = {}
        self._begun: dict[int, str] = {}
        """Of each node, the line that has no end yet."""
        self._speaker: int | None = None

    def read(self, now_s: float, *, over: bool = False) -> None:
        """Read on; when the job is `over`, also lines that have no end."""
        for rank in ranks_of(self._run) if self._speaker is None else (self._speaker,):
            for line in self._lines(rank, over=over):
                found = read(line)
                if found is not None:
                    self._speaker = rank
                    self.readings.append(Reading(at_s=now_s, throughput=found))
            if self._speaker is not None:
                break

    def _lines(self, rank: int, *, over: bool) -> Iterator[str]:
        """Yield the lines that have ended since, and with `over` the last one as well."""
        if rank not in self._readers:
            self._readers[rank] = LogReader(self._run.log(rank))
        reader, begun = self._readers[rank], self._begun.pop(rank, "")
        for piece in chain(reader.pieces(), reader.rest()):
            *lines, begun = _ENDS.split(begun + piece)
            begun = begun[-_LONGEST:]
            yield from lines
        if over:
            yield begun
        else:
            self._begun[rank] = begun


def progress_of(readings: Iterable[Reading]) -> tuple[int, ...]:
    """Return how many steps there had been by each reading.

    Lines that tell no step count as one each, and a step that is smaller than the one before
    belongs to a new epoch. A progress bar and lines beside it tell of the same steps, each in its
    own way: units are counted apart, and the one that is furthest counts.
    """
    done: list[int] = []
    before, total = Counter[Unit](), Counter[Unit]()
    for reading in readings:
        unit, step = reading.throughput.unit, reading.throughput.step
        if step is None:
            total[unit] += 1
        else:
            total[unit] += step - before[unit] if step >= before[unit] else step
            before[unit] = step
        done.append(max(total.values()))
    return tuple(done)


def counted(readings: Sequence[Reading], warmup: int, *, skip: int = 0) -> Counted:
    """Return the readings after the warm-up, and after the first `skip` of them.

    The first line never counts: its interval holds the start. An average since the start counts
    wherever it stands, as it is often the last line and the only one.
    """
    if not readings:
        return Counted()
    progress = progress_of(readings)
    last_before = max((i for i, done in enumerate(progress) if done <= warmup), default=0)
    last_before = min(max(last_before, skip - 1), len(readings) - 1)
    kept = tuple(readings[last_before + 1 :])
    averages = tuple(one for one in readings if one.throughput.average and one not in kept)
    done = progress[last_before:]
    return Counted(
        readings=(*averages, *kept),
        weights=(*(0 for _ in averages), *_weights(readings[last_before:], done)),
        steps=progress[-1] - progress[last_before],
        seconds=readings[-1].at_s - readings[last_before].at_s,
        gap_s=max(
            (now.at_s - then.at_s for then, now in pairwise(readings[last_before:])), default=0
        ),
        step_s=_step_s(readings[last_before:], done),
    )


def _weights(readings: Sequence[Reading], progress: Sequence[int]) -> Iterator[int]:
    """Yield the steps that each reading but the first is about; none before the first count."""
    then: dict[Unit, int] = {}
    for reading, done in islice(zip(readings, progress, strict=True), 1, None):
        unit = reading.throughput.unit
        yield done - then.get(unit, progress[0])
        then[unit] = done


def _step_s(readings: Sequence[Reading], progress: Sequence[int]) -> float | None:
    """Return how long a step took by the clock of who read the lines, many at a time perhaps.

    Of lines that were read together, the last tells how far the run was then.
    """
    known = {one.at_s: done for one, done in zip(readings, progress, strict=True)}
    first, last = min(known), max(known)
    steps = known[last] - known[first]
    return (last - first) / steps if steps > 0 else None


def enough(readings: Sequence[Reading], bounds: Bounds, now_s: float, *, skip: int = 0) -> bool:
    """Tell whether a run has been seen for long enough, `skip` as for `counted`.

    One that is silent for longer than ever between its lines may hang: it has to go on first.
    """
    seen = counted(readings, bounds.warmup, skip=skip)
    if len(seen.readings) < _LEAST:
        return False
    silent_s = now_s - readings[-1].at_s
    by_steps = bounds.steps is not None and seen.steps >= bounds.steps
    by_time = bounds.seconds is not None and seen.seconds + silent_s >= bounds.seconds
    return by_steps or (by_time and silent_s <= seen.gap_s)


def stalled(seen: Counted, silent_s: float) -> bool:
    """Tell whether a run that somebody ended, or its time limit, had most likely hung by then."""
    return silent_s > max(_LONG_S, 2 * seen.gap_s)


def rates(seen: Counted, *, slots: int, global_batch: bool) -> dict[Unit, Rate]:
    """Return the rate of the whole job by unit; a rate of steps counts the slots' batches.

    A script that tells steps alone does not say how much is in one. Each slot is taken to have a
    batch of its own, so that the job does `slots` batches in a step, unless `global_batch` says
    that one batch is divided among them.
    """
    found = {}
    for unit in UNITS:
        weighted = [
            (one.throughput, weight)
            for one, weight in zip(seen.readings, seen.weights, strict=True)
            if one.throughput.unit == unit
        ]
        intervals = [(one, weight) for one, weight in weighted if not one.average]
        used = intervals or weighted[-1:]  # of averages, the last holds all the others
        if not used:
            continue
        values = []
        for one, _ in used:
            times = slots if one.per_slot or (unit == "steps" and not global_batch) else 1
            values.append(one.rate * times)
        weights = [weight for _, weight in used]
        found[unit] = Rate(
            per_s=statistics.harmonic_mean(values, weights=weights if any(weights) else None),
            low=min(values),
            high=max(values),
            lines=len(values),
            average=not intervals,
        )
    return found


def common_unit(found: Iterable[Mapping[Unit, Rate]]) -> Unit | None:
    """Return the unit that every run has told its rate in, the most telling of them."""
    every = list(found)
    return next((u for u in UNITS if every and all(u in one for one in every)), None)
