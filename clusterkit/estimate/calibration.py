"""What was measured on a cluster, as factors on what is estimated without it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Factors from one measured step and one measured all-reduce; the defaults change nothing."""

    activation_scale: float = 1.0
    """Measured over estimated bytes of everything allocated beside states that follow from the
    number of parameters: activations, logits, gathered layers."""
    reserved_ratio: float | None = None
    """`max_memory_reserved / max_memory_allocated`; None for the usual one."""
    context_bytes: float | None = None
    """What the process holds on the GPU outside torch's allocator; None for the usual amount."""
    utilisation_scale: float = 1.0
    """Measured over estimated speed of computing: a step takes 1 / this of its time."""
    intra_busbw_scale: float = 1.0
    """Measured over estimated bus bandwidth within a node."""
    inter_busbw_scale: float = 1.0
    """The same between nodes."""
    measured_step: bool = False
    """Whether a step was measured: the interval of a step's time is narrow then."""
