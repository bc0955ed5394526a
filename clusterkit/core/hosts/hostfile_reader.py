"""Read a hostfile of any format, and say where the tool it is for would read it otherwise."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from clusterkit.core.data import read_table
from clusterkit.core.errors import Position, Problem, UserError
from clusterkit.core.hosts.hostfile import (
    Contents,
    Entry,
    Format,
    HostFile,
    Mark,
    problem_in,
    read_entries,
    to_format,
)
from clusterkit.core.hosts.hostlist import MAX_NAMES

_OPENMPI_ONLY = {Mark.ALIAS, Mark.SPACED, Mark.MAX_SLOTS, Mark.LOGIN, Mark.PORT, Mark.SLASHES}
_HYDRA_ONLY = {Mark.HYDRA_USER, Mark.BINDING}

_HAZARDS: Mapping[tuple[Format, Mark], tuple[str, str]] = {
    (Format(row["format"]), Mark[row["mark"]]): (row["message"], row["hint"])
    for row in read_table(__file__, "hazards.tsv")
}
_BINDING = ("binding= is Hydra's own and is not kept", None)


def parse(text: str, *, source: str = "<stdin>", format: str | None = None) -> HostFile:  # noqa: A002
    """Return the hosts of a hostfile, in the file's order, and what its tool would misread.

    `format` is the tool that the file is for; without it the tool is told from how the file is
    written (`host slots=N` alone, which several read alike, counts as DeepSpeed's). A host
    without slots has `slots=None`, but for Hydra, which counts it as one.

    Raises:
        UserError: with every problem of the file: hosts twice, without slots where the format
            needs them or with 0 of them, words and keys that no tool knows, no hosts at all.
    """
    contents = read_entries(text, source)
    decided = detect(contents) if format is None else to_format(format)
    problems = [*contents.problems, *_collisions(contents.entries)]
    if decided in {Format.DEEPSPEED, Format.HOROVOD}:
        problems += _without_slots(contents.entries, decided)
    if not contents.entries and not problems:
        problems.append(
            Problem(message="there are no hosts here", position=Position(source=source))
        )
    if problems:
        raise UserError(problems=sorted(problems, key=_place))
    hosts = tuple(host for entry in contents.entries for host in entry.hosts)
    if decided is Format.HYDRA:
        hosts = tuple(dataclasses.replace(host, slots=host.slots or 1) for host in hosts)
    return HostFile(hosts=hosts, format=decided, warnings=tuple(_warnings(contents, decided)))


def detect(contents: Contents) -> Format:
    """Return the format that a hostfile is most likely written for."""
    marks = {mark for entry in contents.entries for mark in entry.marks}
    marks |= {mark for mark, _, _ in contents.layout}
    if marks & _HYDRA_ONLY:
        return Format.HYDRA
    if Mark.SLOTS in marks or marks & (_OPENMPI_ONLY - {Mark.SLASHES}):
        openmpi = Mark.BARE in marks or marks & _OPENMPI_ONLY
        return Format.OPENMPI if openmpi else Format.DEEPSPEED
    if Mark.COLON in marks:
        return Format.HOROVOD if _is_dash_h(contents) else Format.HYDRA
    return Format.HOSTLIST if marks & {Mark.JOINED, Mark.BRACKETS} else Format.NAMES


def _is_dash_h(contents: Contents) -> bool:
    """Whether this is the argument of `horovodrun -H` or `mpirun -host`: `h1:4,h2:4`."""
    return (
        len({entry.line.line for entry in contents.entries}) == 1
        and all(entry.marks.keys() == {Mark.COLON, Mark.JOINED} for entry in contents.entries)
    )  # fmt: skip


def _collisions(entries: list[Entry]) -> Iterator[Problem]:
    first: dict[str, int | None] = {}
    total = 0
    for entry in entries:
        total += len(entry.hosts)
        if total > MAX_NAMES:
            message = f"this file names more than {MAX_NAMES:,} hosts"
            yield problem_in(entry.line, entry.column, message)
            return
        for name in (host.name for host in entry.hosts):
            if name in first:
                message = f"host {name!r} stands twice, first on line {first[name]}"
                hint = f"name it once, with all its slots: '{name} slots=N'"
                yield problem_in(entry.line, entry.column, message, hint)
            first.setdefault(name, entry.line.line)


def _without_slots(entries: list[Entry], decided: Format) -> Iterator[Problem]:
    for entry in entries:
        if Mark.BARE in entry.marks:
            message = f"{decided.tool} needs the slots of every host"
            hint = f"write '{entry.hosts[0].name} slots=N'"
            yield problem_in(entry.line, entry.column, message, hint)


def _warnings(contents: Contents, decided: Format) -> Iterator[Problem]:
    """Yield each hazard once, at its first place, with the number of its other places."""
    dash_h = decided is Format.HOROVOD and _is_dash_h(contents)
    found: dict[tuple[str, str | None], list[tuple[Position, int]]] = {}
    marks = [(mark, entry.line, at) for entry in contents.entries
             for mark, at in entry.marks.items()]  # fmt: skip
    for mark, line, column in contents.layout + marks:
        hazard = _BINDING if mark is Mark.BINDING else _HAZARDS.get((decided, mark))
        if hazard is not None and (mark is Mark.BINDING or not dash_h):
            found.setdefault(hazard, []).append((line, column))
    problems = []
    for (message, hint), places in found.items():
        line, column = places[0]
        others = len({place.line for place, _ in places}) - 1
        also = f" (and on {others} more line{'s' * (others > 1)})" if others else ""
        problems.append(problem_in(line, column, message + also, hint))
    yield from sorted(problems, key=_place)


def _place(problem: Problem) -> tuple[int, int]:
    position = problem.position
    return ((position.line or 0), (position.column or 0)) if position else (0, 0)
