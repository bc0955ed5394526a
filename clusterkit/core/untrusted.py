"""Read what somebody else wrote: numbers within a range, JSON that can be printed, nothing endless.

Nodes, bundles and peers may say anything: integers of 5,000 digits, `1e400`, brackets in brackets
ten thousand deep. These readers turn all of it into a `ValueError`; whoever calls a parser catches
`NONSENSE`, because a parser of an unknown document may also stumble over a missing key or a list
where it wanted an object.
"""

from __future__ import annotations

import json
import math
from typing import Any

from clusterkit.core.text import LONE_SURROGATE

NONSENSE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What parsers raise where a document is not what they know. `ValueError` holds damaged JSON and
text in no encoding, `LookupError` missing keys, `ArithmeticError` numbers beyond a float."""

UNSIGNED_64 = (1 << 64) - 1
_LONGEST = 40
"""Characters: 2^64 has 20 decimal and 64 binary digits, and nobody writes the latter."""
_LARGEST = 1e18


def whole(text: str, *, minimum: int = 0, maximum: int = UNSIGNED_64, base: int = 10) -> int:
    """Return a whole number from `minimum` to `maximum`, both included.

    Raises:
        ValueError: it is none, or beyond the range.
    """
    number = int(text, base) if len(text) <= _LONGEST else maximum + 1
    if not minimum <= number <= maximum:
        raise ValueError(f"no number from {minimum} to {maximum}: {text[:_LONGEST]!r}")
    return number


def real(text: str, *, minimum: float = -_LARGEST, maximum: float = _LARGEST) -> float:
    """Return a finite number from `minimum` to `maximum`.

    Raises:
        ValueError: it is none, or beyond the range.
    """
    number = float(text) if len(text) <= _LONGEST else math.nan
    if not minimum <= number <= maximum:  # never true for what is not a number
        raise ValueError(f"no number from {minimum:g} to {maximum:g}: {text[:_LONGEST]!r}")
    return number


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
