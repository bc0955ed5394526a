"""What an estimate says, as frozen values that can be printed, plotted and compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

GIB = 1 << 30


class Kind(StrEnum):
    """What bytes are for; the keys of `memory_gb` in the JSON output."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    ACTIVATIONS = "activations"
    TEMPORARY = "temporary"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A figure that is known within bounds."""

    low: float
    likely: float
    high: float

    def each(self, of: Callable[[float], float]) -> Interval:
        """Return the interval of a figure that grows with this one."""
        return Interval(low=of(self.low), likely=of(self.likely), high=of(self.high))


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One tensor, or all of one sort, on one GPU."""

    name: str
    """`gathered parameters`, `logits` ..."""
    kind: Kind
    bytes: float
    formula: str
    """With the figures in it: `2 P / (N t)`, P = 8.03e9, N = 8, t = 1."""
    source: str
    """Paper, file or measurement that it stands on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What is there at one moment of a step."""

    name: str
    """`initialisation`, `forward`, `loss`, `backward`, `accumulation`, `optimizer step`."""
    terms: tuple[Term, ...]

    @property
    def bytes(self) -> float:
        """All of it."""
        return sum(term.bytes for term in self.terms)

    def bytes_of(self, kind: Kind, *, without: str = "") -> float:
        """Return the bytes of one kind, but for those of a name."""
        return sum(t.bytes for t in self.terms if t.kind is kind and t.name != without)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The memory of the GPU that needs most, phase by phase."""

    phases: tuple[Phase, ...]
    reserved: Interval
    """What the allocator takes from the GPU, with its gaps; in bytes, as all here."""
    device: Interval
    """What `nvidia-smi` shows: that, and what CUDA and NCCL take beside it."""
    limit: float
    """What the GPU has for a program, less the margin that is asked for."""
    host_bytes: float = 0.0
    """RAM that a node needs for what is offloaded."""
    nvme_bytes: float = 0.0
    """Space that a node needs on its disks."""
    host_limit: float = math.inf
    """RAM that a node has; infinite where nobody asks about it."""

    @property
    def peak(self) -> Phase:
        """The phase that needs most."""
        return max(self.phases, key=lambda phase: phase.bytes)

    @property
    def allocated(self) -> float:
        """What `torch.cuda.max_memory_allocated` would say, in bytes."""
        return self.peak.bytes

    @property
    def binding(self) -> Term:
        """The largest tensor of that phase."""
        return max(self.peak.terms, key=lambda term: term.bytes)

    @property
    def fits(self) -> bool:
        """Whether the likely figure stays below the limit, and what is offloaded in the RAM."""
        return self.device.likely <= self.limit and self.host_bytes <= self.host_limit

    @property
    def lacks_ram(self) -> bool:
        """Whether RAM is what lacks most, more than memory of the GPU."""
        lacks = self.host_bytes > self.host_limit
        return lacks and self.excess > self.device.likely / self.limit

    @property
    def excess(self) -> float:
        """How many times the GPU, or the RAM of a node, is needed: whichever is worse."""
        return max(self.device.likely / self.limit, self.host_bytes / self.host_limit)

    def by_kind(self) -> Mapping[Kind, float]:
        """Return the bytes of the peak by what they are for."""
        return {kind: self.peak.bytes_of(kind) for kind in Kind}


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One sort of collective of a step, on one rank."""

    name: str
    """`gather parameters (forward)`, `reduce-scatter gradients` ..."""
    group: str
    """Who takes part: `data`, `tensor`, `pipeline`, `shard`, `node`, `replicas`."""
    bytes: float
    """What a rank sends in a step."""
    messages: int
    """In how many collectives."""
    seconds: float
    """How long they take, were nothing else to be done meanwhile."""
    hidden: bool
    """Whether computing continues meanwhile."""
    formula: str
    during: str = "backward"
    """The pass that it can hide behind: `forward` or `backward`."""
    times: int = 1
    """How often a step does this: once, or with every micro batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How long a step takes, and what becomes of it."""

    transfers: tuple[Transfer, ...]
    compute_s: float
    """Products and everything that is bound by memory, of one step."""
    bubble_s: float
    """Idle time of a pipeline."""
    exposed_s: float
    """Transfers that computing does not hide."""
    offload_s: float
    """What the optimizer's states cost that are not on the GPU."""
    step_s: Interval
    tokens_per_s_per_gpu: Interval
    mfu: Interval
    """Operations of the model (6 N + attention, nothing that is computed again) over the peak."""
    of_full_power: Interval | None = None
    """The throughput over that without the power limit of the GPU; None where there is no limit."""

    @property
    def bytes_per_step(self) -> float:
        """What a rank sends in a step."""
        return sum(transfer.bytes for transfer in self.transfers)


_STATES = (Kind.PARAMETERS, Kind.GRADIENTS, Kind.OPTIMIZER)
_SECOND_COPY = "buckets of DDP"


def parts_of(memory: Memory) -> Mapping[Kind, float]:
    """Return bytes by kind, as people count: states in full, then activations, then the rest.

    States are those of the optimizer step, when all of them are there; activations are those of
    the moment that has most. Gradients come while activations go, so the two may never be there in
    full together: activations get the room that is left, then. `temporary` is everything else:
    gathered layers, buckets, gaps of the allocator, CUDA and NCCL. `peak_parts_of` says what is
    there at one moment instead.
    """
    parts = {kind: memory.phases[-1].bytes_of(kind, without=_SECOND_COPY) for kind in _STATES}
    room = max(memory.device.likely - sum(parts.values()), 0.0)
    kept = min(max(phase.bytes_of(Kind.ACTIVATIONS) for phase in memory.phases), room)
    return {**parts, Kind.ACTIVATIONS: kept, Kind.TEMPORARY: room - kept}


def peak_parts_of(memory: Memory) -> Mapping[Kind, float]:
    """Return the bytes of the fullest moment by kind.

    What is missing at that moment is not counted: activations in the optimizer step, gradients
    while the loss is computed. `temporary` also has what no tensor takes: gaps of the allocator,
    CUDA and NCCL.
    """
    parts = memory.by_kind()
    beside = memory.device.likely - memory.allocated
    return {**parts, Kind.TEMPORARY: parts[Kind.TEMPORARY] + beside}
