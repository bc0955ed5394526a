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

from clusterkit.core.errors import Problem, UserError, choices_hint
from clusterkit.estimate.machines.gpu_table import ALIASES, TABLE

_GIB = 1 << 30
_USABLE_OF_SOLD = 0.92
"""GiB that a program gets of each GB in the name: the least of the table (GDDR with ECC)."""


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

    @property
    def usable_bytes(self) -> float:
        """Bytes that a program gets, its own CUDA context among them."""
        gib = self.usable_gib if self.usable_gib is not None else _USABLE_OF_SOLD * self.memory_gb
        return gib * _GIB

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
        return self.half_tflops * _MEASURED_OF_PEAK.get(self.arch, 0.85)


_MEASURED_OF_PEAK: Mapping[str, float] = {
    **dict.fromkeys(("sm86", "sm89", "sm120"), 0.96),
    "sm90": 0.803,
    "gfx90a": 0.6,
    "gfx942": 0.51,
}
"""The measured part of the peak, by the GPUs of the same sort in the table; of the RTX and L cards,
the listed peak is the one with fp32 accumulation, which they do reach."""

_FIGURES: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(("memory", "usable"), (1, 10_000)),
    **dict.fromkeys(("bf16", "fp16", "fp8", "mamf"), (0.1, 1_000_000)),
    **dict.fromkeys(("bandwidth", "nvlink"), (1, 1_000_000)),
    "pcie": (1, 8),
}
"""Between which numbers any GPU of yesterday and of some years to come has them."""
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
    if not key:
        return ()
    whole = _by_key()
    if key in whole:
        return (whole[key],)
    starts = tuple(known for known in GPUS if _squeeze(known).startswith(key))
    return starts if len(key) > 1 else ()


def _squeeze(name: str) -> str:
    """Return `name` without case, punctuation and the vendor's name."""
    key = re.sub(r"[^a-z0-9]", "", name.lower())
    return re.sub(r"^(nvidia|amdinstinct|amd|instinct|tesla|geforce)+", "", key)


@cache
def _by_key() -> Mapping[str, str]:
    keys = {_squeeze(name): name for name in GPUS}
    return keys | {_squeeze(alias): name for alias, name in ALIASES.items()}


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


def _read_line(line: str) -> Gpu:
    name, arch, sold, usable, bf16, fp16, fp8, memory, busbw, linked, pcie, mamf = line.split()
    return Gpu(
        name=name,
        arch=arch,
        memory_gb=float(sold),
        usable_gib=_optional(usable),
        bf16_tflops=_optional(bf16),
        fp16_tflops=float(fp16),
        fp8_tflops=_optional(fp8),
        memory_gbs=float(memory),
        nvlink_busbw_gbs=_optional(busbw),
        linked=None if linked == "-" else int(linked),
        pcie_gen=int(pcie),
        mamf_tflops=_optional(mamf),
    )


def _optional(text: str) -> float | None:
    return None if text == "-" else float(text)


def _own(name: str, figures: str) -> Gpu:
    """Return a GPU with the user's figures: over those of the GPU `name`, where that is known."""
    given, problems = _figures(figures)
    base = _find(name)
    if len(base) != 1 and not problems:
        problems += [
            Problem(message=f"the GPU {name!r} needs {word}=", hint=OWN_FIGURES)
            for word, missing in (
                ("memory", "memory" not in given),
                ("bandwidth", "bandwidth" not in given),
                ("bf16 or fp16", not {"bf16", "fp16"} & given.keys()),
            )
            if missing
        ]
    if problems:
        raise UserError(problems=problems)
    if len(base) == 1:
        return _changed(GPUS[base[0]], given)
    return Gpu(
        name=name,
        arch="unknown",
        memory_gb=given["memory"],
        usable_gib=given.get("usable"),
        bf16_tflops=given.get("bf16"),
        fp16_tflops=given.get("fp16", given.get("bf16", 0.0)),
        fp8_tflops=given.get("fp8"),
        memory_gbs=given["bandwidth"],
        nvlink_busbw_gbs=given.get("nvlink"),
        pcie_gen=int(given.get("pcie", 4)),
        mamf_tflops=given.get("mamf"),
    )


def _changed(gpu: Gpu, given: Mapping[str, float]) -> Gpu:
    """Return `gpu` with other figures; what was measured with the old ones no longer holds."""
    get = given.get
    return replace(
        gpu,
        memory_gb=get("memory", gpu.memory_gb),
        usable_gib=get("usable", None if "memory" in given else gpu.usable_gib),
        bf16_tflops=get("bf16", gpu.bf16_tflops),
        fp16_tflops=get("fp16", gpu.fp16_tflops),
        fp8_tflops=get("fp8", gpu.fp8_tflops),
        memory_gbs=get("bandwidth", gpu.memory_gbs),
        nvlink_busbw_gbs=get("nvlink", gpu.nvlink_busbw_gbs),
        pcie_gen=int(get("pcie", gpu.pcie_gen)),
        mamf_tflops=get("mamf", None if "bf16" in given else gpu.mamf_tflops),
    )


def _figures(text: str) -> tuple[dict[str, float], list[Problem]]:
    given: dict[str, float] = {}
    problems: list[Problem] = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        word, equals, number = (part.strip() for part in item.partition("="))
        if word not in _FIGURES or not equals:
            message = f"{item!r} is no figure of a GPU"
            problems.append(Problem(message=message, hint=choices_hint(word, _FIGURES)))
            continue
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        low, high = _FIGURES[word]
        if not low <= value <= high:
            message = f"{item!r}: it has to be a number from {low:g} to {high:,}"
            problems.append(Problem(message=message, hint=OWN_FIGURES))
        else:
            given[word] = value
    return given, problems


GPUS: Mapping[str, Gpu] = {
    gpu.name: gpu for gpu in (_read_line(line) for line in TABLE.strip().splitlines())
}
"""The GPUs of the table by their names, in its order."""
