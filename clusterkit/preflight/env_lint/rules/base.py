"""What a rule is: a row of `rules.tsv`, and a function that looks at settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import NamedTuple

from clusterkit.core.data import read_table
from clusterkit.core.findings import Verdict
from clusterkit.core.records import row_of
from clusterkit.preflight.env_lint.setting import Mistake, Setting
from clusterkit.preflight.env_lint.variables import Variable


class Violation(NamedTuple):
    """What a rule has to say about one setting."""

    summary: str
    hint: str = ""
    verdict: Verdict | None = None
    """None for the rule's own."""


Alone = Callable[[Setting, Variable | None], Iterable[Violation]]
"""Looks at one setting; the variable is None where the name is not in our table."""

Settings = Mapping[str, Setting]
Conflicts = Iterable[tuple[str, str, str]]
"""Name of the variable, summary, hint."""
Together = Callable[[Settings], Conflicts]
"""Looks at what can be set at the same time."""
OfValue = Callable[[str, Variable], Iterable[Violation]]
"""Looks at the value of a variable that we know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that can be wrong with a variable; `rules.tsv` explains the texts."""

    id: str
    name: str
    verdict: Verdict
    what: str
    why: str
    fix: str
    alone: Alone | None = None
    together: Together | None = None


@cache
def texts() -> Mapping[str, Mapping[str, str]]:
    """Return the rows of `rules.tsv` by id."""
    rows = read_table(Path(__file__).parents[1] / "rules.tsv")
    return {row["id"]: row for row in rows}


def rule(id_: str, *, alone: Alone | None = None, together: Together | None = None) -> Rule:
    """Return the rule of this id."""
    return row_of(Rule, texts()[id_], alone=alone, together=together)


def alone(id_: str) -> Callable[[Alone], Rule]:
    """Return a decorator that makes a rule of a function which looks at one setting."""
    return lambda look: rule(id_, alone=look)


def together(id_: str) -> Callable[[Together], Rule]:
    """Return a decorator that makes a rule of a function which looks at several settings."""
    return lambda look: rule(id_, together=look)


def of_types(*types: str, blank: bool = False) -> Callable[[OfValue], Alone]:
    """Return a decorator for a function that looks at known values of variables of these types.

    Values of blanks alone are left out but with `blank`.
    """

    def decorated(look: OfValue) -> Alone:
        def alone_(setting: Setting, variable: Variable | None) -> Iterable[Violation]:
            value = setting.value or ""
            kept = Mistake.QUOTES_KEPT in setting.mistakes
            if variable is None or variable.type not in types or kept:
                return ()
            return look(value, variable) if value and (blank or value.strip()) else ()

        return alone_

    return decorated


def items(value: str) -> tuple[str, ...]:
    """Return the items of a comma-separated list, without the `^` and `=` before the first."""
    return tuple(value.lstrip("^=").split(","))


def word(settings: Settings, name: str) -> str:
    """Return the value of a variable in small letters; empty where it is not known."""
    setting = settings.get(name)
    return (setting.value or "").strip().lower() if setting else ""


def number(setting: Setting | None) -> int | None:
    """Return the number that NCCL reads; None where it is not set, or only the shell knows."""
    return strtoll(setting.value)[0] if setting is not None and setting.value else None


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
    length = len(rest) - len(rest.lstrip(digits))
    if not length:
        return 0, text
    # More digits than any 64-bit number has would only cost time: strtoll saturates.
    return sign * int(rest[: min(length, 30)], base), rest[length:]


def by_table() -> Iterator[Rule]:
    """Yield the rules that need no code: `when` in `rules.tsv` says what they are about."""
    for id_, row in texts().items():
        kind, colon, what = row["when"].partition(":")
        if colon:
            yield rule(id_, alone=_ALONE[kind](what, row["summary"], row["hint"]))
        elif kind:
            yield rule(id_, together=_all_hold(kind, row["summary"], row["hint"]))


_IN_SHELL = frozenset({Mistake.NOT_EXPORTED, Mistake.CHAIN_ENDED})


def _mistaken(mistake: str, summary: str, hint: str) -> Alone:
    def look(setting: Setting, variable: Variable | None) -> Iterator[Violation]:
        # A name that no library reads may well be meant for the script alone.
        own = variable is None or variable.family == "tools"
        if mistake in setting.mistakes and not (mistake in _IN_SHELL and own):
            yield Violation(summary, hint.format(name=setting.name))

    return look


def _concerned(concern: str, summary: str, hint: str) -> Alone:
    def look(setting: Setting, variable: Variable | None) -> Iterator[Violation]:
        given = (setting.value or "").strip()
        if variable is None or not given:
            return
        read, rest = strtoll(given)
        note = variable.concerned(concern, given if rest.strip() else str(read))
        if note is not None:
            yield Violation(summary.format(note=note), hint)

    return look


def _of_kind(kind: str, summary: str, hint: str) -> Alone:
    def look(_: Setting, variable: Variable | None) -> Iterator[Violation]:
        if variable is not None and variable.kind == kind:
            text = re.sub(r"\[([^][]*)\]", r"\1" if variable.note else "", summary)
            columns = {name: getattr(variable, name) for name in ("until", "replaced_by", "note")}
            yield Violation(text.format(**columns), hint.format(**columns))

    return look


_ALONE = {"mistake": _mistaken, "concern": _concerned, "kind": _of_kind}
_CONDITION = re.compile(r"(\w+)(?:(!=|>=|=)(.+))?")


def _all_hold(when: str, summary: str, hint: str) -> Together:
    ways = [[_condition(text) for text in way.split()] for way in when.split(" or ")]

    def look(settings: Settings) -> Conflicts:
        held = [way for way in ways if all(_holds(settings, *condition) for condition in way)]
        # The first of several that hold is told.
        for name, (other, sign, value) in {way[0][0]: way[-1] for way in reversed(held)}.items():
            marks = {"name": other, "other": f"{other}{sign}{value}"}
            yield name, summary.format(**marks), hint.format(**marks)

    return look


def _condition(text: str) -> tuple[str, str, str]:
    """Return name, sign and value of a condition; sign and value are empty where it has none."""
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise ValueError(f"rules.tsv: no condition: {text!r}")
    return found[1], found[2] or "", found[3] or ""


def _holds(settings: Settings, name: str, sign: str, value: str) -> bool:
    setting = settings.get(name)
    if sign == "" or (sign == "!=" and setting is None):
        return sign == "!=" or setting is not None
    given = number(setting)
    if sign == ">=":
        return given is not None and given >= int(value)
    if setting is None or setting.value is None:
        return False
    listed = value.lower().split(",")
    equal = any(
        given == int(one) if value.isdecimal() else fnmatchcase(word(settings, name), one)
        for one in listed
    )
    return equal is (sign == "=")
