"""Units of published figures, as factors to the one that each quantity is compared in."""

from __future__ import annotations

import re
from collections.abc import Mapping

from .truth_model import TooLittle

_TEN = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_TWO = {"ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40}
_TERA = {"g": 1e-3, "t": 1.0, "p": 1e3}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "m": 60.0}
_PARTS = {"%": 1.0, "pct": 1.0, "percent": 1.0, "fraction": 100.0, "ratio": 100.0}

_GPU = r"(?:/gpu|/device|pergpu|perdevice)"
_PER_SECOND = r"(?:/s|/sec|/second|persecond)"
_TOKENS = r"([km]?)(?:toks?|tokens?)"
_SAMPLES = r"([km]?)(?:samples?|seqs?|sequences?|imgs?|images?)"
_STEP = r"(?:/(?:it|iter|iteration|step))"

_FORMS: Mapping[str, tuple[str, Mapping[str, float]]] = {
    "step_time": (
        rf"(ms|us|µs|s|m(?=in))(?:ecs?|econds?|ins?|inutes?)?{_STEP}?",
        _SECONDS,
    ),
    "tokens_per_s_per_gpu": (
        rf"{_TOKENS}(?:{_PER_SECOND}{_GPU}?|{_GPU}{_PER_SECOND})",
        _TEN,
    ),
    "tokens_per_s_total": (rf"{_TOKENS}{_PER_SECOND}", _TEN),
    "samples_per_s": (rf"{_SAMPLES}{_PER_SECOND}", _TEN),
    "tflops_per_gpu": (rf"([gtp])flops?{_PER_SECOND}?{_GPU}?", _TERA),
    "mfu_pct": ("(" + "|".join(_PARTS) + ")", _PARTS),
    "hfu_pct": ("(" + "|".join(_PARTS) + ")", _PARTS),
}
_BYTES = rf"([kmgt]i?|)(?:b|bytes?)(?:\((?:1e9|10\^9)\))?{_GPU}?"
_BITS = re.compile(r"[kKMGT]i?b\b")
_UNSAID = frozenset(_FORMS) - {"step_time"}
"""Quantities whose names end in the unit, so that the column may be empty."""


def factor_of(quantity: str, unit: str) -> float:
    """Return what a figure is multiplied by: to bytes, seconds, tokens or samples per second, %.

    Raises:
        TooLittle: the unit is none that is known for this quantity, or there is none and the
            quantity's name does not say it.
    """
    if not unit and quantity in _UNSAID:
        return 1.0
    form, factors = _FORMS.get(quantity, (_BYTES, _TEN | _TWO))
    said = re.fullmatch(form, "".join(unit.split()).lower())
    if said is None or (form is _BYTES and _BITS.search(unit)):
        raise TooLittle(f"no known unit of {quantity}: {unit!r}" if unit else "no unit")
    return factors[said[1]]
