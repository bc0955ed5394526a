"""What the formats are called, and the text of a hostfile taken apart, whichever tool it is for.

Four tools read nearly the same file and disagree in silence (docs/hostfile.md has the table). So
`hostfile_reader.parse` reads leniently and warns wherever the tool itself would misread, and
`hostfile_writer.write` gives either a text that the tool reads back as exactly the same hosts, or
a `UserError`. Nothing in these three opens a file of the user's or runs a command.

One grammar covers them all: comments, then entries separated by line ends or commas, each
`[user@]HOST[:N] [key=value]...`. How an entry was written is kept as its marks; what each tool
makes of a mark is the reader's business.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum, auto

from clusterkit.core.data import read_table
from clusterkit.core.errors import Position, Problem, UserError, choices_hint
from clusterkit.core.hosts import hostlist
from clusterkit.core.hosts.hostlist import MAX_NAME_LENGTH
from clusterkit.core.model import Host

MAX_SLOTS = 65_536
"""Most slots that one host may have; a larger number is a slip of the keyboard."""

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{MAX_NAME_LENGTH - 1}}}")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_IPV4 = re.compile(r"[0-9]+(?:\.[0-9]+){3}")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]+")


class Format(StrEnum):
    """A way to write down hosts; `hydra` is also what Intel MPI reads as `-machinefile`."""

    DEEPSPEED = "deepspeed"
    HOROVOD = "horovod"
    OPENMPI = "openmpi"
    HYDRA = "hydra"
    HOSTLIST = "hostlist"
    NAMES = "names"

    @property
    def tool(self) -> str:
        """Who reads it, as a sentence names it."""
        return _FORMATS[self]["tool"]

    def says(self, what: str) -> bool:
        """Tell whether it can say `slots`, `max_slots`, `user` or `port` of a host, or `ipv6`."""
        return what in _FORMATS[self]["says"].split()


_FORMATS = {row["format"]: row for row in read_table(__file__, "formats.tsv")}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFile:
    """The hosts of a file, the format it is in, and where its tool would misread it."""

    hosts: tuple[Host, ...]
    format: Format
    warnings: tuple[Problem, ...] = ()


def to_format(name: str) -> Format:
    """Return the format called `name`.

    Raises:
        UserError: there is none of that name.
    """
    try:
        return Format(name)
    except ValueError:
        known = [known.value for known in Format]
        raise UserError(
            f"no hostfile format is called {name!r}", hint=choices_hint(name, known)
        ) from None


def is_host_name(text: str) -> bool:
    """Tell whether `text` is a host name or an IPv4 or IPv6 address, and safe as an argument."""
    return _NAME.fullmatch(text) is not None or is_ipv6(text)


def short_name(name: str) -> str:
    """Return the host name without its domain; an address as it is."""
    return name if is_ipv6(name) or _IPV4.fullmatch(name) else name.partition(".")[0]


def is_ipv6(text: str) -> bool:
    """Tell whether `text` is an IPv6 address without brackets or a zone."""
    if text.count(":") < 2 or not _IPV6.fullmatch(text):
        return False
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def is_user_name(text: str) -> bool:
    """Tell whether `text` is a POSIX user name, and safe as an argument."""
    return _USER.fullmatch(text) is not None


class Mark(Enum):
    """How something in a hostfile was written, where the tools differ about it."""

    BARE = auto()  # no slots
    SLOTS = auto()  # slots=N
    COLON = auto()  # host:N
    ALIAS = auto()  # cpu=N, count=N
    SPACED = auto()  # slots = N
    JUNK = auto()  # slots=4x, host:4x
    MAX_SLOTS = auto()
    LOGIN = auto()  # user@host, username=
    PORT = auto()
    HYDRA_USER = auto()  # user=
    BINDING = auto()
    JOINED = auto()  # several entries on a line
    BRACKETS = auto()  # n[1-4]
    HASH = auto()  # a comment from '#' on
    SLASHES = auto()  # a comment in the manner of C
    BLANK = auto()


def problem_in(line: Position, column: int, message: str, hint: str | None = None) -> Problem:
    """Return a problem at a column of a line, which counts from 1."""
    return Problem(message=message, hint=hint, position=replace(line, column=column))


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One host, or one hostlist of hosts that are alike, as the file has it."""

    line: Position
    column: int
    hosts: tuple[Host, ...]
    marks: Mapping[Mark, int]
    """Each mark with the column it stands at."""


@dataclass(slots=True, kw_only=True)
class Contents:
    """All that a text holds: entries, marks of the layout, and what could not be read."""

    entries: list[Entry] = field(default_factory=list)
    layout: list[tuple[Mark, Position, int]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


_COMMENT = re.compile(r"#[^\n]*|//[^\n]*|/\*.*?\*/|(/\*.*)", re.DOTALL)
_HOST = re.compile(r"[^\s=]+(?!\s*=)")
_WORD = re.compile(r"([^\s=]+)(\s*)=(\s*)([^\s=]*)|(\S+)")
_NUMBER = re.compile(r"([0-9]{1,9})(.*)", re.DOTALL)

KEYS: Mapping[str, tuple[str, Mark]] = {
    row["key"]: (row["field"], Mark[row["mark"]]) for row in read_table(__file__, "keys.tsv")
}
"""Every key that some tool knows: the field it sets, and the mark it leaves."""
_MOST = {"slots": MAX_SLOTS, "max_slots": MAX_SLOTS, "port": 65_535}


def read_entries(text: str, source: str) -> Contents:
    """Return everything that `text` holds, with all its problems."""
    contents = Contents()
    text = text.removeprefix("\ufeff")
    lines = [
        Position(source=source, line=number, text=line.rstrip("\r"))
        for number, line in enumerate(text.split("\n"), start=1)
    ]
    for comment in _COMMENT.finditer(text):
        if comment[1] is not None:
            line = lines[text.count("\n", 0, comment.start())]
            column = comment.start() - text.rfind("\n", 0, comment.start())
            wrong = problem_in(line, column, "this comment is never closed", "add '*/'")
            contents.problems.append(wrong)
    bare = _COMMENT.sub(lambda comment: re.sub(r"[^\n]", " ", comment[0]), text)
    for line, stripped in zip(lines, bare.split("\n"), strict=True):
        if line.text and line.text.strip() and stripped.rstrip() != line.text.rstrip():
            pairs = enumerate(zip(line.text, stripped, strict=False), start=1)
            column = next(at for at, (char, blank) in pairs if char != blank)
            mark = Mark.HASH if line.text[column - 1] == "#" else Mark.SLASHES
            contents.layout.append((mark, line, column))
        elif line is not lines[-1] and not (line.text or "").strip():
            contents.layout.append((Mark.BLANK, line, 1))
        segments = list(_segments(stripped)) if stripped.strip() else []
        for start, segment in segments:
            reader = _EntryReader(line, start, segment)
            entry = reader.read(joined=len(segments) > 1)
            contents.problems += reader.problems
            if entry is not None and entry.hosts:
                contents.entries.append(entry)
    return contents


def _segments(text: str) -> Iterator[tuple[int, str]]:
    start = depth = 0
    for index, char in enumerate(text):
        depth = max(0, depth + (char == "[") - (char == "]"))
        if char == "," and not depth:
            yield start, text[start:index]
            start = index + 1
    yield start, text[start:]


class _EntryReader:
    """Reads one entry, `text`, which begins at offset `start` of its line."""

    def __init__(self, line: Position, start: int, text: str) -> None:
        self._line = line
        self._start = start
        self._text = text
        self._numbers: dict[str, int] = {}
        self._texts: dict[str, str] = {}
        self._marks: dict[Mark, int] = {}
        self.problems: list[Problem] = []

    def read(self, *, joined: bool) -> Entry | None:
        """Return the entry, or None with `problems` filled."""
        lead = len(self._text) - len(self._text.lstrip())
        host = _HOST.match(self._text, lead)
        if host is None or (host.end() < len(self._text) and not self._text[host.end()].isspace()):
            self._problem("a host is missing here", lead, "such as 'n1 slots=8'")
            return None
        names = self._host(host[0], lead)
        for word in _WORD.finditer(self._text, host.end()):
            self._word(word)
        slots, limit = self._numbers.get("slots"), self._numbers.get("max_slots")
        if slots is not None and limit is not None and limit < slots:
            self._problem(f"max_slots={limit} is less than slots={slots}", lead)
        if slots is None:
            self._mark(Mark.BARE, lead)
        if joined:
            self._mark(Mark.JOINED, lead)
        user, port = self._texts.get("user"), self._numbers.get("port")
        hosts = (
            Host(name=name, slots=slots, max_slots=limit, user=user, port=port) for name in names
        )
        column = self._start + lead + 1
        return Entry(line=self._line, column=column, hosts=tuple(hosts), marks=self._marks)

    def _host(self, spec: str, at: int) -> tuple[str, ...]:
        user, sign, rest = spec.rpartition("@")
        if sign:
            self._store("user", user, Mark.LOGIN, at, at)
            at += len(user) + 1
        if rest.startswith(("^", "+")):
            self._problem(
                f"{rest!r} is Open MPI's way to choose among hosts, not a host",
                at,
                "list just the hosts to use",
            )
            return ()
        if is_ipv6(rest):
            return (rest,)
        name, colon, count = rest.partition(":")
        if colon:
            self._store("slots", count, Mark.COLON, at + len(name), at + len(name) + 1)
        if "[" in name:
            self._mark(Mark.BRACKETS, at)
        return self._names(name, at)

    def _names(self, text: str, at: int) -> tuple[str, ...]:
        try:
            names = hostlist.expand(text)
        except UserError as error:
            for problem in error.problems:
                column = problem.position.column if problem.position else None
                self._problem(problem.message, at + (column or 1) - 1, problem.hint)
            return ()
        if not names or not all(map(is_host_name, names)):
            self._problem(f"{text!r} is not a host name", at)
        return names

    def _word(self, word: re.Match[str]) -> None:
        key, before, after, value, stray = word.groups()
        if stray is not None:
            hint = f"write slots={stray}" if stray.isdecimal() else "one host per line"
            self._problem(f"unexpected {stray!r} after the host", word.start(), hint)
        elif key not in KEYS:
            self._problem(f"unknown key {key!r}", word.start(), choices_hint(key, KEYS))
        else:
            if before or after:
                self._mark(Mark.SPACED, word.start())
            name, mark = KEYS[key]
            self._store(name, value, mark, word.start(), word.start(4))

    def _store(self, name: str, value: str, mark: Mark, at: int, value_at: int) -> None:
        """Keep the value of field `name`, written at offset `value_at`."""
        if name in self._numbers or name in self._texts:
            self._problem(f"{name} is given twice", at, "keep one of them")
            return
        self._mark(mark, at)
        if name in _MOST:
            self._numbers[name] = self._number(name, value, value_at)
            return
        self._texts[name] = value
        if name == "user" and not is_user_name(value):
            self._problem(f"{value!r} is not a valid user name", value_at)

    def _number(self, name: str, value: str, at: int) -> int:
        match = _NUMBER.fullmatch(value)
        if match is None or (match[2] and (name != "slots" or match[2].startswith(":"))):
            self._problem(f"{name} needs a whole number, not {value!r}", at)
            return 1
        number = int(match[1])
        if match[2][:1].isdecimal() or number > _MOST[name]:
            self._problem(f"{name} is at most {_MOST[name]}", at)
        elif number == 0:
            hint = "remove the line, or give it at least 1" if name == "slots" else None
            self._problem(f"{name} is 0", at, hint)
        elif match[2]:
            self._mark(Mark.JUNK, at + len(match[1]))
        return number

    def _mark(self, mark: Mark, at: int) -> None:
        self._marks.setdefault(mark, self._start + at + 1)

    def _problem(self, message: str, at: int, hint: str | None = None) -> None:
        self.problems.append(problem_in(self._line, self._start + at + 1, message, hint))
