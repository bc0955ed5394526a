"""What a rank sends in a step, and how long that takes.

Data parallelism: `data_parallel`. Tensor and sequence parallelism: arXiv:1909.08053 and
arXiv:2205.05198, 4 all-reduces of the activations of a block, 6 where the forward pass runs again;
pipelines: arXiv:2104.04473.
"""

from __future__ import annotations

from collections.abc import Iterator

from clusterkit.estimate.factors import Calibration
from clusterkit.estimate.machines.interconnects import Fabric, group_of
from clusterkit.estimate.results import Transfer
from clusterkit.estimate.setup import Checkpointing, Library, Precision, Setup
from clusterkit.estimate.speed.data_parallel import data_parallel
from clusterkit.estimate.speed.wire import (
    activation_bytes,
    domain_of,
    fabric_of,
    layers_per_rank,
    micro_batch_bytes,
)


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
    """Yield what tensor parallelism sends: nothing else goes on meanwhile, as a rule.

    Transformer Engine, which is what fp8 in Megatron means, cuts products into pieces and sends
    one while it computes the next (`--tp-comm-overlap`); it needs sequence parallelism.
    """
    if setup.tp == 1:
        return
    group = group_of(setup.tp, 1, domain_of(setup))
    size = micro_batch_bytes(setup)
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
        formula=f"{4 + again} x 2 (t-1)/t b s h e, t = {setup.tp}, {_often(setup)}",
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
        formula=f"3 x (c-1)/c b s 2 d_kv e / t, c = {setup.cp}, {_often(setup)}",
    )


def _expert_parallel(setup: Setup, fabric: Fabric) -> Iterator[Transfer]:
    if setup.ep == 1 or not setup.model.experts:
        return
    model, group = setup.model, group_of(setup.ep, setup.tp, domain_of(setup))
    size = micro_batch_bytes(setup) / setup.tp * model.active_experts
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
    layers = layers_per_rank(setup)
    return f"for each of {layers:.0f} layers and {setup.accumulation} micro batches"
