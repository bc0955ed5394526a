"""What a rank sends in a step, and how long that takes.

Bytes of data parallelism are those of ZeRO section 7 (arXiv:1910.02054): with N ranks and a model
of P bytes, 2 (N-1)/N P for an all-reduce, and 3 (N-1)/N P where parameters are sharded, too, since
they are gathered for the forward and again for the backward pass. Tensor, sequence and pipeline
parallelism: arXiv:1909.08053 and arXiv:2205.05198. How often a step does each depends on the
library: see `_data_parallel`.

Gradients are counted in 16 bits with every 16-bit precision (FSDP's `reduce_dtype`, DeepSpeed's
communication dtype, `bf16_compress_hook` in DDP) and in 4 bytes with `fp32_gradients`; torch's DDP
of fp32 parameters without that hook sends twice what stands here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from clusterkit.estimate.calibration import Calibration
from clusterkit.estimate.interconnects import Fabric, Group, group_of, network_of
from clusterkit.estimate.results import Transfer
from clusterkit.estimate.setup import Checkpointing, Library, Precision, Setup, Sharding


def fabric_of(setup: Setup, calibration: Calibration | None = None) -> Fabric:
    """Return the links that a setup runs over; the usual network where it names none."""
    measured = calibration or Calibration()
    return Fabric(
        gpu=setup.gpu,
        gpus_per_node=domain_of(setup),
        network=network_of(setup.gpu, setup.interconnect),
        intra_scale=measured.intra_busbw_scale,
        inter_scale=measured.inter_busbw_scale,
    )


def domain_of(setup: Setup) -> int:
    """Return how many GPUs share the fast links: those of a node, or of a rack with NVLink."""
    return max(setup.gpus_per_node, min(setup.gpu.linked or 0, setup.gpus))


def transfers_of(setup: Setup, *, calibration: Calibration | None = None) -> tuple[Transfer, ...]:
    """Return what a rank sends in one step, by what it is for; nothing for a single GPU."""
    fabric = fabric_of(setup, calibration)
    found = (
        *_data_parallel(setup, fabric),
        *_tensor_parallel(setup, fabric),
        *_context_parallel(setup, fabric),
        *_expert_parallel(setup, fabric),
        *_pipeline(setup, fabric),
    )
    return tuple(transfer for transfer in found if transfer.bytes > 0)


def _data_parallel(setup: Setup, fabric: Fabric) -> Iterator[Transfer]:
    """Yield what the data-parallel ranks exchange.

    With k micro batches, gradients that nobody shards are reduced once (`no_sync`), as are those
    of ZeRO-1; ZeRO-2 reduces k times and gathers once; FSDP does everything k times, unless
    `no_sync` keeps gradients whole until the last micro batch. DeepSpeed's `overlap_comm` is on
    for ZeRO-3 alone, if nobody sets it.
    """
    ranks = _Ranks(setup=setup, fabric=fabric)
    fsdp, overlaps = setup.library in _FSDP, setup.library is not Library.DEEPSPEED
    k = 1 if setup.no_sync and fsdp else setup.accumulation
    match setup.sharding:
        case Sharding.NONE:
            yield ranks.reduced(ranks.everybody, times=1, hidden=overlaps)
        case Sharding.OPTIMIZER:
            yield ranks.scattered(times=1, hidden=overlaps)
            yield ranks.reduced(ranks.replicas, times=1, hidden=overlaps)
            yield ranks.gathered("after the step", times=1, hidden=False)
        case Sharding.GRADIENTS:
            yield ranks.scattered(times=k, hidden=overlaps)
            yield ranks.gathered("forward", times=k if fsdp else 1, hidden=fsdp)
        case Sharding.FULL | Sharding.HYBRID:
            yield ranks.gathered("forward", times=setup.accumulation, hidden=True)
            yield ranks.gathered("backward", times=setup.accumulation, hidden=True)
            yield ranks.scattered(times=k, hidden=True)
            yield ranks.reduced(ranks.replicas, times=k, hidden=True)


_FSDP = frozenset({Library.FSDP1, Library.FSDP2})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ranks:
    """The data-parallel ranks of a setup: those that share states, and the copies beyond."""

    setup: Setup
    fabric: Fabric

    @property
    def everybody(self) -> Group:
        """All that hold the same part of the model."""
        return group_of(self._count, self.setup.tp, domain_of(self.setup))

    @property
    def shard(self) -> Group:
        """Those that divide states among themselves."""
        return group_of(self._shards, self.setup.tp, domain_of(self.setup))

    @property
    def replicas(self) -> Group:
        """Those that hold the same part of what is divided."""
        stride = self.setup.tp * self._shards
        return group_of(self._count // self._shards, stride, domain_of(self.setup))

    @property
    def _count(self) -> int:
        return self.setup.dp * self.setup.cp

    @property
    def _shards(self) -> int:
        return max(1, min(self.setup.shard_ranks, self._count))

    @property
    def _whole(self) -> float:
        return params_per_rank(self.setup) * gradient_wire_bytes(self.setup)

    def reduced(self, group: Group, *, times: int, hidden: bool) -> Transfer:
        """Return the all-reduce of all gradients, or of a shard of them among its copies."""
        copies = group == self.replicas and self._shards > 1
        size = self._whole / (self._shards if copies else 1)
        pieces = self._buckets
        formula = "2 (R-1)/R P g / N, R copies" if copies else "2 (N-1)/N P g"
        return Transfer(
            name="all-reduce gradients" + (" among copies" if copies else ""),
            group="replicas" if copies else "data",
            bytes=2 * (group.ranks - 1) / group.ranks * size * times,
            messages=pieces * times,
            seconds=self.fabric.all_reduce_s(size / pieces, group) * pieces * times,
            hidden=hidden,
            formula=formula + _often(times),
            times=times,
        )

    def scattered(self, *, times: int, hidden: bool) -> Transfer:
        """Return the reduce-scatter of gradients."""
        return self._one_way(
            "reduce-scatter gradients",
            size=self._whole,
            pieces=self._buckets,
            times=times,
            hidden=hidden,
            formula="(N-1)/N P g",
        )

    def gathered(self, when: str, *, times: int, hidden: bool) -> Transfer:
        """Return the gathering of parameters, `when` they are needed."""
        size = params_per_rank(self.setup) * wire_bytes(self.setup)
        blockwise = self.setup.library in _FSDP or self.setup.sharding in _BLOCKWISE
        return self._one_way(
            f"gather parameters ({when})",
            size=size,
            pieces=self._blocks if blockwise else max(1, round(size / _GATHER_BYTES)),
            times=times,
            hidden=hidden,
            formula="(N-1)/N P w",
            during="forward" if when == "forward" else "backward",
        )

    def _one_way(
        self,
        name: str,
        *,
        size: float,
        pieces: int,
        times: int,
        hidden: bool,
        formula: str,
        during: str = "backward",
    ) -> Transfer:
        group = self.shard
        return Transfer(
            name=name,
            group="shard",
            bytes=(group.ranks - 1) / group.ranks * size * times,
            messages=pieces * times,
            seconds=self.fabric.all_gather_s(size / pieces, group) * pieces * times,
            hidden=hidden,
            formula=formula + _often(times),
            during=during,
            times=times,
        )

    @property
    def _blocks(self) -> int:
        """Collectives of one pass, where each block and the embedding have one of their own."""
        return max(1, self.setup.model.layers // self.setup.pp) + 1

    @property
    def _buckets(self) -> int:
        if self.setup.sharding in _BLOCKWISE or self.setup.library in _FSDP:
            return self._blocks
        return max(1, round(self._whole / _BUCKET_BYTES[self.setup.library]))


_BLOCKWISE = frozenset({Sharding.FULL, Sharding.HYBRID})
_BUCKET_BYTES = {Library.DDP: 25 << 20, Library.DEEPSPEED: 10**9, Library.MEGATRON: 160_000_000}
"""Gradients that are reduced at once: torch's `bucket_cap_mb`, DeepSpeed's `reduce_bucket_size` of
5e8 elements, Megatron's of 40e6 in fp32. FSDP and ZeRO-3 go block by block."""
_GATHER_BYTES = 10**9
"""DeepSpeed's `allgather_bucket_size` of 5e8 elements."""


def _often(times: int) -> str:
    return ", once a step" if times == 1 else f", {times} times a step"


def _tensor_parallel(setup: Setup, fabric: Fabric) -> Iterator[Transfer]:
    """Yield what tensor parallelism sends: nothing else goes on meanwhile, as a rule.

    Transformer Engine, which is what fp8 in Megatron means, cuts products into pieces and sends
    one while it computes the next (`--tp-comm-overlap`); it needs sequence parallelism.
    """
    if setup.tp == 1:
        return
    group = group_of(setup.tp, 1, domain_of(setup))
    size = _activation_bytes(setup)
    again = 2 if setup.checkpointing is Checkpointing.FULL else 0
    count = (4 + again) * layers_per_rank(setup) * setup.accumulation
    engine = setup.library is Library.MEGATRON and setup.precision is Precision.FP8
    what = "gather and reduce-scatter" if setup.sequence_parallel else "all-reduce"
    yield Transfer(
        name=f"{what} activations",
        group="tensor",
        bytes=count * 2 * (setup.tp - 1) / setup.tp * size,
        messages=round(count * (2 if setup.sequence_parallel else 1)),
        seconds=count * fabric.all_reduce_s(size, group),
        hidden=engine and setup.sequence_parallel,
        formula=f"{4 + again} x 2 (t-1)/t b s h e for each layer and micro batch",
        times=setup.accumulation,
    )


def _context_parallel(setup: Setup, fabric: Fabric) -> Iterator[Transfer]:
    """Yield keys and values, which pass all ranks: forward, again backward, and their gradients."""
    if setup.cp == 1:
        return
    model, group = setup.model, group_of(setup.cp, setup.tp, domain_of(setup))
    kv = 2 * model.kv_heads * model.head_dim / min(setup.tp, model.kv_heads)
    size = setup.micro_batch * setup.seq * kv * activation_bytes(setup)
    count = 3 * layers_per_rank(setup) * setup.accumulation
    yield Transfer(
        name="pass keys and values around",
        group="context",
        bytes=count * (setup.cp - 1) / setup.cp * size,
        messages=round(count * (setup.cp - 1)),
        seconds=count * fabric.all_gather_s(size, group),
        hidden=True,
        times=setup.accumulation,
        formula="3 x (c-1)/c b s 2 d_kv e / t for each layer and micro batch",
    )


def _expert_parallel(setup: Setup, fabric: Fabric) -> Iterator[Transfer]:
    if setup.ep == 1 or not setup.model.experts:
        return
    model, group = setup.model, group_of(setup.ep, setup.tp, domain_of(setup))
    size = _activation_bytes(setup) / setup.tp * model.active_experts
    sparse = 1 - min(model.dense_layers, model.layers) / model.layers
    again = 2 if setup.checkpointing is Checkpointing.FULL else 0
    count = (4 + again) * layers_per_rank(setup) * sparse * setup.accumulation
    yield Transfer(
        name="send tokens to experts and back",
        group="expert",
        bytes=count * (setup.ep - 1) / setup.ep * size,
        messages=round(count),
        seconds=count * fabric.all_to_all_s((setup.ep - 1) / setup.ep * size, group),
        hidden=False,
        formula=f"{4 + again} x (x-1)/x b s h k e for each layer of experts and micro batch",
    )


def _pipeline(setup: Setup, fabric: Fabric) -> Iterator[Transfer]:
    if setup.pp == 1:
        return
    divided = setup.tp if setup.sequence_parallel else 1
    size = _activation_bytes(setup) / divided
    count = 2 * setup.vpp * setup.accumulation
    between = setup.tp * setup.cp * setup.dp >= setup.gpus_per_node
    yield Transfer(
        name="pass activations to the next stage, gradients back",
        group="pipeline",
        bytes=count * size,
        messages=count,
        seconds=count * fabric.send_s(size, between_nodes=between),
        hidden=setup.vpp > 1,
        times=setup.accumulation,
        formula="2 v b s h e for each micro batch",
    )


def params_per_rank(setup: Setup) -> float:
    """Return the parameters that a rank would hold, did data-parallel ranks not shard them.

    With adapters, those that are trained: nothing else is exchanged.
    """
    model = setup.model
    if setup.adapter is not None:
        return adapter_params(setup) / (setup.tp * setup.pp)
    experts = 0.0
    if model.experts:
        sparse = model.layers - min(model.dense_layers, model.layers)
        matrices = 3 if model.gated else 2
        experts = float(sparse * model.experts * matrices * model.hidden * model.ffn)
    dense = model.params - experts
    return dense / (setup.tp * setup.pp) + experts / (setup.tp * setup.pp * setup.ep)


def adapter_params(setup: Setup) -> float:
    """Return the parameters of LoRA's matrices: r (inputs + outputs) for each that it joins."""
    model, adapter = setup.model, setup.adapter
    if adapter is None:
        return 0.0
    query, key = model.heads * model.head_dim, model.kv_heads * model.head_dim
    widths = 2 * (model.hidden + query) + 2 * (model.hidden + key)
    if adapter.on_mlp:
        widths += (3 if model.gated else 2) * (model.hidden + model.ffn)
    return float(model.layers * adapter.rank * widths)


def layers_per_rank(setup: Setup) -> float:
    """Return how many blocks a pipeline stage has; the largest one where they do not divide."""
    return float(-(-setup.model.layers // setup.pp))


def wire_bytes(setup: Setup) -> int:
    """Return the bytes of a parameter that is gathered."""
    return 4 if setup.precision is Precision.FP32 else 2


def gradient_wire_bytes(setup: Setup) -> int:
    """Return the bytes of a gradient that is reduced."""
    return 4 if setup.fp32_gradients else wire_bytes(setup)


def activation_bytes(setup: Setup) -> int:
    """Return the bytes of an element of an activation."""
    return 4 if setup.precision is Precision.FP32 else 2


def _activation_bytes(setup: Setup) -> float:
    """Return the bytes between two blocks, of one micro batch on one context-parallel rank."""
    tokens = setup.micro_batch * setup.seq / setup.cp
    return tokens * setup.model.hidden * activation_bytes(setup)
