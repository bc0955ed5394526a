"""What a rank sends in a step, and how long that takes.

Data parallelism: the bytes of ZeRO section 7 (arXiv:1910.02054): with N ranks and a model of P
bytes, 2 (N-1)/N P for an all-reduce, and 3 (N-1)/N P where parameters are sharded, too, since they
are gathered for the forward and again for the backward pass. Tensor and sequence parallelism:
arXiv:1909.08053 and arXiv:2205.05198, 4 all-reduces of the activations of a block, 6 where the
forward pass runs again; pipelines: arXiv:2104.04473; ZeRO++: arXiv:2306.10209; PowerSGD:
arXiv:1905.13727; 1-bit Adam: arXiv:2102.02888.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from clusterkit.estimate import FACTS
from clusterkit.estimate.factors import Calibration
from clusterkit.estimate.machines.interconnects import (
    Fabric,
    Group,
    fast_domain,
    group_of,
    network_of,
)
from clusterkit.estimate.memory.states import (
    adapter_params,
    gradient_wire_bytes,
    params_per_rank,
)
from clusterkit.estimate.results import Transfer
from clusterkit.estimate.setup import (
    FSDP,
    Adapter,
    Checkpointing,
    Compression,
    Library,
    Precision,
    Setup,
    Sharding,
)


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
    return fast_domain(setup.gpu, setup.gpus_per_node, setup.gpus)


def micro_batch_bytes(setup: Setup) -> float:
    """Return the bytes between two blocks, of one micro batch on one context-parallel rank."""
    return setup.rank_tokens * setup.model.hidden * setup.element_bytes


def transfers_of(setup: Setup, *, calibration: Calibration | None = None) -> tuple[Transfer, ...]:
    """Return what a rank sends in one step, by what it is for; nothing for a single GPU."""
    fabric = fabric_of(setup, calibration)
    found = (
        *data_parallel(setup, fabric),
        *_tensor_parallel(setup, fabric),
        *_context_parallel(setup, fabric),
        *_expert_parallel(setup, fabric),
        *_pipeline(setup, fabric),
    )
    return tuple(transfer for transfer in found if transfer.bytes > 0)


def _tensor_parallel(setup: Setup, fabric: Fabric) -> Iterator[Transfer]:
    """Yield what tensor parallelism sends: nothing else is sent meanwhile, as a rule.

    Transformer Engine, which is what fp8 in Megatron means, cuts products into pieces and sends
    one while it computes the next (`--tp-comm-overlap`); it needs sequence parallelism.
    """
    if setup.tp == 1:
        return
    group = group_of(setup.tp, 1, domain_of(setup))
    size = micro_batch_bytes(setup)
    again = 2 if setup.checkpointing is Checkpointing.FULL else 0
    count = (4 + again) * setup.stage_layers * setup.accumulation
    engine = setup.library is Library.MEGATRON and setup.precision is Precision.FP8
    what = "gather and reduce-scatter" if setup.sequence_parallel else "all-reduce"
    yield Transfer(
        name=f"{what} activations",
        group="tensor",
        bytes=count * 2 * (setup.tp - 1) / setup.tp * size,
        messages=round(count * (2 if setup.sequence_parallel else 1)),
        seconds=count * fabric.all_reduce_s(size, group),
        hidden=engine and setup.sequence_parallel,
        formula=f"{4 + again} x 2 (t-1)/t b s h e, t = {setup.tp}, {_often(setup)}",
        times=setup.accumulation,
    )


def _context_parallel(setup: Setup, fabric: Fabric) -> Iterator[Transfer]:
    """Yield keys and values, which pass all ranks: forward, again backward, and their gradients."""
    if setup.cp == 1:
        return
    model, group = setup.model, group_of(setup.cp, setup.tp, domain_of(setup))
    kv = 2 * model.kv_heads * model.head_dim / min(setup.tp, model.kv_heads)
    size = setup.micro_batch * setup.seq * kv * setup.element_bytes
    count = 3 * setup.stage_layers * setup.accumulation
    yield Transfer(
        name="pass keys and values around",
        group="context",
        bytes=count * (setup.cp - 1) / setup.cp * size,
        messages=round(count * (setup.cp - 1)),
        seconds=count * fabric.all_gather_s(size, group),
        hidden=True,
        times=setup.accumulation,
        formula=f"3 x (c-1)/c b s 2 d_kv e / t, c = {setup.cp}, {_often(setup)}",
    )


def _expert_parallel(setup: Setup, fabric: Fabric) -> Iterator[Transfer]:
    if setup.ep == 1 or not setup.model.experts:
        return
    model, group = setup.model, group_of(setup.ep, setup.tp, domain_of(setup))
    size = micro_batch_bytes(setup) / setup.tp * model.active_experts
    sparse = 1 - min(model.dense_layers, model.layers) / model.layers
    again = 2 if setup.checkpointing is Checkpointing.FULL else 0
    count = (4 + again) * setup.stage_layers * sparse * setup.accumulation
    yield Transfer(
        name="send tokens to experts and back",
        group="expert",
        bytes=count * (setup.ep - 1) / setup.ep * size,
        messages=round(count),
        seconds=count * fabric.all_to_all_s(size, group),
        hidden=False,
        formula=f"{4 + again} x (x-1)/x b s h k e, x = {setup.ep}, {_often(setup)}",
    )


def _pipeline(setup: Setup, fabric: Fabric) -> Iterator[Transfer]:
    if setup.pp == 1:
        return
    divided = setup.tp if setup.sequence_parallel else 1
    size = micro_batch_bytes(setup) / divided
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
        formula=f"2 v b s h e, v = {setup.vpp}, for {setup.accumulation} micro batches",
    )


def _often(setup: Setup) -> str:
    layers = setup.stage_layers
    return f"for each of {layers:.0f} layers and {setup.accumulation} micro batches"


def data_parallel(setup: Setup, fabric: Fabric) -> Iterator[Transfer]:
    """Yield what the data-parallel ranks exchange.

    With k micro batches, gradients that nobody shards are reduced once (`no_sync`), as are those
    of ZeRO-1; ZeRO-2 reduces k times and gathers once; FSDP does everything k times, unless
    `no_sync` keeps gradients whole until the last micro batch. DeepSpeed reduces meanwhile with
    `overlap_comm`, as our configurations set it, but never without ZeRO; it gathers after the step,
    where Megatron does so in the next forward pass (`--overlap-param-gather`).
    """
    ranks = _Ranks(setup=setup, fabric=fabric)
    fsdp, megatron = setup.library in FSDP, setup.library is Library.MEGATRON
    k = 1 if setup.no_sync and fsdp else setup.accumulation
    match setup.sharding:
        case Sharding.NONE if setup.compression is not Compression.NONE:
            yield ranks.compressed()
        case Sharding.NONE:
            yield ranks.reduced(
                ranks.everybody, times=1, hidden=setup.library is not Library.DEEPSPEED
            )
        case Sharding.OPTIMIZER:
            yield ranks.scattered(times=1, hidden=True)
            yield ranks.reduced(ranks.replicas, times=1, hidden=True)
            when = "forward" if megatron else "after the step"
            yield ranks.gathered(when, times=1, hidden=megatron)
        case Sharding.GRADIENTS:
            yield ranks.scattered(times=k, hidden=True)
            yield ranks.gathered("forward", times=k if fsdp else 1, hidden=fsdp)
        case Sharding.FULL if setup.zeropp:
            yield from ranks.quantized()
        case Sharding.FULL | Sharding.HYBRID:
            yield ranks.gathered("forward", times=setup.accumulation, hidden=True)
            yield ranks.gathered("backward", times=setup.accumulation, hidden=True)
            yield ranks.scattered(times=k, hidden=True)
            yield ranks.reduced(ranks.replicas, times=k, hidden=True)


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

    def reduced(self, group: Group, *, times: int, hidden: bool) -> Transfer:
        """Return the all-reduce of all gradients, or of a shard of them among its copies."""
        copies = group == self.replicas and self._shards > 1
        each = gradient_wire_bytes(self.setup)
        whole = params_per_rank(self.setup) * each
        size, pieces = whole / (self._shards if copies else 1), self._pieces(whole, each)
        ranks = f"R = {group.ranks}, N = {self._shards}" if copies else f"N = {group.ranks}"
        formula = "2 (R-1)/R P g / N" if copies else "2 (N-1)/N P g"
        return Transfer(
            name="all-reduce gradients" + (" among copies" if copies else ""),
            group="replicas" if copies else "data",
            bytes=2 * (group.ranks - 1) / group.ranks * size * times,
            messages=pieces * times,
            seconds=self.fabric.all_reduce_s(size / pieces, group) * pieces * times,
            hidden=hidden,
            formula=f"{formula}, {ranks}, {self._params}, g = {each}{_times(times)}",
            times=times,
        )

    def compressed(self) -> Transfer:
        """Return the all-reduce of all gradients as they are compressed, scales left out.

        1-bit optimizers exchange moments, and only when all gradients are there.
        """
        setup, group = self.setup, self.everybody
        each = gradient_wire_bytes(setup)
        form, sent = {
            Compression.FP16: ("2 P", 2 * params_per_rank(setup)),
            Compression.POWERSGD: (
                f"g r (n + m) of each matrix, r = {FACTS['powersgd_rank']:g}, g = {each}",
                each * _low_rank(setup),
            ),
            Compression.ONE_BIT: ("P / 8", params_per_rank(setup) / 8),
        }[setup.compression]
        # A bucket goes in one piece; with PowerSGD, one matrix of each pair after the other.
        pieces = self._pieces(params_per_rank(setup) * each, each)
        pieces *= 2 if setup.compression is Compression.POWERSGD else 1
        return Transfer(
            name=f"all-reduce gradients, compressed ({setup.compression})",
            group="data",
            bytes=2 * (group.ranks - 1) / group.ranks * sent,
            messages=pieces,
            seconds=self.fabric.all_reduce_s(sent / pieces, group) * pieces,
            hidden=setup.compression is not Compression.ONE_BIT,
            formula=f"2 (N-1)/N x {form}, N = {group.ranks}, {self._params}{_times(1)}",
        )

    def scattered(self, *, times: int, hidden: bool) -> Transfer:
        """Return the reduce-scatter of gradients."""
        name, each = "reduce-scatter gradients", gradient_wire_bytes(self.setup)
        return self._one_way(name, "g", each, times=times, hidden=hidden)

    def gathered(self, when: str, *, times: int, hidden: bool) -> Transfer:
        """Return the gathering of parameters, `when` they are needed."""
        name, each = f"gather parameters ({when})", self.setup.element_bytes
        sent = self._one_way(name, "w", each, times=times, hidden=hidden)
        return replace(sent, during="forward") if when == "forward" else sent

    def quantized(self) -> Iterator[Transfer]:
        """Yield what ZeRO++ sends for each micro batch: q bytes of a parameter, scales left out.

        8 bits of a weight to all ranks; backward its 16 bits, from the second copy in the node;
        4 bits of a gradient, first within the node, then the sum of each rank between nodes.
        """
        setup, domain = self.setup, domain_of(self.setup)
        per_node, times = min(setup.gpus_per_node, setup.gpus), setup.accumulation
        node, nodes = group_of(per_node, 1, domain), group_of(setup.nodes, per_node, domain)
        sent = partial(self._one_way, letter="q", times=times, hidden=True)
        yield replace(sent("gather parameters in 8 bits (forward)", each=1), during="forward")
        yield sent("gather parameters (backward)", each=2, group=node, who="node")
        name = "reduce-scatter gradients in 4 bits"
        yield sent(name, each=0.5, group=node, who="node")
        yield sent(f"{name}, between nodes", each=0.5 / per_node, group=nodes, who="replicas")

    def _one_way(
        self,
        name: str,
        letter: str,
        each: float,
        *,
        times: int,
        hidden: bool,
        group: Group | None = None,
        who: str = "shard",
    ) -> Transfer:
        group, size = group or self.shard, params_per_rank(self.setup) * each
        pieces = self._pieces(size, each)
        figures = f"N = {group.ranks}, {self._params}, {letter} = {each:g}{_times(times)}"
        return Transfer(
            name=name,
            group=who,
            bytes=(group.ranks - 1) / group.ranks * size * times,
            messages=pieces * times,
            seconds=self.fabric.all_gather_s(size / pieces, group) * pieces * times,
            hidden=hidden,
            formula=f"(N-1)/N P {letter}, {figures}",
            times=times,
        )

    @property
    def _params(self) -> str:
        return f"P = {params_per_rank(self.setup):.3e}"

    def _pieces(self, size: float, each: float) -> int:
        """Return in how many collectives `size` bytes go, at `each` bytes per element."""
        library = self.setup.library
        if self.setup.sharding in {Sharding.FULL, Sharding.HYBRID} or library in FSDP:
            # One for each block, and one for the embedding.
            return max(1, self.setup.model.layers // self.setup.pp) + 1
        bucket = FACTS["ddp_bucket_bytes"]
        if library is Library.DEEPSPEED:
            bucket = FACTS["deepspeed_bucket_elements"] * each
        elif library is Library.MEGATRON:
            of_ranks = FACTS["megatron_bucket_elements_of_rank"] * self._count
            bucket = max(FACTS["megatron_bucket_elements"], of_ranks) * each
        return max(1, round(size / bucket))


def _low_rank(setup: Setup) -> float:
    """Return the elements of the pairs of matrices that PowerSGD sends for those of a model."""
    model, rank = setup.model, int(FACTS["powersgd_rank"])
    tables = rank * (model.vocab + model.hidden) * (1 if model.tied else 2)
    return model.layers * adapter_params(model, Adapter(rank=rank)) + tables


def _times(times: int) -> str:
    return ", once per step" if times == 1 else f", {times} times per step"
