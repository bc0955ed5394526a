"""A sweep: from a text such as `lr=1e-3,1e-4;seed=0-3%2` to the values of one job each. Pure."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
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
    start: int = 0

    def split(self, separator: str) -> Iterator[_Part]:
        """Yield the pieces between the separators."""
        at = self.start
        for piece in self.text.split(separator):
            yield _Part(piece.strip(), at + len(piece) - len(piece.lstrip()))
            at += len(piece) + len(separator)

    @property
    def numbers(self) -> range | None:
        """The whole numbers that it stands for, where it is FIRST-LAST[:STEP]; not written out."""
        match = _RANGE.fullmatch(self.text)
        if match is None:
            return None
        first, last, step = (int(number) for number in match.groups("1"))
        return range(first, last + 1, step) if step else range(0)

    @property
    def count(self) -> int:
        """How many values it is."""
        return 1 if self.numbers is None else len(self.numbers)

    def values(self) -> Iterator[str]:
        """Yield the values; `008-010` keeps its zeros."""
        if self.numbers is None:
            yield self.text
            return
        first = self.text.partition("-")[0]
        width = len(first) if first.startswith("0") else 0
        yield from (f"{number:0{width}d}" for number in self.numbers)


def parse_spec(text: str, *, source: str = "--array") -> Sweep:
    """Read `KEY=VALUE,VALUE,...;KEY=FIRST-LAST[:STEP]%AT_ONCE`: all combinations, in order.

    The last key changes fastest. A range of whole numbers has both its ends.

    Raises:
        UserError: with the place of every mistake.
    """
    wrong: list[tuple[int, str, str]] = []
    limit = _LIMIT.search(text)
    if limit and int(limit[1]) < 1:
        wrong.append((limit.start(), "at least 1 job has to run at once", "%1 or more"))
    elif not limit and (other := _NO_LIMIT.search(text)):
        message = f"{other[0]!r} does not say how many jobs run at once"
        wrong.append((other.start(), message, "%2 for two; a value with a % can stand in a file"))
    axes: dict[str, tuple[_Part, ...]] = {}
    for part in _Part(text[: limit.start()] if limit else text).split(";"):
        key, equals, rest = part.text.partition("=")
        name = key.strip()
        if not equals or not KEY.fullmatch(name):
            wrong.append((part.start, f"{part.text!r} is not KEY=VALUES", FORMS))
        elif name in axes:
            wrong.append((part.start, f"{name} stands twice", f"{name}=ALL,ITS,VALUES"))
        else:
            axes[name] = tuple(_Part(rest, part.start + len(key) + 1).split(","))
            wrong += _mistakes(name, axes[name])
    if not wrong:
        counts = [sum(part.count for part in parts) for parts in axes.values()]
        _require_few(math.prod(counts), source)
        wrong += [mistake for name, parts in axes.items() for mistake in _repeated(name, parts)]
    if wrong:
        line = Position(source=source, line=1, text=text)
        raise UserError(
            problems=[
                Problem(message=what, hint=hint, position=dataclasses.replace(line, column=at + 1))
                for at, what, hint in wrong
            ]
        )
    columns = [[value for part in parts for value in part.values()] for parts in axes.values()]
    rows = (dict(zip(axes, row, strict=True)) for row in itertools.product(*columns))
    at_once = int(limit[1]) if limit else None
    return dataclasses.replace(numbered(rows, source=source), at_once=at_once)


def _mistakes(key: str, parts: Iterable[_Part]) -> Iterator[tuple[int, str, str]]:
    """Yield where a value of a key is none, why, and what to write instead."""
    for part in parts:
        if not part.text:
            yield part.start, f"{key} has an empty value", "an empty text can be given in a file"
        if part.numbers is not None and not part.numbers:
            why = "has no step" if re.search(":0+$", part.text) else "counts down"
            hint = "FIRST-LAST or FIRST-LAST:STEP, upwards; texts with a hyphen can stand in a file"
            yield part.start, f"the range {part.text} {why}", hint


def _repeated(key: str, parts: Iterable[_Part]) -> Iterator[tuple[int, str, str]]:
    seen: set[str] = set()
    for part in parts:
        twice = next((value for value in part.values() if value in seen), None)
        if twice is not None:
            yield part.start, f"{key} has the value {twice} twice", "leave one out"
        seen.update(part.values())


def numbered(rows: Iterable[Mapping[str, str]], *, source: str) -> Sweep:
    """Return the sweep of these rows, in their order.

    Raises:
        UserError: they are more than an array may have.
    """
    elements = [Element(index=index, values=values) for index, values in enumerate(rows)]
    _require_few(len(elements), source)
    return Sweep(source=source, elements=tuple(elements))


def _require_few(count: int, source: str) -> None:
    if count > MOST:
        message = f"{source} describes {count} jobs, and an array has at most {MOST}"
        raise UserError(message, hint="leave values out, or submit several arrays")


def choose(sweep: Sweep, text: str) -> Sweep:
    """Return the sweep with some of its elements only: `3,7,40-99`; they keep their numbers.

    Raises:
        UserError: there is no such element.
    """
    numbers: set[int] = set()
    last = sweep.elements[-1].index
    several = f" or --elements {'0-' if last < 3 else '0,2-'}{last}" if last else ""
    for part in _Part(text, 0).split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.text, re.ASCII)
        first, end = (int(match[1]), int(match[2] or match[1])) if match else (0, last + 1)
        if first > end or end > last:
            raise UserError(
                f"{part.text!r} are not elements: they count from 0 to {last}",
                hint=f"--elements 0{several}",
                position=Position(source="--elements", line=1, column=part.start + 1, text=text),
            )
        numbers.update(range(first, end + 1))
    chosen = tuple(element for element in sweep.elements if element.index in numbers)
    return dataclasses.replace(sweep, elements=chosen)


def fold_numbers(numbers: Iterable[int]) -> str:
    """Return numbers as `choose` reads them: `0-3,7`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(str(number) for number in run) for run in runs)


def ranks_in_words(ranks: Collection[int]) -> str:
    """Return `rank 3`, or `ranks 0-3,7`."""
    return f"rank{'s' * (len(ranks) > 1)} {fold_numbers(ranks)}"
