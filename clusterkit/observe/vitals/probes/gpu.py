"""What a GPU does at this moment, whoever made it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuVitals:
    """One reading of one GPU; None is "the driver does not say"."""

    index: int
    name: str
    busy_percent: float | None
    """Share of the last moments (NVML: 1/6 s to 1 s) in which a kernel ran, however small."""
    memory_used_mib: float | None
    memory_mib: float | None
    temperature_c: float | None
    power_w: float | None
    power_limit_w: float | None
    clock_mhz: float | None = None
    clock_max_mhz: float | None = None
    clock_reasons: int | None = None
    """Bit mask of nvmlClocksEventReason*; NVIDIA only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpusVitals:
    """One reading of the GPUs of a node, by index."""

    gpus: tuple[GpuVitals, ...]
    trouble: str = ""
    """What the tool said of GPUs that it could not read, such as one that is lost."""
