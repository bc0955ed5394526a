"""Slurm hostlists, such as `n[1-3,7],login1`: expand and fold, order and duplicates kept.

Ranks follow the order of the list, so nothing here sorts but `fold_set`, which is for display.
The grammar is Slurm's `--nodelist` (man sbatch) with three differences: text after a bracket is
read (`n[1-2]-ib`; Slurm 22.05 refuses it), while empty items (`n1,,n2`) and bounds whose padding
disagrees (`n[1-03]`) are refused, where Slurm drops the one and guesses at the other.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from clusterkit.core.errors import Position, UserError

MAX_NAMES = 65_536
"""Most names that one list may stand for; also Slurm's own limit for a range."""

MAX_NAME_LENGTH = 253
"""Longest host name that DNS can carry (RFC 1035, without the final dot)."""

_MAX_DIGITS = 18
_LITERAL = re.compile(r"[A-Za-z0-9_.-]+")
_RANGE = re.compile(r"([0-9]+)(-?)([0-9]*)")
_DIGITS = re.compile(rf"([0-9]{{1,{_MAX_DIGITS}}})")
_TASKS = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")

_TOO_MANY = f"this hostlist stands for more than {MAX_NAMES:,} hosts"


def expand(text: str, *, source: str = "hostlist") -> tuple[str, ...]:
    """Return the host names that `text` stands for, in its order and with its duplicates.

    White space around the whole list is dropped; an empty list stands for no hosts. `source` is
    what an error says the text came from.

    >>> expand("n[9-11],n9")
    ('n9', 'n10', 'n11', 'n9')

    Raises:
        UserError: `text` is not a hostlist, or stands for more than `MAX_NAMES` names.
    """
    if not text.strip():
        return ()
    return tuple(_Scanner(text, source).names())


def fold(names: Iterable[str]) -> str:
    """Return the compact hostlist that expands to exactly `names`, in that order.

    Only the digits at the end of a name are folded, because Slurm refuses text after a bracket:
    the result may be handed to Slurm as it is. `expand(fold(names)) == tuple(names)` holds up to
    `MAX_NAMES` names.

    Raises:
        UserError: a name holds a character that a hostlist gives another meaning to.
    """
    listed = tuple(names)
    for name in listed:
        if not _LITERAL.fullmatch(name) or name.startswith("-") or len(name) > MAX_NAME_LENGTH:
            raise UserError(
                f"host name {name!r} cannot stand in a hostlist",
                hint="letters, digits, '.', '_' and '-' can; write one name per line instead",
            )
    return _fold(listed, anywhere=False)


def fold_set(names: Iterable[str]) -> str:
    """Return the distinct `names` as people like to read them: sorted naturally and folded.

    For display only: it is never refused, whatever the names are, and the order is its own.

    >>> fold_set(["n9", "n1-ib", "n2-ib", "n10", "n9"])
    'n[9-10],n[1-2]-ib'
    """
    return _fold(sorted(set(names), key=_natural), anywhere=True)


def parse_tasks_per_node(text: str, *, source: str = "SLURM_TASKS_PER_NODE") -> tuple[int, ...]:
    """Return one task count per node from Slurm's run-length form.

    >>> parse_tasks_per_node("3(x2),2")
    (3, 3, 2)

    Raises:
        UserError: `text` is not of that form, or stands for more than `MAX_NAMES` nodes.
    """
    counts: list[int] = []
    column = 1
    for item in text.split(","):
        match = _TASKS.fullmatch(item.strip())
        repeat = int(match[2] or 1) if match else 0
        if match is None or not repeat or not int(match[1]) or len(counts) + repeat > MAX_NAMES:
            raise UserError(
                f"{item.strip()[:40]!r} is not a task count",
                hint="such as '8', '8,4' or '8(x16),4', each at least 1",
                position=Position(source=source, line=1, column=column, text=text),
            )
        counts += [int(match[1])] * repeat
        column += len(item) + 1
    return tuple(counts)


class _Scanner:
    """One pass over the text of a hostlist; knows where it stands, so that errors can say so."""

    def __init__(self, text: str, source: str) -> None:
        self._text = text
        self._source = source
        self._at = len(text) - len(text.lstrip())
        self._end = len(text.rstrip())
        self._count = 0

    def names(self) -> Iterator[str]:
        """Yield the names of every item."""
        yield from self._item()
        while self._at < self._end:
            self._at += 1  # the comma at which the item ended
            yield from self._item()

    def _item(self) -> Iterator[str]:
        start = self._at
        if self._text.startswith("-", start):
            # ssh, srun and mpirun would take such a name for an option.
            raise self._error("a host name cannot begin with '-'", "remove it")
        parts: list[tuple[str, ...]] = []
        names, length = 1, 0
        while self._at < self._end and self._text[self._at] != ",":
            parts.append(self._part())
            names *= len(parts[-1])
            length += max(map(len, parts[-1]))
            # Checked at every part: the product of a short text can fill any memory.
            if self._count + names > MAX_NAMES:
                raise self._error(_TOO_MANY, "give fewer hosts", at=start)
            if length > MAX_NAME_LENGTH:
                raise self._error(f"a host name has at most {MAX_NAME_LENGTH} characters", at=start)
        if not parts:
            raise self._error("a host is missing here", "remove the spare comma")
        self._count += names
        return map("".join, itertools.product(*parts))

    def _part(self) -> tuple[str, ...]:
        if self._text[self._at] == "[":
            return self._bracket()
        match = _LITERAL.match(self._text, self._at, self._end)
        if match is None:
            raise self._stray()
        self._at = match.end()
        return (match[0],)

    def _bracket(self) -> tuple[str, ...]:
        opened = self._at
        numbers: list[str] = []
        while True:
            self._at += 1  # "[" or ","
            numbers += self._range(opened)
            if len(numbers) > MAX_NAMES:
                raise self._error(_TOO_MANY, "give fewer hosts", at=opened)
            if self._at < self._end and self._text[self._at] == "]":
                self._at += 1
                return tuple(numbers)
            if self._at >= self._end:
                raise self._error("this '[' is never closed", "add ']'", at=opened)
            if self._text[self._at] != ",":
                raise self._error(
                    f"unexpected {self._text[self._at]!r} inside brackets",
                    "numbers and ranges stand there, such as n[1-3,7]",
                )

    def _range(self, opened: int) -> Iterable[str]:
        match = _RANGE.match(self._text, self._at, self._end)
        if match is None:
            if self._at >= self._end:
                raise self._error("this '[' is never closed", "add ']'", at=opened)
            raise self._error("a number is missing here", "such as n[1-3,7]")
        low, dash, high = match.groups()
        if max(len(low), len(high)) > _MAX_DIGITS:
            raise self._error(f"a number has at most {_MAX_DIGITS} digits")
        if dash and not high:
            raise self._error(f"the range {match[0]} has no end", f"such as {low}-{int(low) + 2}")
        high = high or low
        first, last = int(low), int(high)
        if last < first:
            raise self._error(f"the range {match[0]} runs backwards", f"did you mean {high}-{low}?")
        if high.startswith("0") and len(high) != len(low):
            raise self._error(
                f"the zero padding of {match[0]} is unclear",
                f"pad both bounds alike: {first:0{len(high)}d}-{high} or {low}-{last}",
            )
        if last - first >= MAX_NAMES:
            raise self._error(_TOO_MANY, "give fewer hosts")
        self._at = match.end()
        return (f"{number:0{len(low)}d}" for number in range(first, last + 1))

    def _stray(self) -> UserError:
        stray = self._text[self._at]
        if stray.isspace():
            return self._error("white space inside a hostlist", "separate hosts by a comma alone")
        if stray == "]":
            return self._error("this ']' has no '[' before it", "remove it")
        return self._error(
            f"{stray!r} cannot stand in a host name", "letters, digits, '.', '_' and '-' can"
        )

    def _error(self, message: str, hint: str | None = None, *, at: int | None = None) -> UserError:
        at = self._at if at is None else at
        begin = self._text.rfind("\n", 0, at) + 1
        position = Position(
            source=self._source,
            line=self._text.count("\n", 0, at) + 1,
            column=at - begin + 1,
            text=self._text[begin:].split("\n", 1)[0],
        )
        return UserError(message, hint=hint, position=position)


@dataclass(slots=True, kw_only=True)
class _Run:
    """Consecutive names that are alike but for the number at index `varying`."""

    parts: list[str]
    """The first name: literal text at even indices, digits at odd ones."""
    varying: int | None
    ranges: list[tuple[str, int]] = field(default_factory=list)
    """First number as written, and the value of the last."""

    def absorb(self, parts: list[str], *, anywhere: bool) -> bool:
        """Take in the next name, or return False where it does not continue this run."""
        if len(parts) != len(self.parts):
            return False
        differing = [
            i for i, (new, old) in enumerate(zip(parts, self.parts, strict=True)) if new != old
        ]
        usual = self.varying if self.varying is not None else len(self.parts) - 2
        index = differing[0] if differing else usual
        if len(differing) > 1 or index % 2 == 0 or (self.varying not in {None, index}):
            return False
        if not anywhere and (index != len(parts) - 2 or parts[-1]):
            return False
        if self.varying is None:
            self.varying = index
            self.ranges = [(self.parts[index], int(self.parts[index]))]
        first, last = self.ranges[-1]
        if parts[index] == f"{last + 1:0{len(first)}d}":
            self.ranges[-1] = (first, last + 1)
        else:
            self.ranges.append((parts[index], int(parts[index])))
        return True

    def __str__(self) -> str:
        if self.varying is None:
            return "".join(self.parts)
        numbers = [
            first if int(first) == last else f"{first}-{last:0{len(first)}d}"
            for first, last in self.ranges
        ]
        parts = list(self.parts)
        parts[self.varying] = f"[{','.join(numbers)}]"
        return "".join(parts)


def _fold(names: Iterable[str], *, anywhere: bool) -> str:
    runs: list[_Run] = []
    for name in names:
        parts = _DIGITS.split(name)
        if not (runs and runs[-1].absorb(parts, anywhere=anywhere)):
            runs.append(_Run(parts=parts, varying=None))
    return ",".join(map(str, runs))


def _natural(name: str) -> tuple[list[str], list[tuple[int, int]], str]:
    parts = _DIGITS.split(name)
    return parts[::2], [(int(digits), len(digits)) for digits in parts[1::2]], name
