"""What is asked of every strategy alike, and the setup that a strategy makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from clusterkit.core.errors import UserError
from clusterkit.estimate.factors import Calibration
from clusterkit.estimate.machines.gpus import Gpu
from clusterkit.estimate.machines.instances import Instance, Owned
from clusterkit.estimate.memory.phases import memory_of, usual_ram
from clusterkit.estimate.refusals import problems_of
from clusterkit.estimate.results import Memory, Speed
from clusterkit.estimate.setup import (
    TORCH,
    Adapter,
    Checkpointing,
    Library,
    Loss,
    Offload,
    Optimizer,
    Precision,
    Setup,
    Sharding,
)
from clusterkit.estimate.shapes import ModelShape
from clusterkit.estimate.speed.step_time import speed_of
from clusterkit.estimate.strategies import Strategy, base_named


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """How the sequences of a step are divided."""

    ranks: int
    """Data-parallel ranks."""
    micro_batch: int
    """Sequences that a rank takes at once."""
    accumulation: int
    """How often it does so in a step."""

    @property
    def global_batch(self) -> int:
        """Sequences of a step."""
        return self.ranks * self.micro_batch * self.accumulation


def solve_batch(
    *,
    ranks: int,
    micro_batch: int | None = None,
    accumulation: int | None = None,
    global_batch: int | None = None,
) -> Batch:
    """Return the batch with whichever number is missing; where several are, they are 1.

    Raises:
        UserError: the numbers contradict each other, or do not divide.
    """
    for flag, number in (
        ("--micro-batch", micro_batch),
        ("--accumulation", accumulation),
        ("--global-batch", global_batch),
    ):
        if number is not None and number < 1:
            raise UserError(f"{flag} is {number}", hint=f"give a number from 1 on: {flag} 1")
    if global_batch is None:
        return Batch(ranks=ranks, micro_batch=micro_batch or 1, accumulation=accumulation or 1)
    if micro_batch is None and accumulation is not None:
        micro = _divided(global_batch, ranks, "accumulation", accumulation)
        return Batch(ranks=ranks, micro_batch=micro, accumulation=accumulation)
    micro = micro_batch or 1
    steps = _divided(global_batch, ranks, "micro batch", micro)
    if accumulation not in {None, steps}:
        raise UserError(
            f"a micro batch of {micro} x {accumulation} accumulations x {ranks} ranks is a global "
            f"batch of {micro * (accumulation or 1) * ranks}, not {global_batch}",
            hint=f"leave one of them out, or --accumulation {steps}",
        )
    return Batch(ranks=ranks, micro_batch=micro, accumulation=steps)


def _divided(total: int, ranks: int, name: str, number: int) -> int:
    parts = ranks * number
    if total % parts == 0:
        return total // parts
    below, above = total // parts * parts, -(-total // parts) * parts
    nearest = f"{below} or {above}" if below else f"{above}"
    raise UserError(
        f"a global batch of {total} does not divide into {ranks} data-parallel "
        f"rank{'s' if ranks > 1 else ''} x {name} {number} ({parts} sequences at a time)",
        hint=f"the nearest that does: --global-batch {nearest}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked, whatever the strategy; None where the strategy decides."""

    model: ModelShape
    gpu: Gpu
    gpus: int
    gpus_per_node: int
    seq: int
    micro_batch: int
    global_batch: int
    strategy: Strategy | None = None
    """The only one to try; None for all."""
    tp: int | None = None
    pp: int | None = None
    vpp: int = 1
    cp: int = 1
    ep: int = 1
    precision: str | None = None
    optimizer: Optimizer = Optimizer.ADAMW
    checkpointing: Checkpointing | None = None
    loss: Loss = Loss.EAGER
    offload: Offload | None = None
    adapter: Adapter | None = None
    flash_attention: bool = True
    compiled: bool = False
    no_sync: bool = False
    interconnect: str | None = None
    margin: float = 0.08
    """Part of a GPU's memory that has to stay free."""
    host_memory: float | None = None
    """RAM of a node in bytes; None for what is usual with such GPUs."""
    calibration: Calibration | None = None
    tokens: float | None = None
    """How many to train on, where that is asked about."""
    price: float | None = None
    """Of one GPU for an hour."""
    instance: Instance | None = None
    """The rented machine, where it is one that is known."""
    owned: Owned | None = None
    """What machines of one's own would cost, where that is asked about."""
    explain: bool = False
    scale: bool = False
    assumed: tuple[str, ...] = ()
    """What was not given and had to be assumed, in words."""

    def memory(self, setup: Setup) -> Memory:
        """Return the memory of a setup, on nodes with the RAM that is said or usual."""
        memory = memory_of(setup, margin=self.margin, calibration=self.calibration)
        usual = usual_ram(setup.gpu) * min(setup.gpus, setup.gpus_per_node)
        return replace(memory, host_limit=self.host_memory or usual)

    def speed(self, setup: Setup) -> Speed:
        """Return the speed of a setup."""
        return speed_of(setup, calibration=self.calibration)

    def fits(self, setup: Setup) -> bool:
        """Tell whether a setup can be run and fits."""
        return not problems_of(setup) and self.memory(setup).fits


_ALIKE = (
    *("model", "gpu", "gpus", "vpp", "cp", "ep", "seq", "optimizer", "loss"),
    *("flash_attention", "compiled", "no_sync", "interconnect"),
)
"""What a setup has as it is asked for."""


def setup_of(
    strategy: Strategy,
    request: Request,
    *,
    tp: int | None = None,
    pp: int | None = None,
    checkpointing: Checkpointing | None = None,
) -> Setup:
    """Return the request under a strategy, with the global batch that is asked for.

    Raises:
        UserError: the global batch does not divide into the ranks.
    """
    tp, pp = tp or request.tp or 1, pp or request.pp or 1
    adapter = request.adapter or strategy.adapter
    hybrid = strategy.sharding is Sharding.HYBRID
    per_node = min(request.gpus_per_node, request.gpus)
    ranks = max(request.gpus // (tp * pp * request.cp), 1)
    batch = solve_batch(
        ranks=ranks, micro_batch=request.micro_batch, global_batch=request.global_batch
    )
    return Setup(
        gpus_per_node=per_node,
        library=strategy.library,
        sharding=strategy.sharding,
        shard_group=max(per_node // tp, 1) if hybrid else None,
        tp=tp,
        pp=pp,
        micro_batch=batch.micro_batch,
        accumulation=batch.accumulation,
        precision=precision_of(request.precision, strategy.library, request.gpu, adapter),
        checkpointing=checkpointing or request.checkpointing or Checkpointing.NONE,
        offload_optimizer=strategy.offload_optimizer,
        offload_params=strategy.offload_params,
        fp32_gradients=strategy.library is Library.MEGATRON,
        adapter=adapter,
        zeropp=strategy.zeropp,
        compression=strategy.compression,
        **{name: getattr(request, name) for name in _ALIKE},
    )


def precision_of(
    named: str | None, library: Library, gpu: Gpu, adapter: Adapter | None = None
) -> Precision:
    """Return the precision, where `bf16` and `fp16` mean what is usual with the library.

    torch keeps parameters in fp32 and casts them (`amp-bf16`), DeepSpeed and Megatron keep 16 bits
    with copies in fp32; adapters are trained beside weights in 16 bits that nothing changes.
    """
    named = named or ("bf16" if gpu.has_bf16 else "fp16")
    if named == "bf16" and adapter is not None and library in TORCH:
        return Precision.PURE_BF16
    if named in {"bf16", "fp16"} and library in TORCH:
        return Precision(f"amp-{named}")
    return Precision(named)


def ladder(request: Request) -> Sequence[Strategy]:
    """Return the strategies that are tried where none is asked for, simplest first."""
    if request.gpus == 1:
        names = ["single", "zero2-offload", "zero3-offload", "zero3-nvme"]
    else:
        names = ["ddp", "zero1", "fsdp-shard-grad-op", "zero2", "fsdp", "zero3"]
        names += ["fsdp-hybrid"] if request.gpus > request.gpus_per_node else []
        names += ["megatron", "zero2-offload", "fsdp-offload", "zero3-offload", "zero3-nvme"]
    if request.adapter is not None:
        plain = "qlora" if request.adapter.quantized else "lora"
        names = [plain if name in {"single", "ddp"} else name for name in names]
    tried = [base_named(name) for name in names]
    if request.offload is None:
        return tried
    return [strategy for strategy in tried if strategy.offload is request.offload]
