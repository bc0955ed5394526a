"""A sweep: from a text such as `lr=1e-3,1e-4;seed=0-3%2` to the values of one job each. Pure."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from clusterkit.core.errors import Position, Problem, UserError

MOST = 1000
"""Elements of one array; what Slurm's MaxArraySize allows where nobody has changed it."""

FORMS = "--array 'lr=1e-3,1e-4;seed=0-3%2', or --array FILE (YAML, JSON or CSV)"
KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)
_RANGE = re.compile(r"(-?\d{1,15})-(-?\d{1,15})(?::(\d{1,15}))?", re.ASCII)
_LIMIT = re.compile(r"%(\d{1,9})\s*$", re.ASCII)
_NO_LIMIT = re.compile(r"%[^%,;=]*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """One job of a sweep: its number in the whole, and its values."""

    index: int
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """All elements in order, and how many may run at once (None: all)."""

    source: str
    """What gave it, as messages name it."""
    elements: tuple[Element, ...]
    at_once: int | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key, in the order in which they first stand."""
        return tuple(dict.fromkeys(key for e in self.elements for key in e.values))


@dataclass(frozen=True, slots=True)
class _Part:
    """A piece of a spec without the spaces around it, and where it begins (from 0)."""

    text: str
    start: int

    def split(self, separator: str) -> Iterator[_Part]:
        """Yield the pieces between the separators."""
        at = self.start
        for piece in self.text.split(separator):
            yield _Part(piece.strip(), at + len(piece) - len(piece.lstrip()))
            at += len(piece) + len(separator)


@dataclass(frozen=True, slots=True)
class _Item:
    """One value of a key, or a range of them that is not written out yet."""

    part: _Part
    numbers: range | None = None

    @property
    def count(self) -> int:
        return 1 if self.numbers is None else len(self.numbers)

    def texts(self) -> Iterator[str]:
        """Yield the values; `008-010` keeps its zeros."""
        if self.numbers is None:
            yield self.part.text
            return
        first = self.part.text.partition("-")[0]
        width = len(first) if first.startswith("0") else 0
        yield from (f"{number:0{width}d}" for number in self.numbers)


class _SpecReader:
    """Read one spec, and collect everything that is wrong with it."""

    def __init__(self, text: str, source: str) -> None:
        """Read `text`, which messages call `source`."""
        self.text = text
        self.source = source
        self.problems: list[Problem] = []

    def read(self) -> Sweep:
        """Return the sweep.

        Raises:
            UserError: with the place of every mistake.
        """
        limit = _LIMIT.search(self.text)
        if limit and int(limit[1]) < 1:
            self._wrong(_Part("", limit.start()), "at least 1 job has to run at once", "%1 or more")
        no_limit = None if limit else _NO_LIMIT.search(self.text)
        if no_limit:
            self._wrong(
                _Part("", no_limit.start()),
                f"{no_limit[0]!r} does not say how many jobs run at once",
                "%2 for two; a value with a % can stand in a file",
            )
        axes: dict[str, tuple[_Item, ...]] = {}
        for part in _Part(self.text[: limit.start()] if limit else self.text, 0).split(";"):
            self._add_axis(axes, part)
        if not self.problems:
            counts = [sum(item.count for item in items) for items in axes.values()]
            require_few(math.prod(counts), self.source)
            for key, items in axes.items():
                self._refuse_repeated(key, items)
        if self.problems:
            raise UserError(problems=self.problems)
        columns = [[text for item in items for text in item.texts()] for items in axes.values()]
        rows = (dict(zip(axes, row, strict=True)) for row in itertools.product(*columns))
        at_once = int(limit[1]) if limit else None
        return dataclasses.replace(numbered(rows, source=self.source), at_once=at_once)

    def _add_axis(self, axes: dict[str, tuple[_Item, ...]], part: _Part) -> None:
        key, equals, rest = part.text.partition("=")
        name = key.strip()
        if not equals or not KEY.fullmatch(name):
            self._wrong(part, f"{part.text!r} is no KEY=VALUES", FORMS)
        elif name in axes:
            self._wrong(part, f"{name} stands twice", f"{name}=ALL,ITS,VALUES")
        else:
            values = _Part(rest, part.start + len(key) + 1).split(",")
            axes[name] = tuple(self._item(name, value) for value in values)

    def _item(self, key: str, part: _Part) -> _Item:
        if not part.text:
            self._wrong(part, f"{key} has an empty value", "an empty text can be given in a file")
        match = _RANGE.fullmatch(part.text)
        if match is None:
            return _Item(part)
        first, last, step = (int(number) for number in match.groups("1"))
        if first > last or step < 1:
            why = "counts down" if first > last else "has no step"
            self._wrong(
                part,
                f"the range {part.text} {why}",
                "FIRST-LAST or FIRST-LAST:STEP, upwards; texts with a hyphen can stand in a file",
            )
            return _Item(part)
        return _Item(part, range(first, last + 1, step))

    def _refuse_repeated(self, key: str, items: Iterable[_Item]) -> None:
        seen: set[str] = set()
        for item in items:
            twice = next((text for text in item.texts() if text in seen), None)
            if twice is not None:
                self._wrong(item.part, f"{key} has the value {twice} twice", "leave one out")
            seen.update(item.texts())

    def _wrong(self, part: _Part, message: str, hint: str) -> None:
        position = Position(source=self.source, line=1, column=part.start + 1, text=self.text)
        self.problems.append(Problem(message=message, hint=hint, position=position))


def numbered(rows: Iterable[Mapping[str, str]], *, source: str) -> Sweep:
    """Return the sweep of these rows, in their order."""
    elements = (Element(index=index, values=values) for index, values in enumerate(rows))
    return Sweep(source=source, elements=tuple(elements))


def parse_spec(text: str, *, source: str = "--array") -> Sweep:
    """Read `KEY=VALUE,VALUE,...;KEY=FIRST-LAST[:STEP]%AT_ONCE`: all combinations, in order.

    The last key changes fastest. A range of whole numbers has both its ends.

    Raises:
        UserError: with the place of every mistake.
    """
    return _SpecReader(text, source).read()


def require_few(count: int, source: str) -> None:
    """Refuse more elements than an array may have.

    Raises:
        UserError: there are more.
    """
    if count > MOST:
        raise UserError(
            f"{source} describes {count} jobs, and an array has at most {MOST}",
            hint="leave values out, or submit several arrays",
        )


def choose(sweep: Sweep, text: str) -> Sweep:
    """Return the sweep with some of its elements only: `3,7,40-99`; they keep their numbers.

    Raises:
        UserError: there is no such element.
    """
    wanted: set[int] = set()
    last = sweep.elements[-1].index
    several = f" or --elements {'0-' if last < 3 else '0,2-'}{last}" if last else ""
    for part in _Part(text, 0).split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.text, re.ASCII)
        first, end = (int(match[1]), int(match[2] or match[1])) if match else (0, last + 1)
        if first > end or end > last:
            raise UserError(
                f"{part.text!r} are no elements: they count from 0 to {last}",
                hint=f"--elements 0{several}",
                position=Position(source="--elements", line=1, column=part.start + 1, text=text),
            )
        wanted.update(range(first, end + 1))
    chosen = tuple(element for element in sweep.elements if element.index in wanted)
    return dataclasses.replace(sweep, elements=chosen)


def fold_numbers(numbers: Iterable[int]) -> str:
    """Return numbers as `choose` reads them: `0-3,7`."""
    ordered = sorted(set(numbers))
    runs: list[list[int]] = []
    for number in ordered:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(str(number) for number in run) for run in runs)
