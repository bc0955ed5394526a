"""Who did not come to a collective, from the flight recorders of all ranks.

PyTorch numbers the collectives of each process group. Whom the others wait for is who has not
called the first that has not ended, and waits in no other group himself. Of gloo, a recorder does
not tell what has ended: there the last call of each rank counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from clusterkit.core import reading
from clusterkit.core.text import some_of
from clusterkit.executors.run.hangs import DUMPS
from clusterkit.launch.array.spec import ranks_in_words
from clusterkit.observe.diagnose.events import Fact
from clusterkit.observe.diagnose.flight_dump import (
    LARGEST,
    Call,
    Dump,
    Group,
    NotADumpError,
    read_dump,
)

_RANK = re.compile(r"(?<!\d)(\d{1,7})(?:\.(?:json|pickle|pkl))?$")
_MOST_READ = 1 << 29
"""Bytes of all dumps of a job: those of 1,500 ranks, in minutes."""
_MOST_OF_OTHERS = 1 << 25
"""Those of somebody else's job."""
_MOST_FILES = 1 << 12
_MOST_NAMED = 3
_WAITED_S = 5.0
"""A call that is younger than that, and than half its time-out, is of ranks that may be well."""
_WORLD = "default_pg"
_SAME_SIZE = frozenset({
    "all_reduce", "allreduce_coalesced", "broadcast", "reduce", "_all_gather_base",
    "_allgather_base", "_reduce_scatter_base", "all_gather_into_tensor_coalesced",
    "reduce_scatter_tensor_coalesced",
})  # fmt: skip
"""Collectives to which all ranks bring as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What the dumps of a job tell."""

    facts: tuple[Fact, ...] = ()
    notes: tuple[str, ...] = ()
    files: int = 0
    bytes: int = 0


@dataclass(slots=True, kw_only=True)
class _Wait:
    """A process group at the first collective that has not ended."""

    group: str
    number: int
    calls: Mapping[int, Call]
    """Of the ranks that are in it."""
    missing: tuple[int, ...] = ()
    absent: tuple[int, ...] = ()
    """Ranks that left no dump."""
    last: Mapping[int, tuple[int, Call | None]] = field(default_factory=dict)
    """What those that are missing called last."""
    differ: bool = False

    @property
    def since(self) -> float:
        return min(call.created for call in self.calls.values())


def read_recorders(
    paths: Iterable[Path],
    processes: int | None = None,
    failed: int | None = None,
    *,
    foreign: bool = False,
) -> Recorded:
    """Return what dumps tell of who waits for whom.

    Args:
        paths: The files; the rank of each is at the end of its name.
        processes: How many ranks the job has, where that is known.
        failed: The rank that failed first: where it left no dump, it is the one.
        foreign: Whether somebody else may have made them: then less is read.
    """
    paths = list(islice(paths, _MOST_FILES))
    dumps, notes = _read(paths, _MOST_OF_OTHERS if foreign else _MOST_READ)
    waits = [wait for ranks in _groups(dumps, processes) for wait in _judge(*ranks, dumps)]
    waits.sort(key=lambda wait: (not wait.differ, wait.since))
    absent = sorted({rank for wait in waits for rank in wait.absent})
    if absent:
        notes.append(f"flight recorder: no dump of {ranks_in_words(absent)}")
    text, rank = ("", None) if failed in absent else _told(waits, failed)
    told = f"clusterkit fact: {text}"
    return Recorded(
        facts=(Fact(text=told, rank=rank, file=paths[0].parent),) if text else (),
        notes=tuple(notes),
        files=len(dumps),
        bytes=sum(map(reading.size_of, paths)) if dumps else 0,
    )


def dumps_below(folder: Path, attempt: int) -> Iterator[Path]:
    """Yield the dumps of an attempt that are in a folder of results, or in those of its nodes."""
    nodes = (folder / name for name in sorted(reading.names_in(folder)) if name[:5] == "node-")
    for place in (folder, *nodes):
        names = sorted(reading.names_in(place))
        yield from (place / name for name in names if name.startswith(DUMPS.format(attempt)))


def _read(paths: Sequence[Path], room: int) -> tuple[dict[int, Dump], list[str]]:
    dumps: dict[int, Dump] = {}
    refused: dict[str, list[str]] = {}
    for path in paths:
        room -= min(reading.size_of(path), LARGEST)
        named = _RANK.search(path.name)
        why = "no rank at the end of its name" if named is None else None
        if named is not None and room >= 0:
            try:
                dumps[int(named[1])] = read_dump(path, int(named[1]))
            except NotADumpError as error:
                why = str(error)
        if room < 0 or why:
            refused.setdefault(why or "too much to be read at once", []).append(path.name)
    notes = [
        f"flight recorder: {some_of(names, _MOST_NAMED)}: {why}" for why, names in refused.items()
    ]
    return dumps, notes


def _groups(
    dumps: Mapping[int, Dump], processes: int | None
) -> Iterator[tuple[dict[int, Group], tuple[int, ...]]]:
    """Yield the process groups: what each rank has called in it, and who left no dump."""
    found: dict[tuple[str, tuple[int, ...]], dict[int, Group]] = {}
    for rank, dump in sorted(dumps.items()):
        for name, group in dump.groups.items():
            found.setdefault((name, group.ranks), {})[rank] = group
    for (_, ranks), called in islice(found.items(), _MOST_FILES):
        one = next(iter(called.values()))
        members = ranks or tuple(called)
        if not ranks and one.name == _WORLD:
            members = tuple(range(processes)) if processes else tuple(dumps)
        nothing = {
            rank: Group(one.name, ranks, {})
            for rank in members
            if rank not in called and rank in dumps and dumps[rank].whole
        }
        known = {**called, **nothing}
        yield known, tuple(rank for rank in members if rank not in known)


def _judge(
    known: Mapping[int, Group], absent: tuple[int, ...], dumps: Mapping[int, Dump]
) -> Iterator[_Wait]:
    """Yield where ranks of a group wait, or call what does not go together."""
    groups = known.values()
    calls = [call for group in groups for call in group.calls.values()]
    if any(group.paired for group in groups) or not calls:
        return
    tells = all(call.backend != "gloo" for call in calls)
    number = _first_open(groups, tells=tells)
    if number is None:
        return
    begin = number if tells else max((min(g.calls) for g in groups if g.calls), default=0)
    name = next(iter(groups)).name
    for at in sorted({at for group in groups for at in group.calls if at >= begin}):
        inside = {rank: g.calls[at] for rank, g in known.items() if at in g.calls}
        if len({_kind(call) for call in inside.values()}) > 1:
            yield _Wait(group=name, number=at, calls=inside, absent=absent, differ=True)
            return
    inside = {
        rank: call
        for rank, group in known.items()
        if (call := group.calls.get(number)) is not None and not call.done
    }
    missing = tuple(rank for rank, group in known.items() if group.last < number)
    if inside and (tells or missing) and _waited(inside, dumps):
        last = {r: (known[r].last, known[r].calls.get(known[r].last)) for r in missing}
        yield _Wait(
            group=name, number=number, calls=inside, missing=missing, absent=absent, last=last
        )


def _first_open(groups: Iterable[Group], *, tells: bool) -> int | None:
    """Return the number of the first collective that has not ended on all ranks."""
    if tells:
        opened = (n for group in groups for n, call in group.calls.items() if not call.done)
        return min(opened, default=None)
    last = {group.last for group in groups}
    return min(last) + (len(last) > 1)


def _kind(call: Call) -> tuple[object, ...]:
    """Return what has to be the same on all ranks."""
    return (call.name, call.sizes[0], call.types) if call.name in _SAME_SIZE else (call.name,)


def _waited(calls: Mapping[int, Call], dumps: Mapping[int, Dump]) -> bool:
    return any(
        dumps[rank].taken - call.created >= min(_WAITED_S, call.timeout_s / 2 or _WAITED_S)
        for rank, call in calls.items()
    )


def _told(waits: Sequence[_Wait], failed: int | None) -> tuple[str, int | None]:
    """Return the fact that dumps tell, and of which rank it is; nothing where there is none."""
    waiting = {rank for wait in waits for rank in wait.calls if not wait.differ}
    for wait in waits:
        if wait.differ:
            return f"collective-mismatch={_differing(wait)}", min(wait.calls)
        if who := sorted(set(wait.missing) - waiting):
            return f"collective-missing={_missing(wait, who)}", who[0]
    if not waits or any(wait.absent for wait in waits):
        return "", None
    first, crossed = waits[0], [wait for wait in waits if wait.missing]
    if crossed:
        return f"collective-mismatch={_crossed(crossed)}", min(crossed[0].calls)
    everybody = f"{ranks_in_words(first.calls)} are in it{_at(first.calls)}"
    return f"collective-stuck={_named(first)}; {everybody}", failed


def _named(wait: _Wait) -> str:
    call = next(iter(wait.calls.values()))
    return f"{call.name}, number {wait.number} of {wait.group} ({call.shape})"


def _missing(wait: _Wait, who: Sequence[int]) -> str:
    number, call = wait.last[who[0]]
    last = f"{call.name}, number {number}{_at({who[0]: call})}" if call else f"number {number}"
    last = f"the last of rank {who[0]} was {last}" if number else f"rank {who[0]} had called none"
    there = f"{ranks_in_words(wait.calls)} wait{'s' * (len(wait.calls) == 1)}{_at(wait.calls)}"
    return f"{ranks_in_words(who)} not in {_named(wait)}; {there}; {last}"


def _differing(wait: _Wait) -> str:
    kinds: dict[tuple[object, ...], dict[int, Call]] = {}
    for rank, call in wait.calls.items():
        kinds.setdefault(_kind(call), {})[rank] = call
    few, *others = sorted(kinds.values(), key=lambda calls: (len(calls), *calls))
    parts = (
        f"{ranks_in_words(calls)} in {call.name} {call.shape}{_at(calls)}"
        for calls in (few, others[-1])
        for call in [next(iter(calls.values()))]
    )
    return f"{'; '.join(parts)}; number {wait.number} of {wait.group}"


def _crossed(waits: Iterable[_Wait]) -> str:
    parts = (f"{ranks_in_words(one.calls)} in {_named(one)}{_at(one.calls)}" for one in waits)
    return "; ".join(islice(parts, _MOST_NAMED))


def _at(calls: Mapping[int, Call]) -> str:
    place = next((call.place for call in calls.values() if call.place), "")
    return f" at {place}" if place else ""
