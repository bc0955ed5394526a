"""Parameters, gradients and optimizer states: bytes for each parameter, and who holds what.

The same "7B with FSDP" needs 8, 16, 18 or 20 bytes per parameter: that depends on the library, the
precision and the optimizer. Sources: ZeRO (arXiv:1910.02054, table 1: 2 + 2 + 12), Megatron-LM's
theoretical_memory_usage.py (18, or 6 + 12 / N), torch's FSDP and DeepSpeed's optimizers as read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from clusterkit.estimate import FACTS
from clusterkit.estimate.setup import (
    FSDP,
    TORCH,
    Adapter,
    Library,
    Offload,
    Optimizer,
    Precision,
    Setup,
    Sharding,
)
from clusterkit.estimate.shapes import ModelShape

_SHARDS_PARAMS = frozenset({Sharding.FULL, Sharding.HYBRID})
_SHARDS_GRADIENTS = _SHARDS_PARAMS | {Sharding.GRADIENTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bytes:
    """What one trained parameter takes, in bytes, before anything is divided."""

    params: float
    """The parameter itself, as it is kept between steps."""
    master: float
    """A copy in fp32 that the optimizer works on."""
    moments: float
    gradients: float
    product: float
    """The parameter as it is multiplied."""
    step: float
    """What is there only during the optimizer's step."""

    @property
    def optimizer(self) -> float:
        """The copy and the moments."""
        return self.master + self.moments


def bytes_of(setup: Setup) -> Bytes:
    """Return the bytes of one trained parameter under the library and precision of `setup`."""
    kept, model = _library_bytes(setup), setup.model
    single = kept.moments / 2
    # The moments of embeddings stay in fp32: bitsandbytes advises it, and transformers does it.
    embedded = min(1.0, model.vocab * model.hidden / max(1, model.params))
    moments = {
        Optimizer.ADAMW: kept.moments,
        Optimizer.ADAMW_8BIT: 2 + 6 * embedded,
        Optimizer.PAGED_ADAMW_8BIT: 0.0,
        Optimizer.SGD: single,
        Optimizer.ADAFACTOR: 0.0,
    }[setup.optimizer]
    return replace(kept, moments=moments, step=kept.step + _foreach(setup, single))


def _library_bytes(setup: Setup) -> Bytes:
    precision = setup.precision
    if precision is Precision.FP32:
        return Bytes(params=4, master=0, moments=8, gradients=4, product=4, step=0)
    if precision is Precision.PURE_BF16:
        return Bytes(params=2, master=0, moments=4, gradients=2, product=2, step=0)
    if setup.library is Library.MEGATRON:
        return Bytes(params=2, master=4, moments=8, gradients=4, product=2, step=0)
    mixed = precision not in {Precision.BF16, Precision.FP16}
    if setup.library in TORCH and mixed:
        return Bytes(params=4, master=0, moments=8, gradients=4, product=2, step=0)
    if setup.fp32_gradients:
        # bf16_optimizer.py: gradients in 16 bits, and their sum in fp32 beside them.
        return Bytes(params=2, master=4, moments=8, gradients=6, product=2, step=0)
    # stage_1_and_2.py: `step` flattens the gradients of the rank, then copies them to fp32. Those
    # of FSDP are flat already.
    step = 4 if setup.library in FSDP else 6
    return Bytes(params=2, master=4, moments=8, gradients=2, product=2, step=step)


def _foreach(setup: Setup, moment: float) -> float:
    """Return the bytes of the denominators that `torch.optim.AdamW` makes all at once."""
    if setup.optimizer is not Optimizer.ADAMW:
        return 0.0
    usual = 1 if setup.library in TORCH else 0
    return moment * (usual if setup.step_copies is None else setup.step_copies)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Which part of its own parameters a rank keeps, of each sort of state."""

    params: float
    gradients: float
    optimizer: float


def shares_of(setup: Setup) -> Shares:
    """Return how the data-parallel ranks divide states among themselves."""
    sharding, part = setup.sharding, 1 / max(1, setup.shard_ranks)
    # SHARD_GRAD_OP keeps shards, too, and gathers them once per step; ZeRO-2 keeps them whole.
    gathers = setup.library in FSDP and sharding is Sharding.GRADIENTS
    return Shares(
        params=part if sharding in _SHARDS_PARAMS or gathers else 1.0,
        gradients=part if sharding in _SHARDS_GRADIENTS else 1.0,
        optimizer=part if sharding is not Sharding.NONE else 1.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One pipeline stage on one of its tensor-parallel ranks: the parameters that it holds."""

    setup: Setup
    each: Bytes
    shares: Shares
    first: bool
    blocks: int
    """How many blocks."""
    params: float
    root: float
    """Those of embedding, head and last norm: what FSDP gathers beside blocks."""
    block: float
    """Those of one block."""
    trained: float
    """Those that get gradients: all, or the adapters."""
    has_head: bool
    experts: float = 0.0
    """Those of `params` that are experts: `1 / ep` of all of them."""

    def kept(self, share: float) -> float:
        """Return the parameters that a rank keeps where data-parallel ranks keep `share` of theirs.

        Ranks that divide the experts are some of those: an expert has `ep` times fewer copies to be
        sharded over, so that expert parallelism leaves fully sharded states as large as they were.
        """
        return (self.params - self.experts) * share + self.experts * min(1.0, share * self.setup.ep)

    def kept_trained(self, share: float) -> float:
        """Return the same of the parameters that get gradients; no adapter is divided by `ep`."""
        return self.kept(share) if self.trained == self.params else self.trained * share

    @property
    def unreduced(self) -> bool:
        """Whether FSDP keeps whole gradients between micro batches; a pipeline always does so."""
        setup = self.setup
        several = setup.accumulation > 1 and not setup.optimizer_in_backward
        return setup.library in FSDP and several and (setup.no_sync or setup.pp > 1)

    @property
    def accumulates(self) -> bool:
        """Whether gradients are there while the next micro batch goes forward."""
        return self.setup.accumulation > 1 or self.setup.library is Library.MEGATRON


def stages_of(setup: Setup) -> tuple[Stage, ...]:
    """Return the stages of a pipeline that may need most: the first and the last."""
    if setup.pp == 1:
        return (_stage(setup, setup.model.layers, first=True, last=True),)
    blocks = -(-setup.model.layers // setup.pp)
    first = _stage(setup, blocks, first=True, last=False)
    return (first, _stage(setup, blocks, first=False, last=True))


def _stage(setup: Setup, blocks: int, *, first: bool, last: bool) -> Stage:
    model = setup.model
    # Of a rank that holds `1 / ep` of the experts of a block.
    block = (model.block_params - _expert_params(model, 1) * (1 - 1 / setup.ep)) / setup.tp
    head = model.vocab * model.hidden
    tables = model.embedding_params if first else 0
    heads = 0 if not last or (model.tied and first) else head
    parts = 1 if setup.split_embedding else setup.tp
    root = tables * parts + heads
    experts = _expert_params(model, blocks)
    params = blocks * block + root / setup.tp
    if first and last:
        elsewhere = experts * (1 - 1 / setup.ep)
        params = (model.params + (parts - 1) * tables - elsewhere) / setup.tp
    adapters = 0.0
    if setup.adapter is not None:
        copies = root if setup.adapter.on_embeddings else 0
        adapters = (blocks * adapter_params(model, setup.adapter) + copies) / setup.tp
    return Stage(
        setup=setup,
        each=bytes_of(setup),
        shares=shares_of(setup),
        first=first,
        blocks=blocks,
        params=params,
        root=root / setup.tp,
        block=block,
        trained=adapters if setup.adapter else params,
        has_head=last,
        experts=experts / (setup.tp * setup.ep),
    )


def _expert_params(model: ModelShape, blocks: int) -> float:
    """Return the parameters of all experts of so many blocks, of which some may be dense."""
    sparse = min(blocks, model.layers - min(model.dense_layers, model.layers))
    matrices = 3 if model.gated else 2
    return float(sparse * model.experts * matrices * model.hidden * model.ffn)


def adapter_params(model: ModelShape, adapter: Adapter) -> float:
    """Return the parameters of the adapters of one block: r (in + out) for each matrix."""
    query, key = model.heads * model.head_dim, model.kv_heads * model.head_dim
    sides = 2 * (model.hidden + query) + 2 * (model.hidden + key)
    if adapter.on_mlp:
        sides += (3 if model.gated else 2) * (model.hidden + model.ffn)
    return adapter.rank * sides


def frozen_bytes(stage: Stage) -> float:
    """Return the bytes of the weights beside the adapters that a rank keeps."""
    setup = stage.setup
    if setup.adapter is None:
        return 0.0
    kept, width = stage.kept(stage.shares.params), frozen_width(setup)
    if not setup.adapter.quantized:
        return width * kept
    of_blocks = FACTS["nf4_bytes"] * stage.blocks * stage.block + width * stage.root
    return of_blocks * kept / stage.params


def frozen_width(setup: Setup) -> float:
    """Return the bytes of a frozen weight that is not quantized: those of a trained one."""
    return _library_bytes(setup).params


def on_gpu(where: Offload) -> bool:
    """Tell whether something stays on the GPU."""
    return where is Offload.NONE


def params_per_rank(setup: Setup) -> float:
    """Return the parameters that a rank would hold, did data-parallel ranks not shard them.

    Those of the fullest pipeline stage, for which the others wait; with adapters, those that are
    trained: nothing else is exchanged.
    """
    return max(stage.trained for stage in stages_of(setup))


def owned_params(setup: Setup) -> float:
    """Return the trained parameters whose optimizer states a rank keeps, and which it steps."""
    share = shares_of(setup).optimizer
    return max(stage.kept_trained(share) for stage in stages_of(setup))


def gradient_wire_bytes(setup: Setup) -> int:
    """Return the bytes of a gradient that is reduced, as the library sends it by itself.

    FSDP reduces in fp32 (`reduce_dtype`, as `--launch` writes it), DeepSpeed in the 16 bits that it
    multiplies in (`communication_data_type`; `comm_dtype` under torch's autocast). DDP and Megatron
    send gradients as they are kept: in fp32 beside fp32 parameters, or as Megatron's main ones.
    """
    if setup.fp32_gradients or setup.precision is Precision.FP32:
        return 4
    if setup.library is Library.DEEPSPEED:
        return 2
    return 4 if setup.library in FSDP else round(bytes_of(setup).gradients)
