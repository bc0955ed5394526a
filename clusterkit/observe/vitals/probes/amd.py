"""What the AMD GPUs of a node do at this moment, by `rocm-smi --json`.

Written after rocm_smi.py of ROCm 5 to 7 (`showGpuUse`, `showMemInfo`, `showPower`); no recording of
a whole answer was at hand.
"""

from __future__ import annotations

from clusterkit.core.untrusted import NONSENSE
from clusterkit.observe.vitals.probes.gpu import GpusVitals, GpuVitals
from clusterkit.preflight.probes.gpu.amd_gpus import (
    HEAD,
    NO_GPU_JOB,
    card_degrees,
    card_figure,
    card_name,
    read_cards,
    rocm_smi,
)
from clusterkit.transport.probe import PreflightJob, Probe, Unparsed, first_line

_ASKED = rocm_smi(
    "--showproductname --showuse --showmeminfo vram --showtemp --showpower --showmaxpower",
    missing="rocm-smi is not on PATH",
)
_MIB = 1 << 20


def parse(text: str) -> GpusVitals:
    """Read `rocm-smi --json`, with warnings before it."""
    try:
        cards, _ = read_cards(text)
    except NONSENSE:
        raise Unparsed(f"no JSON of rocm-smi: {first_line(text)[:60]!r}") from None
    if not cards:
        raise Unparsed("no GPU in the JSON of rocm-smi")
    return GpusVitals(gpus=tuple(_gpu(index, card) for index, card in cards.items()))


def _gpu(index: int, card: dict[str, str]) -> GpuVitals:
    used = card_figure(card, "vram total used memory (b)")
    total = card_figure(card, "vram total memory (b)")
    return GpuVitals(
        index=index,
        name=card_name(card) or "AMD GPU",
        busy_percent=card_figure(card, "gpu use (%)"),
        memory_used_mib=None if used is None else used / _MIB,
        memory_mib=None if total is None else total / _MIB,
        temperature_c=card_degrees(card),
        power_w=card_figure(
            card,
            "average graphics package power (w)",
            "current socket graphics package power (w)",
        ),
        power_limit_w=card_figure(card, "max graphics package power (w)"),
    )


def _command(job: PreflightJob) -> str:
    return NO_GPU_JOB if job.uses_gpus is False else HEAD + _ASKED


PROBE = Probe(name="vitals-amd", command=_command, parse=parse, timeout_s=20.0, lane="amd")
