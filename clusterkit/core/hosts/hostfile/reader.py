"""Read a hostfile of any format, and say where the tool it is for would read it otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from clusterkit.core.errors import Position, Problem, UserError
from clusterkit.core.hosts.hostfile.entries import Contents, Entry, Line, Mark, read_entries
from clusterkit.core.hosts.hostfile.formats import Format, HostFile, to_format
from clusterkit.core.hosts.hostlist import MAX_NAMES
from clusterkit.core.model import Host

_OPENMPI_ONLY = {Mark.ALIAS, Mark.SPACED, Mark.MAX_SLOTS, Mark.LOGIN, Mark.PORT, Mark.SLASHES}
_HYDRA_ONLY = {Mark.HYDRA_USER, Mark.BINDING}

_ONE_LINE_EACH = "one host a line"
_HASH_ONLY = "begin comments with '#'"

_HAZARDS: Mapping[Format, Mapping[Mark, tuple[str, str]]] = {
    Format.DEEPSPEED: {
        Mark.COLON: ("DeepSpeed refuses 'host:N'", "write 'host slots=N'"),
        Mark.JOINED: (
            "DeepSpeed reads only the first host of a line and drops the others silently",
            _ONE_LINE_EACH,
        ),
        Mark.BRACKETS: ("DeepSpeed takes a hostlist for the name of one host", _ONE_LINE_EACH),
        Mark.SPACED: ("DeepSpeed refuses white space around '='", "write 'slots=N'"),
        Mark.JUNK: ("DeepSpeed ignores what follows the digits silently", "remove it"),
        Mark.ALIAS: ("DeepSpeed knows only slots=", "write 'slots=N'"),
        Mark.MAX_SLOTS: ("DeepSpeed ignores max_slots silently", "remove it"),
        Mark.LOGIN: ("DeepSpeed knows no user names", "put them in ~/.ssh/config"),
        Mark.HYDRA_USER: ("DeepSpeed knows no user names", "put them in ~/.ssh/config"),
        Mark.PORT: ("DeepSpeed ignores port= silently", "put it in ~/.ssh/config"),
        Mark.SLASHES: ("DeepSpeed takes only '#' lines for comments", _HASH_ONLY),
    },
    Format.HOROVOD: {
        Mark.COLON: ("Horovod takes 'host:N' in -H, not in a hostfile", "write 'host slots=N'"),
        Mark.JOINED: ("Horovod refuses several hosts on a line", _ONE_LINE_EACH),
        Mark.BRACKETS: ("Horovod refuses hostlists", _ONE_LINE_EACH),
        Mark.SPACED: ("Horovod refuses white space around '='", "write 'slots=N'"),
        Mark.JUNK: ("Horovod refuses what follows the digits", "remove it"),
        Mark.MAX_SLOTS: ("Horovod refuses max_slots", "remove it"),
        Mark.LOGIN: ("Horovod knows no user names", "put them in ~/.ssh/config"),
        Mark.HYDRA_USER: ("Horovod knows no user names", "put them in ~/.ssh/config"),
        Mark.PORT: ("Horovod refuses port=", "use horovodrun -p"),
        Mark.HASH: ("Horovod fails on comments", "remove them"),
        Mark.SLASHES: ("Horovod fails on comments", "remove them"),
        Mark.BLANK: ("Horovod fails on empty lines", "remove them"),
    },
    Format.OPENMPI: {
        Mark.COLON: (
            "Open MPI takes 'host:N' in -host; in a hostfile it is a host of that name, silently",
            "write 'host slots=N'",
        ),
        Mark.JOINED: ("Open MPI does not take several hosts on a line", _ONE_LINE_EACH),
        Mark.BRACKETS: ("Open MPI does not take hostlists", _ONE_LINE_EACH),
        Mark.JUNK: ("Open MPI refuses what follows the digits", "remove it"),
        Mark.HYDRA_USER: ("Open MPI refuses user=", "write 'username=NAME'"),
    },
    Format.HYDRA: {
        Mark.BARE: ("Hydra counts a host without ':N' as one process", "write 'host:N'"),
        Mark.SLOTS: ("Hydra and Intel MPI refuse slots=", "write 'host:N'"),
        Mark.ALIAS: ("Hydra and Intel MPI know only 'host:N'", "write 'host:N'"),
        Mark.JOINED: ("Hydra does not take several hosts on a line, silently", _ONE_LINE_EACH),
        Mark.BRACKETS: ("Hydra does not take hostlists", _ONE_LINE_EACH),
        Mark.JUNK: ("Hydra ignores what follows the digits silently", "remove it"),
        Mark.MAX_SLOTS: ("Hydra refuses max_slots", "remove it"),
        Mark.LOGIN: ("Hydra takes a user as user=NAME", "write 'host:N user=NAME'"),
        Mark.PORT: ("Hydra refuses port=", "put it in ~/.ssh/config"),
        Mark.SLASHES: ("Hydra takes only '#' for comments", _HASH_ONLY),
    },
    Format.HOSTLIST: {},
    Format.NAMES: {},
}
"""What a tool makes of each way of writing that is not its own, and what to write instead."""

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
    hosts = tuple(host for entry in contents.entries for host in _hosts(entry, decided))
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
        len({entry.line.number for entry in contents.entries}) == 1
        and all(entry.marks.keys() == {Mark.COLON, Mark.JOINED} for entry in contents.entries)
    )  # fmt: skip


def _hosts(entry: Entry, decided: Format) -> Iterator[Host]:
    slots = 1 if entry.slots is None and decided is Format.HYDRA else entry.slots
    for name in entry.names:
        yield Host(
            name=name,
            slots=slots,
            max_slots=entry.max_slots,
            user=entry.user,
            port=entry.port,
        )


def _collisions(entries: list[Entry]) -> Iterator[Problem]:
    first: dict[str, int] = {}
    total = 0
    for entry in entries:
        total += len(entry.names)
        if total > MAX_NAMES:
            message = f"this file names more than {MAX_NAMES:,} hosts"
            yield entry.line.problem(message, column=entry.column)
            return
        for name in entry.names:
            if name in first:
                yield entry.line.problem(
                    f"host {name!r} stands twice, first on line {first[name]}",
                    column=entry.column,
                    hint=f"name it once, with all its slots: '{name} slots=N'",
                )
            first.setdefault(name, entry.line.number)


def _without_slots(entries: list[Entry], decided: Format) -> Iterator[Problem]:
    for entry in entries:
        if Mark.BARE in entry.marks:
            yield entry.line.problem(
                f"{decided.tool} needs the slots of every host",
                column=entry.column,
                hint=f"write '{entry.names[0]} slots=N'",
            )


def _warnings(contents: Contents, decided: Format) -> Iterator[Problem]:
    """Yield each hazard once, at its first place, with the number of its other places."""
    hazards = _HAZARDS[decided]
    if decided is Format.HOROVOD and _is_dash_h(contents):
        hazards = {}
    found: dict[tuple[str, str | None], list[tuple[Line, int]]] = {}
    marks = [(mark, entry.line, at) for entry in contents.entries
             for mark, at in entry.marks.items()]  # fmt: skip
    for mark, line, column in contents.layout + marks:
        hazard = _BINDING if mark is Mark.BINDING else hazards.get(mark)
        if hazard is not None:
            found.setdefault(hazard, []).append((line, column))
    problems = []
    for (message, hint), places in found.items():
        line, column = places[0]
        others = len({place.number for place, _ in places}) - 1
        also = f" (and on {others} more line{'s' * (others > 1)})" if others else ""
        problems.append(line.problem(message + also, column=column, hint=hint))
    yield from sorted(problems, key=_place)


def _place(problem: Problem) -> tuple[int, int]:
    position = problem.position
    return ((position.line or 0), (position.column or 0)) if position else (0, 0)
