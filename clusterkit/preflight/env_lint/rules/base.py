"""What a rule is: an id, a name, what it looks at, and what `clusterkit explain ID` says of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from clusterkit.core.findings import Verdict
from clusterkit.preflight.env_lint.setting import Setting
from clusterkit.preflight.env_lint.variables import Variable


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """What a rule has to say about one setting."""

    summary: str
    hint: str = ""
    verdict: Verdict | None = None
    """None for the rule's own."""


Alone = Callable[[Setting, Variable | None], Iterator[Remark]]
"""Judges one setting; the variable is None where the name is not in our table."""

Together = Callable[[Mapping[str, Setting]], Iterator[tuple[str, str, str]]]
"""Judges what can be set at the same time; yields name of the variable, summary and hint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that can be wrong with a variable; has either `alone` or `together`."""

    id: str
    """`NCCL` and three digits from 101 up; never used again for something else."""
    name: str
    verdict: Verdict
    what: str
    """What it finds; less than a line, it stands in the table of rules."""
    why: str
    fix: str
    alone: Alone | None = None
    together: Together | None = None


def items(value: str) -> tuple[str, ...]:
    """Return the items of a comma-separated list, without the `^` and `=` before the first."""
    return tuple(value.lstrip("^=").split(","))


def includes(value: str) -> bool:
    """Tell whether a list of interfaces or HCAs says which to use, and not which to leave out."""
    return bool(value) and not value.startswith("^")


def number(setting: Setting | None) -> int | None:
    """Return the number that NCCL reads; None where it is not set, or only the shell knows."""
    if setting is None or not setting.value:
        return None
    return strtoll(setting.value)[0]


def strtoll(text: str) -> tuple[int, str]:
    """Return what C's `strtoll(text, &end, 0)` returns, and what it leaves unread.

    NCCL reads its integers so and never looks at `end` (src/misc/param.cc).
    """
    rest = text.lstrip(" \t\n\v\f\r")
    sign = -1 if rest[:1] == "-" else 1
    rest = rest[1:] if rest[:1] in {"+", "-"} else rest
    base, digits = 10, "0123456789"
    if rest[:2].lower() == "0x" and rest[2:3] and rest[2] in "0123456789abcdefABCDEF":
        base, digits, rest = 16, "0123456789abcdefABCDEF", rest[2:]
    elif rest[:1] == "0":
        base, digits = 8, "01234567"
    length = 0
    while length < len(rest) and rest[length] in digits:
        length += 1
    if not length:
        return 0, text
    # More digits than any 64-bit number has would only cost time: strtoll saturates.
    return sign * int(rest[: min(length, 30)], base), rest[length:]
