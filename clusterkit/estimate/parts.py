"""How the memory of a GPU divides: five parts that add up to what `nvidia-smi` would show."""

from __future__ import annotations

from collections.abc import Mapping

from clusterkit.estimate.results import Kind, Memory

_STATES = (Kind.PARAMETERS, Kind.GRADIENTS, Kind.OPTIMIZER)
_SECOND_COPY = "buckets of DDP"


def parts_of(memory: Memory) -> Mapping[Kind, float]:
    """Return bytes by kind, as people count: states in full, then activations, then the rest.

    States are those of the optimizer step, when all of them are there. At the peak gradients may
    be missing, as they come while activations go: they take the room of activations, so that what
    is called activations is what these need beyond. `temporary` is everything else: gathered
    layers, buckets, gaps of the allocator, CUDA and NCCL.
    """
    step = memory.phases[-1]
    parts = {
        kind: sum(t.bytes for t in step.terms if t.kind is kind and t.name != _SECOND_COPY)
        for kind in _STATES
    }
    room = max(memory.device.likely - sum(parts.values()), 0.0)
    kept = min(memory.by_kind()[Kind.ACTIVATIONS], room)
    return {**parts, Kind.ACTIVATIONS: kept, Kind.TEMPORARY: room - kept}
