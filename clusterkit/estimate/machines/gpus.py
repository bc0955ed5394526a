"""The GPUs that are known by name: memory, peak rates, links; and how to name one's own.

`gpu_named` takes the name in the table, a short one (`h100`, `a100-40`), the name that
`nvidia-smi` prints, or figures: `mycard:memory=48,bf16=200,bandwidth=900`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from typing import Any

from clusterkit.core.data import read_table
from clusterkit.core.errors import Problem, UserError, choices_hint
from clusterkit.core.records import row_of
from clusterkit.estimate import FACTS

_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What is known of the GPUs of one architecture; `architectures.tsv` explains the columns."""

    ceiling_of_peak: float
    products_of_ceiling: float
    attention_of_peak: float
    rate: tuple[float, float]
    measured_rate: tuple[float, float]
    network: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLimit:
    """A power limit of a GPU, and what trainings lost by it: ratios to the default limit."""

    watts: float
    default_watts: float
    speeds: tuple[float, float, float]
    """The least, the median and the best of the measured trainings."""
    energies: tuple[float, float]
    """The least and the most energy that the GPUs took for a step."""
    trainings: tuple[str, ...]
    """Which were measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU; rates are dense, links in one direction, and None is for what it does not have."""

    name: str
    arch: str
    """`sm90`, `gfx942` ..."""
    memory_gb: float
    """As sold, in 10^9 bytes or GiB: vendors mix them. `usable_bytes` is what a program gets."""
    bf16_tflops: float | None
    fp16_tflops: float
    fp8_tflops: float | None
    memory_gbs: float
    """Bandwidth of its memory, GB/s."""
    nvlink_busbw_gbs: float | None
    """What NCCL gets over NVLink or xGMI within a node, GB/s (bus bandwidth)."""
    pcie_gen: int
    mamf_tflops: float | None
    """The fastest bf16 matrix product that was measured (stas00/ml-engineering), TFLOP/s."""
    usable_gib: float | None = None
    """What CUDA or HIP reports as the total; None where nobody has looked."""
    linked: int | None = None
    """How many GPUs its NVLink joins; None for all of a node."""
    power: PowerLimit | None = None
    """A limit below what it may draw by itself, where one is set."""

    @property
    def usable_bytes(self) -> float:
        """Bytes that a program gets, its own CUDA context among them."""
        sold = FACTS["usable_of_sold"] * self.memory_gb
        return (self.usable_gib if self.usable_gib is not None else sold) * _GIB

    @property
    def has_bf16(self) -> bool:
        """Whether its matrix units multiply bf16: those of Volta and Turing do not."""
        return self.bf16_tflops is not None

    @property
    def half_tflops(self) -> float:
        """The dense peak of bf16, or of fp16 where there is no bf16, TFLOP/s."""
        return self.bf16_tflops if self.bf16_tflops is not None else self.fp16_tflops

    @property
    def ceiling_tflops(self) -> float:
        """What the best matrix product reaches: as measured, else as GPUs of its kind do."""
        if self.mamf_tflops is not None:
            return self.mamf_tflops
        return self.half_tflops * self.architecture.ceiling_of_peak

    @property
    def architecture(self) -> Architecture:
        """What is known of its architecture, or usual with others."""
        known = _architectures()
        return known.get(self.arch, known["usual"])


OWN_FIGURES = (
    "NAME:memory=48,bf16=200,bandwidth=900 gives your own (GB, TFLOP/s, GB/s; also "
    "usable=GiB, fp16=, fp8=, nvlink=GB/s, pcie=GENERATION, mamf=)"
)


def gpu_named(text: str) -> Gpu:
    """Return the GPU of this name, or with these figures.

    Raises:
        UserError: no GPU, or several, are called that; or a figure is missing or absurd.
    """
    name, colon, figures = text.strip().partition(":")
    if colon:
        return _own(name.strip() or "custom", figures)
    found = _find(name)
    if len(found) == 1:
        return GPUS[found[0]]
    if found:
        raise UserError(f"several GPUs are called {name!r}", hint=f"say which: {', '.join(found)}")
    raise UserError(f"no GPU is called {name!r}", hint=f"{_near(name)}\n      {OWN_FIGURES}")


def _find(name: str) -> tuple[str, ...]:
    """Return the names of the table that `name` may stand for; one where it is plain."""
    key = _squeeze(name)
    if key in _by_key():
        return (_by_key()[key],)
    return tuple(known for known in GPUS if len(key) > 1 and _squeeze(known).startswith(key))


def _squeeze(name: str) -> str:
    """Return `name` without case, punctuation and the vendor's name."""
    key = re.sub(r"[^a-z0-9]", "", name.lower())
    return re.sub(r"^(nvidia|amdinstinct|amd|instinct|tesla|geforce)+", "", key)


@cache
def _by_key() -> Mapping[str, str]:
    keys = {_squeeze(row["name"]): row["name"] for row in _rows("gpus")}
    for row in _rows("gpus"):
        keys |= {_squeeze(alias): row["name"] for alias in row["aliases"].split() if alias != "-"}
    return keys


def _near(name: str) -> str:
    """Return what may have been meant: by its squeezed name, so that punctuation is no matter.

    A letter or the first digit is a generation: neither V100 nor B200 is a misspelt B100.
    """
    key = _squeeze(name)
    names = {known: whole for known, whole in _by_key().items() if known[:2] == key[:2]}
    close = get_close_matches(key, names, n=1, cutoff=0.7)
    if close:
        return f"did you mean {names[close[0]]!r}?"
    return f"known: {', '.join(GPUS)}"


@cache
def _rows(table: str) -> tuple[Mapping[str, str], ...]:
    return tuple(read_table(__file__, f"{table}.tsv"))


@cache
def _architectures() -> Mapping[str, Architecture]:
    usual, *_ = _rows("architectures")
    found = {}
    for row in _rows("architectures"):
        cells = {name: usual[name] if text == "-" else text for name, text in row.items()}
        arch, network = cells.pop("arch"), cells.pop("network")
        ends = {name: cells.pop(name).split("..") for name in ("rate", "measured_rate")}
        values: dict[str, Any] = {name: float(cell) for name, cell in cells.items()}
        values |= {name: (float(low), float(high)) for name, (low, high) in ends.items()}
        found[arch] = Architecture(network=None if network == "-" else network, **values)
    return found


def _own(name: str, text: str) -> Gpu:
    """Return a GPU with the user's figures: over those of the GPU `name`, where that is known.

    What was measured with the old figures of a known one does not hold for the new.
    """
    limits = {row["word"]: (float(row["least"]), float(row["most"])) for row in _rows("figures")}
    given, problems = own_figures(text, limits, of="a GPU", hint=OWN_FIGURES)
    fields = {row["word"]: row["field"] for row in _rows("figures")}
    values: dict[str, Any] = {fields[word]: value for word, value in given.items()}
    if "pcie" in given:
        values["pcie_gen"] = int(given["pcie"])
    base = _find(name)
    if len(base) != 1 and not problems:
        problems += [
            Problem(message=f"the GPU {name!r} needs {either}=", hint=OWN_FIGURES)
            for either in ("memory", "bandwidth", "bf16 or fp16")
            if given.keys().isdisjoint(either.split(" or "))
        ]
    if problems:
        raise UserError(problems=problems)
    if len(base) == 1:
        measured = {"memory": "usable_gib", "bf16": "mamf_tflops"}
        stale = (field for word, field in measured.items() if word in given)
        return replace(GPUS[base[0]], **{**dict.fromkeys(stale), **values})
    optional = ("usable_gib", "bf16_tflops", "fp8_tflops", "nvlink_busbw_gbs", "mamf_tflops")
    usual = {**dict.fromkeys(optional), "pcie_gen": 4, "fp16_tflops": given.get("bf16")}
    return Gpu(**{"name": name, "arch": "unknown", **usual, **values})


def own_figures(
    text: str, limits: Mapping[str, tuple[float, float]], *, of: str, hint: str
) -> tuple[dict[str, float], list[Problem]]:
    """Return the figures of `memory=48,bf16=200`, and what is wrong with others."""
    given: dict[str, float] = {}
    problems: list[Problem] = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        word, equals, number = (part.strip() for part in item.partition("="))
        if word not in limits or not equals:
            message = f"{item!r} is not a figure of {of}"
            problems.append(Problem(message=message, hint=choices_hint(word, limits)))
            continue
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        low, high = limits[word]
        if not low <= value <= high:
            message = f"{item!r}: it has to be a number from {low:g} to {high:,.0f}"
            problems.append(Problem(message=message, hint=hint))
        else:
            given[word] = value
    return given, problems


GPUS: Mapping[str, Gpu] = {row["name"]: row_of(Gpu, row) for row in _rows("gpus")}
"""The GPUs of the table by their names, in its order."""
