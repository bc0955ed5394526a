"""The smallest change that makes a setup fit, found by trying."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import lcm
from typing import Any

from clusterkit.core.data import read_table
from clusterkit.estimate.results import Memory
from clusterkit.estimate.setup import Checkpointing, Library, Loss, Offload, Setup, Sharding

_SETTINGS = tuple(read_table(__file__, "settings.tsv"))
_MOST_GPUS = 65_536
_SHORTEST = 512
_WORTH = 2
"""So many times the GPUs are no smaller change than checkpointing."""
_STRONGER = {
    Checkpointing.NONE: (Checkpointing.SELECTIVE, Checkpointing.FULL),
    Checkpointing.SELECTIVE: (Checkpointing.FULL,),
    Checkpointing.ALTERNATE: (Checkpointing.FULL,),
    Checkpointing.FULL: (),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What to type in addition, and what comes of it."""

    setup: Setup
    flags: str = ""

    def then(self, flag: str = "", **settings: Any) -> Change:
        """Return this change with another one behind it."""
        flags = f"{self.flags} {flag}".strip()
        return Change(setup=replace(self.setup, **settings), flags=flags)


def smallest_change(setup: Setup, fits: Callable[[Setup], bool], *, per_node: int) -> Change | None:
    """Return the first change that fits, cheapest first; None where none does."""
    for change in _without_more_gpus(setup):
        if fits(change.setup):
            return change
    grown = _grown(setup, fits, per_node)
    if grown is not None:
        return grown
    last = (*_offloaded(setup), *_context_parallel(setup), *_shorter(setup))
    return next((change for change in last if fits(change.setup)), None)


def lowering_settings(setup: Setup, memory: Memory) -> Mapping[str, float]:
    """Return settings of the library that may make up for what is lacking, by bytes at the most.

    Empty where the setup fits, or where all of them together would not be enough.
    """
    # What SHARD_GRAD_OP gathers is all of the model, whatever is fetched ahead.
    inherent = {Sharding.GRADIENTS: "gathered parameters"}.get(setup.sharding)
    peak = {term.name: term.bytes for term in memory.peak.terms if term.name != inherent}
    found = {
        row["setting"]: peak[row["tensor"]]
        for row in _SETTINGS
        if row["library"] == setup.library and row["tensor"] in peak
    }
    lacking = memory.device.likely - memory.limit
    return found if 0 < lacking < sum(found.values()) else {}


def largest_micro_batch(setup: Setup, fits: Callable[[Setup], bool]) -> int:
    """Return the largest power of two, times what is there, that fits."""
    micro = setup.micro_batch
    while micro < 4096 and fits(replace(setup, micro_batch=2 * micro)):
        micro *= 2
    return micro


def smallest_of(setup: Setup) -> Setup:
    """Return a setup with everything done that needs less memory, on very many GPUs."""
    micro = setup.micro_batch
    smallest = replace(setup, micro_batch=1, accumulation=micro * setup.accumulation)
    if setup.sharding not in {Sharding.NONE, Sharding.HYBRID}:
        smallest = replace(smallest, gpus=_MOST_GPUS * setup.tp * setup.pp * setup.cp)
    return leanest_of(smallest).setup


def _without_more_gpus(setup: Setup) -> Iterator[Change]:
    if setup.no_sync:
        yield Change(setup=setup).then("no --no-sync", no_sync=False)
    fused = _changed(setup, loss=Loss.FUSED) if setup.loss is not Loss.FUSED else None
    if fused is not None:
        yield fused
    yield from _smaller_batches(Change(setup=setup))
    for level in _STRONGER[setup.checkpointing]:
        yield _changed(setup, checkpointing=level)
    leanest = leanest_of(setup)
    if setup.micro_batch > 1:
        yield from _smaller_batches(leanest)
    elif leanest.flags:
        yield leanest


def _smaller_batches(base: Change) -> Iterator[Change]:
    """Yield half the micro batch and so on, at the same global batch."""
    micro, steps = base.setup.micro_batch, base.setup.accumulation
    while micro > 1 and micro % 2 == 0:
        micro, steps = micro // 2, steps * 2
        yield base.then(f"--micro-batch {micro}", micro_batch=micro, accumulation=steps)


def leanest_of(setup: Setup) -> Change:
    """Return what needs least without fewer sequences, more GPUs or offloading."""
    settings: dict[str, Any] = {}
    if setup.checkpointing is not Checkpointing.FULL:
        settings["checkpointing"] = Checkpointing.FULL
    if setup.loss is not Loss.FUSED:
        settings["loss"] = Loss.FUSED
    return _changed(setup, **settings)


def _changed(setup: Setup, **settings: Any) -> Change:
    flags = " ".join(f"--{name} {value}" for name, value in settings.items())
    return Change(setup=setup).then(flags, **settings)


def _grown(setup: Setup, fits: Callable[[Setup], bool], per_node: int) -> Change | None:
    """Return more GPUs: as it is, unless far fewer are enough with less activations, too."""
    plain = _more_gpus(Change(setup=setup), fits, per_node)
    lean = _more_gpus(leanest_of(setup), fits, per_node)
    if plain is None or lean is None:
        return plain or lean
    return plain if plain.setup.gpus <= _WORTH * lean.setup.gpus else lean


def _more_gpus(base: Change, fits: Callable[[Setup], bool], per_node: int) -> Change | None:
    """Return the smallest part of a node, or number of nodes, that fits, if more ranks help."""
    setup = base.setup
    if setup.sharding in {Sharding.NONE, Sharding.HYBRID}:
        return None

    def with_gpus(gpus: int) -> Change:
        return base.then(f"--gpus {gpus}", gpus=gpus, gpus_per_node=min(gpus, per_node))

    gpus = 2 * setup.gpus
    while gpus < per_node:
        if fits(with_gpus(gpus).setup):
            return with_gpus(gpus)
        gpus *= 2
    unit = lcm(per_node, setup.tp * setup.pp * setup.cp)
    low = setup.gpus // unit
    high = max(2 * low, 1)
    while not fits(with_gpus(high * unit).setup):
        low, high = high, 2 * high
        if high * unit > _MOST_GPUS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(with_gpus(middle * unit).setup) else (middle, high)
    return with_gpus(high * unit)


def _offloaded(setup: Setup) -> Iterator[Change]:
    """Yield the same library with states elsewhere; the leanest of the rest with it."""
    if setup.offload_optimizer is Offload.NVME or setup.library not in {
        Library.DEEPSPEED,
        Library.FSDP2,
    }:
        return
    for base in (Change(setup=setup), leanest_of(setup)):
        full, zero = setup.sharding is Sharding.FULL, setup.library is Library.DEEPSPEED
        if setup.offload_optimizer is Offload.NONE and (full or zero):
            params = Offload.CPU if full else Offload.NONE
            where = {"offload_optimizer": Offload.CPU, "offload_params": params}
            yield base.then("--offload cpu", **where)
        if full and zero:
            on_cpu = setup.offload_optimizer is Offload.CPU
            nvme = "--strategy zero3-nvme" if on_cpu else "--offload nvme"
            yield base.then(nvme, offload_optimizer=Offload.NVME, offload_params=Offload.NVME)


def _context_parallel(setup: Setup) -> Iterator[Change]:
    """Yield sequences that are divided among ranks, at the same global batch."""
    leanest = leanest_of(setup)
    if setup.library not in {Library.MEGATRON, Library.FSDP2} or setup.cp > 1:
        return
    ranks = 2
    while ranks <= setup.dp:
        yield leanest.then(f"--cp {ranks}", cp=ranks, accumulation=setup.accumulation * ranks)
        ranks *= 2


def _shorter(setup: Setup) -> Iterator[Change]:
    """Yield sequences of half the length and so on: that is another training, so it comes last."""
    leanest = leanest_of(setup)
    seq = 1 << (setup.seq - 1).bit_length() - 1
    while seq >= _SHORTEST:
        yield leanest.then(f"--seq {seq}", seq=seq)
        seq //= 2
