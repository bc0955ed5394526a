"""The memory of the GPU that needs most, moment by moment, and what a node needs beside GPUs.

A step is a handful of moments (`Phase`), each with the tensors (`Term`) that are there together;
the peak is the fullest moment. Nothing is added to be safe: what the allocator and CUDA take
beyond tensors comes at the end, as an interval. What is offloaded needs RAM and space on disks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from operator import attrgetter

from clusterkit.core.data import read_table
from clusterkit.estimate import FACTS
from clusterkit.estimate.factors import Calibration
from clusterkit.estimate.machines.gpus import Gpu
from clusterkit.estimate.memory.activations import (
    bytes_per_logit,
    in_flight,
    kept_per_token,
    logits_of,
    working_per_token,
)
from clusterkit.estimate.memory.states import (
    Stage,
    bytes_of,
    frozen_bytes,
    frozen_width,
    on_gpu,
    shares_of,
    stages_of,
)
from clusterkit.estimate.results import GIB, Interval, Kind, Memory, Phase, Term
from clusterkit.estimate.setup import (
    FSDP,
    Checkpointing,
    Compression,
    Library,
    Offload,
    Optimizer,
    Setup,
    Sharding,
)

_TERMS = {row["name"]: row for row in read_table(__file__, "terms.tsv")}
LOGITS = "logits"
_SHARDED_PARAMS = frozenset({Sharding.FULL, Sharding.HYBRID})
_KEEPS_ERRORS = frozenset({Compression.POWERSGD, Compression.ONE_BIT})
_HALF = 2


def resident(stage: Stage) -> Iterator[Term]:
    """Yield what is there all the time: parameters, optimizer states, buckets of DDP."""
    setup, each, shares = stage.setup, stage.each, stage.shares
    if setup.adapter is not None and on_gpu(setup.offload_params):
        each_frozen = FACTS["nf4_bytes"] if setup.adapter.quantized else frozen_width(setup)
        form = f"{each_frozen:g} P"
        yield _term(
            "frozen weights", frozen_bytes(stage), _formula(form, stage.params, shares.params)
        )
    if on_gpu(setup.offload_params):
        yield _states(stage, "parameters", each.params, shares.params)
    if setup.zeropp:
        form, share = f"{each.params:g} P", 1 / setup.gpus_per_node
        size = each.params * stage.trained * share
        yield _term("second copy of parameters", size, _formula(form, stage.trained, share))
    if on_gpu(setup.offload_optimizer):
        yield _states(stage, "optimizer states", each.optimizer, shares.optimizer)
    if setup.library is Library.DDP and setup.gpus > 1 and not setup.bucket_view:
        yield _states(stage, "buckets of DDP", each.gradients, 1.0)
    if setup.compression in _KEEPS_ERRORS:
        of_sum = setup.compression is Compression.ONE_BIT
        size = 4.0 * stage.trained * (1 + (1 / setup.dp if of_sum else 0))
        form = f"4 P{' (1 + 1/N)' if of_sum else ''}, P = {_short(stage.trained)}"
        yield _term("error of compressed gradients", size, form)


def gradients(stage: Stage, *, reduced: bool = False) -> Iterator[Term]:
    """Yield the gradients as they are kept: between micro batches, or, `reduced`, for the step."""
    setup, each, shares = stage.setup, stage.each, stage.shares
    if stage.unreduced and not reduced:
        # FSDP moves gradients to the host when they are reduced: until then they are whole here.
        yield _states(stage, "whole gradients in fp32 (no_sync)", 4.0, 1.0)
        return
    if setup.optimizer_in_backward or not on_gpu(setup.offload_optimizer):
        return
    yield _states(stage, "gradients", each.gradients, shares.gradients)


def fresh_gradients(stage: Stage) -> Iterator[Term]:
    """Yield gradients that are there only until they are reduced."""
    setup, each = stage.setup, stage.each
    if setup.library in FSDP and setup.adapter is None:
        reduced = 2 if each.params == each.product == _HALF else 4
        yield _term(
            "gradients that are being reduced",
            (each.product + reduced) * stage.block,
            f"({each.product:g} + {reduced}) x {_short(stage.block)} of a block",
        )
    elif setup.library is Library.DEEPSPEED and setup.gpus > 1:
        bucket = min(FACTS["deepspeed_bucket_elements"], stage.trained)
        yield _term(
            "buckets of gradients",
            each.product * 2 * bucket,
            f"2 x {each.product:g} B x {_short(bucket)} (reduce_bucket_size)",
        )


def tied_gradient(stage: Stage) -> Iterator[Term]:
    """Yield the second gradient of an embedding that is the head as well, before they are added."""
    setup, model = stage.setup, stage.setup.model
    if not model.tied or setup.adapter is not None or not (stage.first and stage.has_head):
        return
    part = model.vocab * model.hidden / setup.tp
    each = stage.each.gradients
    yield _term(
        "second gradient of the tied embedding",
        each * part,
        f"{each:g} V h / t, V h / t = {_short(part)}",
    )


def undivided(stage: Stage) -> Iterator[Term]:
    """Yield the whole model that DeepSpeed puts on a GPU before ZeRO-3 divides it.

    It does so unless the model was made under `zero.Init`, which is what people do with a model
    that is too large for that: it is left out where it does not fit.
    """
    setup, each = stage.setup, stage.each
    if setup.library is not Library.DEEPSPEED or setup.sharding not in _SHARDED_PARAMS:
        return
    whole = 2 * setup.model.params / (setup.tp * setup.pp)
    if whole <= setup.gpu.usable_bytes and not (setup.adapter and setup.adapter.quantized):
        yield _term(
            "the whole model, before it is divided",
            whole,
            f"{each.product:g} P, P = {_short(whole / 2)}",
        )


def gathered(stage: Stage, *, blocks: int, root: bool = True) -> Iterator[Term]:
    """Yield what ranks gather or cast for products, with `blocks` blocks at once."""
    setup, each = stage.setup, stage.each
    # FSDP1 with one rank turns itself into NO_SHARD.
    alone = setup.library is Library.FSDP1 and setup.shard_ranks == 1
    if setup.library in FSDP and setup.sharding is not Sharding.NONE and not alone:
        whole = setup.pp > 1 or setup.sharding is Sharding.GRADIENTS
        # FSDP1 keeps the root until the backward pass; FSDP2 is told to let it go, usually.
        with_root = root or setup.library is Library.FSDP1
        parts = stage.root * with_root + blocks * stage.block
        params = stage.params if whole else parts
        what = (
            "all of the stage" if whole else f"{blocks} of the blocks{' and the root' * with_root}"
        )
        source = "torch.distributed.fsdp: what is not resharded after the forward pass"
    elif setup.library is Library.DEEPSPEED and setup.sharding in _SHARDED_PARAMS:
        params = min(stage.params, FACTS["live_params"] + stage.block)
        what, source = "stage3_max_live_parameters and a block", "DeepSpeed, stage3.py"
    elif _casts(stage):
        params = stage.params - setup.model.embedding_params / setup.tp
        if setup.adapter is not None and setup.checkpointing is Checkpointing.FULL:
            # The cache is of trained weights; a frozen one is kept as its product's input only.
            params = min(params, blocks * stage.block)
        what, source = "what autocast casts", "torch.autocast caches weights of 16 bits"
    else:
        return
    yield _term(
        "gathered parameters",
        each.product * params,
        f"{each.product:g} B x {_short(params)}: {what}",
        source,
    )


def _casts(stage: Stage) -> bool:
    """Tell whether autocast keeps weights of 16 bits beside those of fp32."""
    setup, each = stage.setup, stage.each
    quantized = setup.adapter is not None and setup.adapter.quantized
    return setup.library is Library.DDP and each.product < each.params and not quantized


def activations(stage: Stage) -> Iterator[Term]:
    """Yield what the blocks keep for their backward pass."""
    setup = stage.setup
    waiting = in_flight(setup, first=stage.first)
    blocks = float(stage.blocks)
    if setup.offload_activations:
        blocks = min(blocks, FACTS["offloaded_blocks"])
    each, tokens = kept_per_token(setup), setup.rank_tokens
    yield _term(
        "activations",
        each * blocks * tokens * waiting,
        (
            f"{each:.6g} B per token x {blocks:g} blocks x {tokens:g} tokens"
            + (f" x {waiting:.3g} micro batches" if waiting > 1 else "")
            + f" (checkpointing: {setup.checkpointing})"
        ),
    )


def working(stage: Stage) -> Iterator[Term]:
    """Yield what the backward pass of one block needs beyond what was kept."""
    each, tokens = working_per_token(stage.setup), stage.setup.rank_tokens
    yield _term(
        "one block in its backward pass",
        each * tokens,
        f"{each:.6g} B per token x {tokens:g} tokens",
    )


def logits(stage: Stage) -> Iterator[Term]:
    """Yield what the loss needs, on the stage that has the head."""
    setup = stage.setup
    if not stage.has_head:
        return
    count, each = logits_of(setup), bytes_per_logit(setup)
    if not each:
        pieces = 6.0 * setup.rank_tokens * setup.model.hidden
        yield _term(
            "pieces of the logits",
            pieces,
            f"6 B x s b h = {setup.rank_tokens:g} x {setup.model.hidden}",
        )
        return
    yield _term(LOGITS, each * count, f"{each:g} B x s b V = {_short(count)} (loss: {setup.loss})")


def step(stage: Stage) -> Iterator[Term]:
    """Yield what only the optimizer's step needs."""
    setup, each, shares = stage.setup, stage.each, stage.shares
    if setup.optimizer_in_backward or not on_gpu(setup.offload_optimizer) or not each.step:
        return
    owned = stage.kept_trained(shares.optimizer)
    if setup.library is Library.DEEPSPEED and setup.sharding in _SHARDED_PARAMS:
        owned = min(owned, FACTS["sub_group_params"])
    yield _term(
        "temporary copies of the step", each.step * owned, f"{each.step:g} B x {_short(owned)}"
    )


def _states(stage: Stage, name: str, each: float, share: float) -> Term:
    kept = stage.kept_trained(share)
    formula = _formula(f"{each:g} P", stage.trained, share)
    if kept != stage.trained * share:
        formula = (
            f"{each:g} x {_short(kept)}, of which experts over 1 / {stage.setup.ep} of the ranks"
        )
    source = f"bytes per parameter of {stage.setup.library} in {stage.setup.precision}"
    return _term(name, each * kept, formula, source)


def _term(name: str, size: float, formula: str, source: str | None = None) -> Term:
    row = _TERMS[name]
    kind, source = Kind(row["kind"]), source or row["source"]
    return Term(name=name, kind=kind, bytes=size, formula=formula, source=source)


def _formula(form: str, params: float, share: float) -> str:
    if share == 1:
        return f"{form}, P = {_short(params)}"
    return f"{form} / N, P = {_short(params)}, N = {1 / share:g}"


def _short(number: float) -> str:
    """Return a large number with four digits: `8.03e9`."""
    mantissa, exponent = f"{number:.3e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"


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
