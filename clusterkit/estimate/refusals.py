"""What cannot be run: each with its reason and what to type.

A refusal is something that a library asserts or a GPU lacks; `cautions` has everything else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import gcd, lcm

from clusterkit.core.errors import Problem
from clusterkit.estimate.setup import (
    FSDP,
    Library,
    Loss,
    Offload,
    Optimizer,
    Precision,
    Setup,
    Sharding,
)

_BF16 = frozenset({Precision.AMP_BF16, Precision.BF16, Precision.PURE_BF16})
_BESIDE_MEGATRON = frozenset({Precision.AMP_BF16, Precision.AMP_FP16, Precision.PURE_BF16})
_MOST_RANKS = 1_024
LIMITS: Mapping[str, int] = {
    "gpus": 1_000_000,
    "gpus_per_node": 1_000,
    "seq": 100_000_000,
    "micro_batch": 1_000_000,
    "accumulation": 100_000_000,
    "global_batch": 1_000_000_000,
    **dict.fromkeys(("tp", "pp", "vpp", "cp", "ep"), _MOST_RANKS),
    "lora_rank": 100_000,
}
"""Beyond which number it must be a slip of the hand, by attribute."""


def problems_of(setup: Setup) -> tuple[Problem, ...]:
    """Return why a setup cannot be run; empty where it can."""
    absurd = tuple(_absurd(setup))
    if absurd:
        return absurd  # the rest divides by these numbers
    rules = (
        _machines,
        _experts,
        _tensor_ranks,
        _pipeline,
        _sequence,
        _precision,
        _sharding,
        _offload,
        _megatron,
    )
    return tuple(problem for rule in rules for problem in rule(setup))


def absurd(name: str, number: int) -> Problem | None:
    """Return what is wrong with a count by itself: none, or more than anybody has."""
    flag, most = "--" + name.replace("_", "-"), LIMITS[name]
    if number < 1:
        return Problem(message=f"{flag} is {number}", hint="give a number from 1 on")
    if number > most:
        return Problem(message=f"{flag} is {number:,}", hint=f"at most {most:,} is believed")
    return None


def _absurd(setup: Setup) -> Iterator[Problem]:
    for name in (name for name in LIMITS if name not in {"global_batch", "lora_rank"}):
        problem = absurd(name, getattr(setup, name))
        if problem is not None:
            yield problem


def _machines(setup: Setup) -> Iterator[Problem]:
    gpus, per_node = setup.gpus, setup.gpus_per_node
    if gpus > per_node and gpus % per_node:
        below, above = gpus // per_node * per_node, -(-gpus // per_node) * per_node
        even = max(n for n in range(1, per_node + 1) if gpus % n == 0)
        yield Problem(
            message=f"{gpus} GPUs do not fill nodes of {per_node}: every node of a job has "
            "the same number",
            hint=f"--gpus {below} or {above}, or --gpus-per-node {even} to use {even} of each node",
        )
    ranks = setup.tp * setup.pp * setup.cp
    if gpus % ranks:
        yield Problem(
            message=f"{gpus} GPUs do not divide into tp {setup.tp} x pp {setup.pp} x cp {setup.cp} "
            f"= {ranks} GPUs for one copy of the model",
            hint=f"--gpus {-(-gpus // ranks) * ranks}, or smaller --tp, --pp, --cp",
        )


def _experts(setup: Setup) -> Iterator[Problem]:
    """Yield why experts cannot be divided so: Megatron does that among dp x cp ranks."""
    experts, ep, ranks = setup.model.experts, setup.ep, setup.dp * setup.cp
    if ep == 1:
        return
    if experts == 0:
        yield Problem(
            message=f"{setup.model.name} has no experts that ep {ep} could divide", hint="--ep 1"
        )
        return
    parts = ((experts, f"experts of {setup.model.name}"), (ranks, "ranks of dp x cp"))
    uneven = [f"{number} {what}" for number, what in parts if number % ep]
    if uneven:
        both = gcd(experts, ranks)
        works = [n for n in range(1, both + 1) if both % n == 0]
        yield Problem(
            message=f"ep {ep} does not divide the {' and the '.join(uneven)}",
            hint=f"--ep {_either(works)}",
        )


def _tensor_ranks(setup: Setup) -> Iterator[Problem]:
    model, tp = setup.model, setup.tp
    if setup.library is Library.DDP and tp > 1:
        yield Problem(
            message=f"DDP keeps a whole copy on every GPU: nothing is divided by tp {tp}",
            hint=f"--strategy megatron --tp {tp}, or fsdp, which takes --tp as well",
        )
    parts = [
        ("attention heads", model.heads),
        ("heads of keys and values", model.kv_heads),
        ("columns of the MLP", model.ffn),
    ]
    if setup.library is not Library.MEGATRON:  # it pads the vocabulary by itself
        parts.append(("words of the vocabulary", model.vocab))
    uneven = [f"{number} {what}" for what, number in parts if number and number % tp]
    if uneven:
        most = min(setup.gpus, _MOST_RANKS)
        works = [t for t in range(1, most + 1) if not any(n % t for _, n in parts)]
        below = [t for t in works if t < tp]
        above = [t for t in works if t > tp]
        yield Problem(
            message=f"tp {tp} does not divide the {' and the '.join(uneven)} of {model.name}",
            hint=f"--tp {_either(below[-3:] + above[:2])}",
        )
    if setup.sequence_parallel and tp > 1 and setup.seq % tp:
        yield Problem(
            message=f"tp {tp} does not divide sequences of {setup.seq} (sequence parallel)",
            hint=f"--seq {-(-setup.seq // tp) * tp}",
        )


def _pipeline(setup: Setup) -> Iterator[Problem]:
    model, pp, chunks = setup.model, setup.pp, setup.pp * setup.vpp
    if pp == 1:
        if setup.vpp > 1:
            yield Problem(message=f"vpp {setup.vpp} divides stages of a pipeline", hint="--pp 2")
        return
    if setup.library is Library.DEEPSPEED and setup.sharding not in {
        Sharding.NONE,
        Sharding.OPTIMIZER,
    }:
        stage = 2 if setup.sharding is Sharding.GRADIENTS else 3
        yield Problem(
            message=f"ZeRO-{stage} and pipeline parallelism exclude each other: every micro batch "
            "of a pipeline would reduce its gradients (deepspeed/runtime/pipe/engine.py "
            "asserts it)",
            hint=f"--strategy zero1 --pp {pp}, --strategy megatron --pp {pp}, or --pp 1",
        )
    if setup.library is Library.DDP:
        yield Problem(
            message="DDP alone has no pipeline stages",
            hint=f"--strategy megatron --pp {pp}",
        )
    if pp > model.layers:
        yield Problem(
            message=f"{pp} pipeline stages are more than the {model.layers} layers of {model.name}",
            hint=f"--pp {divisor_below(model.layers, pp)}",
        )
    elif model.layers % chunks and (setup.vpp > 1 or last_stage(setup) < 1):
        works = [p for p in range(1, model.layers + 1) if model.layers % (p * setup.vpp) == 0]
        near = [str(p) for p in works if pp / 2 <= p <= pp * 2] or [str(p) for p in works]
        what = f"pp {pp}" + (f" x vpp {setup.vpp}" if setup.vpp > 1 else "")
        yield Problem(
            message=f"{what} does not divide the {model.layers} layers of {model.name}",
            hint=f"--pp {' or '.join(near)}" if near else "--vpp 1",
        )
    if setup.vpp > 1 and setup.accumulation % pp:
        yield Problem(
            message=f"interleaved stages (vpp {setup.vpp}) need micro batches in multiples of "
            f"pp {pp}, not {setup.accumulation}",
            hint=f"--accumulation {-(-setup.accumulation // pp) * pp}, or --vpp 1",
        )


def last_stage(setup: Setup) -> int:
    """Return the layers of the last pipeline stage, where the others have as many as they need."""
    layers, pp = setup.model.layers, setup.pp
    return layers - (pp - 1) * -(-layers // pp)


def _either(numbers: Sequence[int]) -> str:
    """Return `1, 2 or 4`."""
    *first, last = (str(number) for number in numbers)
    return f"{', '.join(first)} or {last}" if first else last


def divisor_below(number: int, limit: int) -> int:
    """Return the largest divisor of `number` up to `limit`."""
    return max(n for n in range(1, min(number, limit) + 1) if number % n == 0)


def _sequence(setup: Setup) -> Iterator[Problem]:
    model, seq = setup.model, setup.seq
    if model.learned_positions and seq > model.learned_positions:
        yield Problem(
            message=f"{model.name} has positions for {model.learned_positions} tokens, "
            f"not for {seq}: its position embedding is a table",
            hint=f"--seq {model.learned_positions}",
        )
    if setup.cp > 1 and seq % (2 * setup.cp):
        yield Problem(
            message=f"cp {setup.cp} needs sequences in multiples of {2 * setup.cp}, not {seq}",
            hint=f"--seq {-(-seq // (2 * setup.cp)) * 2 * setup.cp}",
        )


def _precision(setup: Setup) -> Iterator[Problem]:
    gpu = setup.gpu
    if setup.precision in _BF16 and gpu.bf16_tflops is None:
        yield Problem(
            message=f"{gpu.name} multiplies no bf16: that began with Ampere (sm80)",
            hint="--precision fp16",
        )
    if setup.precision is Precision.FP8 and gpu.fp8_tflops is None:
        yield Problem(
            message=f"{gpu.name} multiplies no fp8: that began with Ada and Hopper, and MI300",
            hint="--precision bf16" if gpu.bf16_tflops is not None else "--precision fp16",
        )


def _sharding(setup: Setup) -> Iterator[Problem]:
    beyond_ddp = {Sharding.GRADIENTS, Sharding.FULL, Sharding.HYBRID}
    if setup.library is Library.DDP and setup.sharding in beyond_ddp:
        yield Problem(
            message=f"DDP does not shard: {setup.sharding} is for FSDP and DeepSpeed",
            hint="--strategy fsdp or zero3",
        )
    if setup.library is Library.MEGATRON and setup.sharding in beyond_ddp:
        yield Problem(
            message="Megatron's distributed optimizer shards optimizer states only",
            hint="--strategy megatron, or fsdp",
        )
    group = setup.shard_group or setup.gpus
    if setup.sharding is Sharding.HYBRID and group >= setup.dp:
        where = "there is one node only"
        if setup.nodes > 1:
            plural = "s" if setup.dp > 1 else ""
            where = f"{setup.dp} data-parallel rank{plural} hold one only"
        unit = lcm(setup.gpus_per_node, setup.tp * setup.pp * setup.cp)
        enough = -(-2 * group * setup.tp * setup.pp * setup.cp // unit) * unit
        yield Problem(
            message=f"hybrid sharding keeps copies in several nodes, and {where}",
            hint=f"--strategy fsdp, or --gpus {enough}",
        )
    if setup.no_sync and setup.library is Library.DEEPSPEED and setup.sharding in beyond_ddp:
        stage = 2 if setup.sharding is Sharding.GRADIENTS else 3
        yield Problem(
            message=f"ZeRO-{stage} shards gradients as they come: DeepSpeed asserts that nobody "
            "enters no_sync with it (deepspeed/runtime/engine.py)",
            hint="leave --no-sync out, or --strategy zero1",
        )


def _offload(setup: Setup) -> Iterator[Problem]:
    optimizer, params = setup.offload_optimizer, setup.offload_params
    if optimizer is Offload.NONE and params is Offload.NONE:
        return
    if setup.library in {Library.DDP, Library.MEGATRON}:
        yield Problem(
            message=f"{setup.library} keeps everything on the GPU: nothing to offload with",
            hint="--strategy zero2-offload, zero3-offload or fsdp-offload",
        )
    elif setup.library in FSDP:
        if Offload.NVME in {optimizer, params}:
            yield Problem(message="FSDP offloads to the CPU only", hint="--strategy zero3-nvme")
        elif params is Offload.NONE:
            yield Problem(
                message="FSDP offloads parameters, gradients and the optimizer step together",
                hint="--strategy fsdp-offload, or zero2-offload for the optimizer alone",
            )
    elif setup.sharding not in {Sharding.FULL, Sharding.HYBRID} and (
        params is not Offload.NONE or optimizer is Offload.NVME
    ):
        yield Problem(
            message="only ZeRO-3 offloads parameters, or anything to NVMe",
            hint="--strategy zero3-offload or zero3-nvme",
        )
    elif setup.sharding is Sharding.NONE:
        yield Problem(
            message="DeepSpeed offloads what ZeRO shards: stage 1 at least",
            hint="--strategy zero2-offload",
        )


def _megatron(setup: Setup) -> Iterator[Problem]:
    if setup.library is not Library.MEGATRON:
        return
    if setup.precision in _BESIDE_MEGATRON:
        yield Problem(
            message=f"Megatron keeps 16-bit parameters with copies in fp32, not {setup.precision}",
            hint="--precision bf16, fp16, fp32 or fp8",
        )
    if setup.optimizer not in {Optimizer.ADAMW, Optimizer.SGD}:
        yield Problem(message=f"Megatron has no {setup.optimizer}", hint="--optimizer adamw or sgd")
    if setup.adapter is not None:
        yield Problem(
            message="Megatron-LM trains no adapters",
            hint="--strategy lora, or fsdp+lora",
        )
    if setup.loss is Loss.CHUNKED:
        yield Problem(message="Megatron has no loss in chunks", hint="--loss fused")
