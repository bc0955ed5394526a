"""Read what somebody else wrote: numbers within a range, JSON that can be printed, nothing endless.

Nodes, bundles and peers may say anything: integers of 5,000 digits, `1e400`, brackets in brackets
ten thousand deep. These readers turn all of it into a `ValueError`, of numbers an `Unparsed`;
whoever calls a parser catches `NONSENSE`, as a parser of an unknown document may also stumble
over a missing key or a list where it wanted an object.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from clusterkit.core.text import LONE_SURROGATE

NONSENSE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What parsers raise where a document is not what they know. `ValueError` holds damaged JSON and
text in no encoding, `LookupError` missing keys, `ArithmeticError` numbers beyond a float."""

UNSIGNED_64 = (1 << 64) - 1
_LONGEST = 40
"""Characters: 2^64 has 20 decimal and 64 binary digits, and nobody writes the latter."""
_LARGEST = 1e18


class Unparsed(ValueError):  # noqa: N818 - a state of an output, not a mistake of anyone
    """Raised by a parser: the output is not what it knows, and it does not guess."""


def whole(text: str, *, minimum: int = 0, maximum: int = UNSIGNED_64, base: int = 10) -> int:
    """Return a whole number from `minimum` to `maximum`, both included.

    Raises:
        Unparsed: it is none, or beyond the range.
    """
    with suppress(ValueError):
        if len(text) <= _LONGEST and minimum <= (number := int(text, base)) <= maximum:
            return number
    raise Unparsed(f"no number from {minimum} to {maximum}: {text[:_LONGEST]!r}")


def real(text: str, *, minimum: float = -_LARGEST, maximum: float = _LARGEST) -> float:
    """Return a finite number from `minimum` to `maximum`.

    Raises:
        Unparsed: it is none, or beyond the range.
    """
    with suppress(ValueError):
        if len(text) <= _LONGEST and minimum <= (number := float(text)) <= maximum:
            return number
    raise Unparsed(f"no number from {minimum:g} to {maximum:g}: {text[:_LONGEST]!r}")


def first_json(text: str, start: int = 0) -> tuple[Any, int]:
    """Return the JSON document at `start` of a text, and where it ends.

    Raises:
        ValueError: there is none, or it is nested too deeply.
    """
    try:
        document, end = json.JSONDecoder().raw_decode(text, start)
        return _printable(document), end
    except RecursionError:
        raise ValueError("a document that is nested too deeply") from None


def _printable(value: Any) -> Any:
    """Return a document without lone surrogates, which no encoding can write."""
    if isinstance(value, str):
        return LONE_SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_printable(key): _printable(item) for key, item in value.items()}
    return [_printable(item) for item in value] if isinstance(value, list) else value
