"""`key=value` lines, the form in which our own snippets answer; the last line is `end`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from clusterkit.transport.probe import Unparsed


def read_lines(text: str) -> list[str]:
    """Return the lines before the final `end`.

    Raises:
        Unparsed: there is no such line, so something is cut off.
    """
    lines = text.splitlines()
    if not lines or lines[-1] != "end":
        raise Unparsed("the end is missing")
    return lines[:-1]


def matched(text: str, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
    """Yield what a pattern finds in each line that is not empty.

    Raises:
        Unparsed: a line is something else.
    """
    for line in filter(None, text.split("\n")):
        found = pattern.fullmatch(line)
        if found is None:
            raise Unparsed(f"line {line[:40]!r}")
        yield found


def read_pairs(text: str) -> dict[str, str]:
    """Return the values by key.

    Raises:
        Unparsed: a line is no pair, a key stands there twice, or the final `end` is missing.
    """
    pairs: dict[str, str] = {}
    for line in read_lines(text):
        key, equals, value = line.partition("=")
        if not equals or key in pairs:
            raise Unparsed(f"unexpected line {line[:60]!r}")
        pairs[key] = value.strip()
    return pairs


def text_of(pairs: Mapping[str, str], key: str) -> str:
    """Return the value of `key`, which has to be there and not to be empty."""
    if not (value := pairs.get(key, "")):
        raise Unparsed(f"{key} is missing")
    return value


def number_of(pairs: Mapping[str, str], key: str) -> int:
    """Return the value of `key`, which has to be a whole number."""
    return whole_number(text_of(pairs, key))


def whole_number(text: str) -> int:
    """Return `text` as a number of at most 20 ASCII digits (64 bits)."""
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise Unparsed(f"{text[:40]!r} is not a number")
    return int(text)
