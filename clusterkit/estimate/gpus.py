"""The GPUs that are known by name: memory, peak rates, links."""

from __future__ import annotations

from dataclasses import dataclass


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
