"""What cannot be run, and what can but should rather not be: each with what to type instead.

A refusal is something that a library asserts or a GPU lacks. When each holds stands here, what is
said of it in `refusals.tsv`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import gcd, lcm

from clusterkit.core.data import read_problem, read_table
from clusterkit.core.errors import Problem
from clusterkit.estimate.memory.states import gradient_wire_bytes
from clusterkit.estimate.setup import (
    FSDP,
    Compression,
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
_BEYOND_DDP = frozenset({Sharding.GRADIENTS, Sharding.FULL, Sharding.HYBRID})
_MUCH_PADDING = 1.05
_FP32 = 4
LIMITS = {row["name"]: int(row["most"]) for row in read_table(__file__, "limits.tsv")}
"""Beyond which number it must be a mistake, by attribute."""


def problems_of(setup: Setup) -> tuple[Problem, ...]:
    """Return why a setup cannot be run; empty where it can."""
    counts = (name for name in LIMITS if name not in {"global_batch", "lora_rank"})
    senseless = [absurd(name, getattr(setup, name)) for name in counts]
    if any(senseless):
        return tuple(filter(None, senseless))  # the rest divides by these numbers
    return tuple(
        problem
        for rule in (
            *(_machines, _experts, _tensor_ranks, _pipeline, _sequence),
            *(_sharding, _zeropp, _compression, _offload, _megatron),
        )
        for problem in rule(setup)
    )


def absurd(name: str, number: int) -> Problem | None:
    """Return what is wrong with a count by itself: none, or more than anybody has."""
    flag, most = "--" + name.replace("_", "-"), LIMITS[name]
    if number < 1:
        return Problem(message=f"{flag} is {number}", hint="give a number from 1 on")
    if number > most:
        return Problem(message=f"{flag} is {number:,}", hint=f"at most {most:,} is believed")
    return None


_problem = partial(read_problem, __file__, "refusals.tsv")


def _those(cases: Mapping[str, bool], setup: Setup, **more: object) -> Iterator[Problem]:
    yield from (_problem(name, setup, **more) for name, so in cases.items() if so)


def _machines(setup: Setup) -> Iterator[Problem]:
    gpus, per_node = setup.gpus, setup.gpus_per_node
    if gpus > per_node and gpus % per_node:
        below, above = gpus // per_node * per_node, _multiple(gpus, per_node)
        even = max(n for n in range(1, per_node + 1) if gpus % n == 0)
        yield _problem("node-size", setup, below=below, above=above, even=even)
    ranks = setup.tp * setup.pp * setup.cp
    if gpus % ranks:
        yield _problem("model-copies", setup, ranks=ranks, enough=_multiple(gpus, ranks))


def _multiple(number: int, unit: int) -> int:
    """Return the next multiple of `unit` from `number` on."""
    return -(-number // unit) * unit


def _experts(setup: Setup) -> Iterator[Problem]:
    """Yield why experts cannot be divided so: Megatron does that among dp x cp ranks."""
    experts, ep, ranks = setup.model.experts, setup.ep, setup.dp * setup.cp
    if ep == 1:
        return
    if experts == 0:
        yield _problem("no-experts", setup)
        return
    parts = ((experts, f"experts of {setup.model.name}"), (ranks, "ranks of dp x cp"))
    uneven = [f"{number} {what}" for number, what in parts if number % ep]
    if uneven:
        both = gcd(experts, ranks)
        works = [n for n in range(1, both + 1) if both % n == 0]
        yield _problem("ep", setup, uneven=" and the ".join(uneven), works=_either(works))


def _tensor_ranks(setup: Setup) -> Iterator[Problem]:
    model, tp = setup.model, setup.tp
    if setup.library is Library.DDP and tp > 1:
        yield _problem("ddp-tp", setup)
    parts = {"attention heads": model.heads, "heads of keys and values": model.kv_heads}
    parts["columns of the MLP"] = model.ffn
    if setup.library is not Library.MEGATRON:  # it pads the vocabulary by itself
        parts["words of the vocabulary"] = model.vocab
    uneven = [f"{number} {what}" for what, number in parts.items() if number % tp]
    if uneven:
        most = min(setup.gpus, LIMITS["tp"])
        works = [t for t in range(1, most + 1) if not any(n % t for n in parts.values())]
        below, above = [t for t in works if t < tp], [t for t in works if t > tp]
        near = _either(below[-3:] + above[:2])
        yield _problem("tp", setup, uneven=" and the ".join(uneven), works=near)
    if setup.sequence_parallel and tp > 1 and setup.seq % tp:
        yield _problem("tp-sequence", setup, longer=_multiple(setup.seq, tp))


def _pipeline(setup: Setup) -> Iterator[Problem]:
    layers, pp, chunks = setup.model.layers, setup.pp, setup.pp * setup.vpp
    if pp == 1:
        if setup.vpp > 1:
            yield _problem("vpp-alone", setup)
        return
    if setup.library is Library.DEEPSPEED and setup.sharding in _BEYOND_DDP:
        yield _problem("zero-pipeline", setup, stage=_stage(setup))
    if setup.library is Library.DDP:
        yield _problem("ddp-pipeline", setup)
    if pp > layers:
        yield _problem("pp-layers", setup, fewer=_divisor_below(layers, pp))
    elif layers % chunks and (setup.vpp > 1 or last_stage(setup) < 1):
        works = [p for p in range(1, layers + 1) if layers % (p * setup.vpp) == 0]
        near = [str(p) for p in works if pp / 2 <= p <= pp * 2] or [str(p) for p in works]
        what = f"pp {pp}" + (f" x vpp {setup.vpp}" if setup.vpp > 1 else "")
        hint = f"--pp {' or '.join(near)}" if near else "--vpp 1"
        yield _problem("pp-uneven", setup, what=what, works=hint)
    if setup.vpp > 1 and setup.accumulation % pp:
        yield _problem("interleaved", setup, more=_multiple(setup.accumulation, pp))


def _stage(setup: Setup) -> int:
    return 2 if setup.sharding is Sharding.GRADIENTS else 3


def last_stage(setup: Setup) -> int:
    """Return the layers of the last pipeline stage, where the others have as many as they need."""
    layers, pp = setup.model.layers, setup.pp
    return layers - (pp - 1) * -(-layers // pp)


def _either(numbers: Sequence[int]) -> str:
    """Return `1, 2 or 4`."""
    *first, last = (str(number) for number in numbers)
    return f"{', '.join(first)} or {last}" if first else last


def _divisor_below(number: int, limit: int) -> int:
    """Return the largest divisor of `number` up to `limit`."""
    return max(n for n in range(1, min(number, limit) + 1) if number % n == 0)


def _sequence(setup: Setup) -> Iterator[Problem]:
    unit, gpu = 2 * setup.cp, setup.gpu
    cases = {
        "positions": 0 < setup.model.learned_positions < setup.seq,
        "cp-sequence": setup.cp > 1 and setup.seq % unit > 0,
        "bf16": setup.precision in _BF16 and not gpu.has_bf16,
        "fp8": setup.precision is Precision.FP8 and gpu.fp8_tflops is None,
    }
    values = {"unit": unit, "longer": _multiple(setup.seq, unit)}
    yield from _those(cases, setup, instead="bf16" if gpu.has_bf16 else "fp16", **values)


def _sharding(setup: Setup) -> Iterator[Problem]:
    beyond = setup.sharding in _BEYOND_DDP
    cases = {
        "ddp-shards": setup.library is Library.DDP and beyond,
        "megatron-shards": setup.library is Library.MEGATRON and beyond,
        "zero-no-sync": setup.no_sync and setup.library is Library.DEEPSPEED and beyond,
    }
    yield from _those(cases, setup, stage=_stage(setup))
    group = setup.shard_group or setup.gpus
    if setup.sharding is Sharding.HYBRID and group >= setup.dp:
        where = "there is one node only"
        if setup.nodes > 1:
            plural = "s" if setup.dp > 1 else ""
            where = f"{setup.dp} data-parallel rank{plural} hold one only"
        ranks = setup.tp * setup.pp * setup.cp
        enough = _multiple(2 * group * ranks, lcm(setup.gpus_per_node, ranks))
        yield _problem("hybrid", setup, where=where, enough=enough)


def _zeropp(setup: Setup) -> Iterator[Problem]:
    """Yield what ZeRO++ is not estimated with.

    DeepSpeed forms its groups of the ranks of a node, whatever they hold (deepspeed/utils/groups.py
    of 0.19.8): tensor-parallel ranks would exchange different weights. One node reduces as ever.
    """
    if not setup.zeropp:
        return
    library, sharding = setup.library, setup.sharding
    cases = (
        (library is not Library.DEEPSPEED, f"{library}"),
        (sharding is not Sharding.FULL, f"{sharding} sharding"),
        (setup.adapter is not None, "adapters"),
        ({setup.offload_optimizer, setup.offload_params} != {Offload.NONE}, "offloading"),
        (setup.precision is Precision.FP32, "fp32"),
        *((getattr(setup, n) > 1, f"{n} {getattr(setup, n)}") for n in ("tp", "cp", "ep")),
    )
    beside = ", ".join(what for so, what in cases if so)
    if beside:
        yield _problem("zeropp", setup, beside=beside)
    if setup.nodes < 2:
        yield _problem("zeropp-node", setup, enough=2 * setup.gpus_per_node)


def _compression(setup: Setup) -> Iterator[Problem]:
    """Yield what compressing gradients does not go with: only whole copies exchange them."""
    kind = setup.compression
    if kind is Compression.NONE:
        return
    thin = kind is Compression.POWERSGD
    cases = {
        "compression": setup.library is not Library.DDP or setup.sharding is not Sharding.NONE,
        "compression-alone": setup.gpus == 1,
        "compression-16": kind is Compression.FP16 and gradient_wire_bytes(setup) < _FP32,
        "compression-beside": thin and bool(setup.model.experts or setup.adapter),
    }
    yield from _those(cases, setup)


def _offload(setup: Setup) -> Iterator[Problem]:
    optimizer, params = setup.offload_optimizer, setup.offload_params
    if optimizer is Offload.NONE and params is Offload.NONE:
        return
    if setup.library in {Library.DDP, Library.MEGATRON}:
        yield _problem("nothing-offloads", setup)
    elif setup.library in FSDP:
        if Offload.NVME in {optimizer, params}:
            yield _problem("fsdp-nvme", setup)
        elif params is Offload.NONE:
            yield _problem("fsdp-offload", setup)
    elif setup.sharding not in {Sharding.FULL, Sharding.HYBRID} and (
        params is not Offload.NONE or optimizer is Offload.NVME
    ):
        yield _problem("zero3-offload", setup)
    elif setup.sharding is Sharding.NONE:
        yield _problem("zero1-offload", setup)


def _megatron(setup: Setup) -> Iterator[Problem]:
    if setup.library is not Library.MEGATRON:
        return
    cases = {
        "megatron-precision": setup.precision in _BESIDE_MEGATRON,
        "megatron-optimizer": setup.optimizer not in {Optimizer.ADAMW, Optimizer.SGD},
        "megatron-adapters": setup.adapter is not None,
        "megatron-chunks": setup.loss is Loss.CHUNKED,
    }
    yield from _those(cases, setup)


def warnings_of(setup: Setup) -> Iterator[Problem]:
    """Yield what a setup that can be run should rather not do."""
    model, pp = setup.model, setup.pp
    changed = {
        "zeropp-numbers": setup.zeropp,
        "numbers-fp16": setup.compression is Compression.FP16,
        "numbers-powersgd": setup.compression is Compression.POWERSGD,
        "numbers-1-bit": setup.compression is Compression.ONE_BIT,
    }
    yield from _those(changed, setup)
    if setup.tp > setup.gpus_per_node:
        yield _problem("tp-nodes", setup)
    if model.max_seq is not None and setup.seq > model.max_seq and not model.learned_positions:
        yield _problem("long-sequence", setup)
    padded = _multiple(model.vocab, 128 * setup.tp)
    if setup.library is Library.MEGATRON and padded > _MUCH_PADDING * model.vocab:
        yield _problem("padding", setup, padded=padded)
    if pp > 1 and model.layers % pp:
        even = _divisor_below(gcd(model.layers, setup.gpus // (setup.tp * setup.cp)), pp)
        most = -(-model.layers // pp)
        yield _problem("last-stage", setup, most=most, last=last_stage(setup), even=even)
    if pp > 1 and setup.accumulation < 4 * pp:
        idle = (pp - 1) / (setup.vpp * setup.accumulation)
        batches = f"{setup.accumulation} micro batch{'es' if setup.accumulation > 1 else ''}"
        more = 4 * pp
        yield _problem("idle-stages", setup, batches=batches, idle=idle / (1 + idle), more=more)
