"""The tensors of one stage of a pipeline (of the whole model, without one): each as a `Term`."""

from __future__ import annotations

from collections.abc import Iterator

from clusterkit.core.data import read_table
from clusterkit.estimate import FACTS
from clusterkit.estimate.memory.activations import (
    bytes_per_logit,
    in_flight,
    kept_per_token,
    logits_of,
    working_per_token,
)
from clusterkit.estimate.memory.states import Stage, frozen_bytes, frozen_width, on_gpu
from clusterkit.estimate.results import Kind, Term
from clusterkit.estimate.setup import FSDP, Checkpointing, Library, Sharding

_TERMS = {row["name"]: row for row in read_table(__file__, "terms.tsv")}
LOGITS = "logits"
_SHARDED_PARAMS = frozenset({Sharding.FULL, Sharding.HYBRID})
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
    if on_gpu(setup.offload_optimizer):
        yield _states(stage, "optimizer states", each.optimizer, shares.optimizer)
    if setup.library is Library.DDP and setup.gpus > 1 and not setup.bucket_view:
        yield _states(stage, "buckets of DDP", each.gradients, 1.0)


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
