"""Flags of other launchers and schedulers that people type out of habit, and ours instead.

`foreign_flags.tsv` has them: `job` for verbs that start one, `sbatch` for what `--set` hands
on (those without VALUE take none), `training` and `layout` for verbs that only ask about it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path

from clusterkit.core.data import read_table

_DECIDES = {"--island": "layout", "--micro-batch": "training"}
"""A flag that only one kind of verb has, and that kind."""


@cache
def _instead(asks: str) -> Mapping[str, tuple[str, str]]:
    """Return what to type instead of each flag, its value in capitals, and a remark."""
    rows = read_table(Path(__file__).with_name("foreign_flags.tsv"))
    found = {}
    for row in rows:
        if row["asks"] == asks:
            found.update(dict.fromkeys(row["theirs"].split(), (row["ours"], row["remark"])))
    return found


def takes_value(option: str) -> bool:
    """Tell whether a word follows this flag of theirs."""
    if option in _instead("job"):
        return True
    others = (_instead(asks).get(option, ("", ""))[0] for asks in ("training", "layout", "sbatch"))
    return any(ours.endswith(("N", "E", "DIR")) for ours in others)


def is_foreign(option: str) -> bool:
    """Tell whether it is an option of others, with a value or without."""
    return any(option in _instead(asks) for asks in ("job", "training", "layout", "sbatch"))


def ours(option: str, words: Sequence[str], known: Collection[str]) -> str | None:
    """Return what to type instead of `option`, as it stands in `words`.

    None where nothing is known of it, or where the verb, whose options are `known`, has no use
    for it.
    """
    value = _value_of(option, words) if takes_value(option) else None
    for flag, asks in _DECIDES.items():
        if flag in known:
            other = _instead(asks).get(option)
            return _filled(other[0], value) if other else None
    if option in _instead("sbatch"):
        instead, remark = _instead("sbatch")[option]
        instead = instead.replace("KEY", option[2:])
        instead = instead.replace("VALUE", value) if value else instead
    elif option == "--gres" and value is not None and not value.startswith("gpu"):
        instead, remark = f"--set sbatch.gres={value}", ""
    elif option in _instead("job"):
        instead, remark = _instead("job")[option]
        instead = _filled(instead, value)
    else:
        return None
    if "--set" not in known or instead.split(" ")[0] not in {*known, "leave"}:
        return None
    return f"{instead} ({remark})" if remark else instead


def _value_of(option: str, words: Sequence[str]) -> str | None:
    for word, following in zip(words, (*words[1:], ""), strict=True):
        name, equals, value = word.partition("=")
        if name == option:
            return value if equals else (following if following[:1] not in {"", "-"} else None)
    return None


def _filled(instead: str, value: str | None) -> str:
    """Put the user's value in the place of the capitals, a number where one is wanted."""
    if value is None:
        return instead
    if instead.endswith((" N", "zeroN")):
        number = re.search(r"(?<!\d)\d+(:\d+)?$", value)
        return instead[:-1] + number[0].rpartition(":")[2] if number else instead
    return re.sub(r"(?<![A-Z])[A-Z]+(=[A-Z]+)?$", lambda _: value, instead)
