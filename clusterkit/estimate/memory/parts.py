"""How the memory of a GPU divides: five parts that add up to what `nvidia-smi` would show."""

from __future__ import annotations

from collections.abc import Mapping

from clusterkit.estimate.results import Kind, Memory, Phase

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
    parts = {kind: _bytes(memory.phases[-1], kind) for kind in _STATES}
    room = max(memory.device.likely - sum(parts.values()), 0.0)
    kept = min(max(_bytes(phase, Kind.ACTIVATIONS) for phase in memory.phases), room)
    return {**parts, Kind.ACTIVATIONS: kept, Kind.TEMPORARY: room - kept}


def peak_parts_of(memory: Memory) -> Mapping[Kind, float]:
    """Return the bytes of the fullest moment by kind.

    What is not there at that moment is not counted: activations in the optimizer step, gradients
    while the loss is computed. `temporary` also has what no tensor takes: gaps of the allocator,
    CUDA and NCCL.
    """
    parts = memory.by_kind()
    beside = memory.device.likely - memory.allocated
    return {**parts, Kind.TEMPORARY: parts[Kind.TEMPORARY] + beside}


def _bytes(phase: Phase, kind: Kind) -> float:
    return sum(t.bytes for t in phase.terms if t.kind is kind and t.name != _SECOND_COPY)
