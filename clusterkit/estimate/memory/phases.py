"""The memory of the GPU that needs most, moment by moment, and what a node needs beside GPUs.

A step is a handful of moments (`Phase`), each with the tensors (`Term`) that are there together;
the peak is the fullest moment. Nothing is added to be safe: what the allocator and CUDA take
beyond tensors comes at the end, as an interval. What is offloaded needs RAM and space on disks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from operator import attrgetter

from clusterkit.estimate import FACTS
from clusterkit.estimate.factors import Calibration
from clusterkit.estimate.machines.gpus import Gpu
from clusterkit.estimate.memory.activations import kept_per_token
from clusterkit.estimate.memory.stage import (
    LOGITS,
    activations,
    fresh_gradients,
    gathered,
    gradients,
    logits,
    resident,
    step,
    tied_gradient,
    undivided,
    working,
)
from clusterkit.estimate.memory.states import Stage, bytes_of, frozen_bytes, shares_of, stages_of
from clusterkit.estimate.results import GIB, Interval, Kind, Memory, Phase, Term
from clusterkit.estimate.setup import FSDP, Library, Offload, Optimizer, Setup

_RESERVED = (1.02, 1.06, 1.15)
"""`max_memory_reserved` over the tensors that were there: published runs lie between these."""
_CONTEXT = Interval(low=0.5 * GIB, likely=0.8 * GIB, high=1.8 * GIB)
"""What CUDA loads into a process (stas00/ml-engineering: 0.47 to 1.78 GiB)."""
_NCCL = Interval(low=0.5 * GIB, likely=1.2 * GIB, high=2.0 * GIB)
"""Buffers of NCCL's communicators (the same source: 1 to 2 GiB)."""
_SCALED = frozenset({Kind.ACTIVATIONS, Kind.TEMPORARY})


def memory_of(
    setup: Setup,
    *,
    margin: float = 0.08,
    calibration: Calibration | None = None,
    first_stage: bool = False,
) -> Memory:
    """Return what `setup` needs on the GPU that needs most, beside what that GPU has.

    `margin` is the part of the GPU's memory that has to stay free. A calibration replaces what is
    usual by what was measured. `first_stage` is for the first stage of a pipeline, where rank 0 is.
    """
    measured = calibration or Calibration()
    of = stages_of(setup)[:1] if first_stage else stages_of(setup)
    fullest = max((_phases(stage, measured) for stage in of), key=lambda ps: max(map(_bytes, ps)))
    reserved = _reserved(setup, fullest, measured)
    return Memory(
        phases=fullest,
        reserved=reserved,
        device=_plus(reserved, _outside(setup, measured)),
        limit=setup.gpu.usable_bytes * (1 - margin),
        host_bytes=host_bytes(setup),
        nvme_bytes=nvme_bytes(setup),
    )


_bytes = attrgetter("bytes")


def _phases(stage: Stage, measured: Calibration) -> tuple[Phase, ...]:
    """Return the moments of a step on one stage."""
    kept = tuple(resident(stage))
    before = (*kept, *(gradients(stage) if stage.accumulates else ()))
    after = (*kept, *gradients(stage))
    moments: dict[str, Iterable[Term]] = {
        "initialisation": tuple(undivided(stage)) or kept,
        "forward": (*before, *gathered(stage, blocks=2), *activations(stage)),
        "loss": (
            *before,
            *gathered(stage, blocks=1, root=False),
            *activations(stage),
            *logits(stage),
        ),
        "backward": (
            *before,
            *gathered(stage, blocks=2),
            *activations(stage),
            *working(stage),
            *fresh_gradients(stage),
        ),
        "accumulation": (
            *after,
            *gathered(stage, blocks=2),
            *fresh_gradients(stage),
            *tied_gradient(stage),
        ),
        "optimizer step": (*kept, *gradients(stage, reduced=True), *step(stage)),
    }
    return tuple(
        Phase(name=name, terms=tuple(_scaled(terms, measured.activation_scale)))
        for name, terms in moments.items()
    )


def _scaled(terms: Iterable[Term], factor: float) -> Iterator[Term]:
    """Yield the terms, those that a measurement corrects times `factor`."""
    for term in terms:
        if not term.bytes:
            continue
        if factor == 1 or term.kind not in _SCALED:
            yield term
        else:
            formula = f"{term.formula} x {factor:.3f} as measured"
            yield replace(term, bytes=term.bytes * factor, formula=formula)


def _reserved(setup: Setup, phases: tuple[Phase, ...], measured: Calibration) -> Interval:
    """Return what the allocator takes from the GPU for the tensors of these moments.

    FSDP allocates the shards of gradients on a stream of their own, and the allocator keeps memory
    by stream; the flat copies of an optimizer's step are larger than any gap but that of the
    logits. Both take room of their own, whether or not they are there at the peak.
    """
    fullest = max(phases, key=_bytes)
    peak = fullest.bytes
    if measured.reserved_ratio is not None:
        exact = peak * measured.reserved_ratio
        return Interval(low=exact, likely=exact, high=exact * _RESERVED[2] / _RESERVED[1])
    apart = max(phase.bytes for phase in phases[:-1])
    if bytes_of(setup).master:
        of_logits = sum(term.bytes for term in fullest.terms if term.name == LOGITS)
        apart += max(0.0, phases[-1].bytes_of(Kind.TEMPORARY) - of_logits)
    if setup.library in FSDP and setup.shard_ranks > 1:
        most = max(phase.bytes_of(Kind.GRADIENTS) for phase in phases)
        apart += max(0.0, most - fullest.bytes_of(Kind.GRADIENTS))
    apart = max(apart, peak)
    low, likely, high = _RESERVED
    return Interval(low=peak * low, likely=apart * likely, high=apart * high)


def _outside(setup: Setup, measured: Calibration) -> Interval:
    """Return what the process holds on the GPU outside torch's allocator."""
    if measured.context_bytes is not None:
        known = measured.context_bytes
        return Interval(low=known, likely=known, high=known)
    return _plus(_CONTEXT, _NCCL) if setup.gpus > 1 else _CONTEXT


def _plus(one: Interval, other: Interval) -> Interval:
    return Interval(
        low=one.low + other.low, likely=one.likely + other.likely, high=one.high + other.high
    )


def usual_ram(gpu: Gpu) -> float:
    """Return the RAM that a node usually has for each such GPU, in bytes."""
    if gpu.memory_gb >= FACTS["system_gb"]:
        return FACTS["ram_of_system"]
    server = gpu.memory_gb >= FACTS["server_card_gb"]
    return FACTS["ram_of_server" if server else "ram_of_workstation"]


def usual_disk(gpu: Gpu) -> float:
    """Return the space that a node usually has on fast disks for each such GPU, in bytes."""
    server = gpu.memory_gb >= FACTS["server_card_gb"]
    return FACTS["disk_of_server" if server else "disk_of_workstation"]


def host_bytes(setup: Setup) -> float:
    """Return the RAM that a node needs for what is offloaded, in bytes."""
    states = _offloaded(setup, Offload.CPU) * _ranks(setup)
    if setup.library is Library.DEEPSPEED:
        states *= FACTS["host_buffers"]
    states += _pinned(setup) * _ranks(setup)
    if setup.offload_activations:
        stage = stages_of(setup)[0]
        states += kept_per_token(setup) * stage.blocks * setup.rank_tokens * _ranks(setup)
    return states


def nvme_bytes(setup: Setup) -> float:
    """Return the space that a node needs on its disks, in bytes."""
    return _offloaded(setup, Offload.NVME) * _ranks(setup)


def _ranks(setup: Setup) -> int:
    return min(setup.gpus, setup.gpus_per_node)


def _pinned(setup: Setup) -> float:
    """Return the bytes that one rank pins to read from and write to disks (DeepSpeed's docs).

    partitioned_optimizer_swapper.py takes buffers as large as the largest group that is stepped
    at once, partitioned_param_swapper.py takes them as ds_config.json says.
    """
    total = 0.0
    if setup.offload_optimizer is Offload.NVME:
        shares = shares_of(setup)
        owned = max(stage.kept_trained(shares.optimizer) for stage in stages_of(setup))
        total += 4 * FACTS["optimizer_buffers"] * min(owned, FACTS["sub_group_params"])
    if setup.offload_params is Offload.NVME:
        total += bytes_of(setup).params * FACTS["param_buffer_elements"]
    return total


def _offloaded(setup: Setup, where: Offload) -> float:
    """Return the bytes of one rank that are kept in that place."""
    each, shares = bytes_of(setup), shares_of(setup)
    held = max(stages_of(setup), key=lambda held: held.params)
    optimizer = held.kept_trained(shares.optimizer)
    total = 0.0
    if setup.offload_optimizer is where:
        total += each.optimizer * optimizer + 4 * held.kept_trained(shares.gradients)
    if setup.offload_params is where:
        total += each.params * held.kept_trained(shares.params) + frozen_bytes(held)
    if where is Offload.CPU and setup.optimizer is Optimizer.PAGED_ADAMW_8BIT:
        total += 2 * optimizer
    return total
