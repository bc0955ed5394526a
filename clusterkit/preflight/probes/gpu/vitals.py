"""What the GPUs of a node do at this moment: one short question to nvidia-smi, one to rocm-smi.

The AMD form is written after rocm_smi.py of ROCm 5 to 7 (`showGpuUse`, `showMemInfo`, `showPower`);
no recording of a whole answer was at hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from clusterkit.core.data import read_snippet
from clusterkit.core.untrusted import NONSENSE
from clusterkit.preflight.probes.gpu import amd_gpus
from clusterkit.preflight.probes.gpu.nvidia import mask, number, nvidia_probe, whole
from clusterkit.preflight.probes.gpu.nvidia_gpus import (
    ask_for,
    by_index,
    column,
    columns_of,
    read_gpu_table,
    read_row,
)
from clusterkit.transport.probe import Unparsed, first_line

_MIB = 1 << 20
_LOST = "Unable to determine the device handle"
"""How a line begins in which nvidia-smi gives a GPU up; the others follow."""
_ROCM_SMI = amd_gpus.rocm_smi(
    "--showproductname --showuse --showmeminfo vram --showtemp --showpower --showmaxpower",
    missing="rocm-smi is not on PATH",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuVitals:
    """One reading of one GPU; None is "the driver does not say"."""

    index: int = column("index", whole)
    name: str = column("name")
    busy_percent: float | None = column("utilization.gpu", number)
    """Share of the last moments (NVML: 1/6 s to 1 s) in which a kernel ran, however small."""
    memory_used_mib: float | None = column("memory.used", number)
    memory_mib: float | None = column("memory.total", number)
    temperature_c: float | None = column("temperature.gpu", number)
    power_w: float | None = column("power.draw", number)
    power_limit_w: float | None = column("enforced.power.limit", number)
    clock_mhz: float | None = column("clocks.current.sm", number, default=None)
    clock_max_mhz: float | None = column("clocks.max.sm", number, default=None)
    clock_reasons: int | None = column("clocks_event_reasons.active", mask, default=None)
    """Bit mask of nvmlClocksEventReason*; NVIDIA only."""
    uuid: str | None = column("uuid", default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusVitals:
    """One reading of the GPUs of a node, by index."""

    gpus: tuple[GpuVitals, ...]
    problem: str = ""
    """What the tool said of GPUs that it could not read, such as one that is lost."""


def _parse_nvidia(text: str) -> GpusVitals:
    """Read the table, and what stands between its rows of GPUs that are lost."""
    lines = text.splitlines()
    lost = [line for line in lines if line.startswith(_LOST)]
    table = "\n".join(line for line in lines if not line.startswith(_LOST))
    problem = first_line(lost[0]) if lost else ""
    if lost and not table.strip():
        return GpusVitals(gpus=(), problem=problem)
    rows = read_gpu_table(table, needed={"index", "name"})
    return GpusVitals(
        gpus=by_index(GpuVitals(**read_row(GpuVitals, row)) for row in rows), problem=problem
    )


def _parse_amd(text: str) -> GpusVitals:
    """Read `rocm-smi --json`, with warnings before it."""
    try:
        cards, _ = amd_gpus.read_cards(text)
    except NONSENSE:
        raise Unparsed(f"no JSON of rocm-smi: {first_line(text)[:60]!r}") from None
    if not cards:
        raise Unparsed("no GPU in the JSON of rocm-smi")
    return GpusVitals(gpus=tuple(_amd_gpu(index, card) for index, card in cards.items()))


def _amd_gpu(index: int, card: dict[str, str]) -> GpuVitals:
    figure = partial(amd_gpus.figure_of, card)
    used, total = figure("vram total used memory (b)"), figure("vram total memory (b)")
    return GpuVitals(
        index=index,
        name=amd_gpus.value_of(card, *amd_gpus.NAMES) or "AMD GPU",
        busy_percent=figure("gpu use (%)"),
        memory_used_mib=None if used is None else used / _MIB,
        memory_mib=None if total is None else total / _MIB,
        temperature_c=amd_gpus.card_degrees(card),
        power_w=figure(
            "average graphics package power (w)", "current socket graphics package power (w)"
        ),
        power_limit_w=figure("max graphics package power (w)"),
    )


NVIDIA = nvidia_probe(
    "vitals-nvidia",
    ask_for((*columns_of(GpuVitals), "clocks_throttle_reasons.active"))
    + read_snippet("nvidia_vitals"),
    _parse_nvidia,
    exit_codes=(0, 14, 15),
)
AMD = amd_gpus.amd_probe("vitals-amd", _ROCM_SMI, _parse_amd)
