"""Nodes of two kinds in one job: which micro batch each kind takes of one global batch.

All ranks do one step together, so it takes as long as that of the kind which is slowest at its
own share. The smallest such step is looked for, over whole micro batches that add up to the global
batch and fit. States are divided equally, as FSDP and ZeRO do.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import gcd, isqrt
from typing import TypeAlias, TypeGuard

from clusterkit.core.errors import UserError
from clusterkit.estimate.advice.recommend import MUCH_FASTER, Answer, Candidate, answer_of
from clusterkit.estimate.machines.gpus import gpu_named
from clusterkit.estimate.machines.interconnects import network_of
from clusterkit.estimate.query.answer import PER_NODE, request_of
from clusterkit.estimate.query.options import EstimateOptions
from clusterkit.estimate.request import Request
from clusterkit.estimate.setup import Checkpointing, Library, Setup
from clusterkit.estimate.strategies import strategy_named

_JOINED = re.compile(r"\+(?=\s*+[a-zA-Z])|[+,](?=\s*+\d++\s*+x)")
_COUNTED = re.compile(r"(\d{1,7})\s*+x\s*+(\S.*+)")
_EXAMPLE = "two kinds with a number of each: --gpu 8xa100-80+8xh100"
_ONE_KIND = (
    *("power_limit", "on", "own", "tokens", "price", "explain", "scale"),
    *("tp", "pp", "cp", "ep", "vpp"),
)
_Division: TypeAlias = tuple[tuple[Candidate, ...], str | None]
_TRIES = 8
"""Accumulations that fit and are compared, from the smallest on: more of them take longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """How a global batch is divided among two kinds."""

    request: Request
    """Of the kind with less memory."""
    kinds: tuple[tuple[int, str], ...]
    """How many there are of each, and its name."""
    assumed: tuple[str, ...]
    """What was not given and had to be assumed, in words."""
    strategy: str | None = None
    """The simplest that fits on both, if none is much faster; None where none fits."""
    why: str = ""
    """Why none fits."""
    shares: tuple[Candidate, ...] = ()
    """Each kind at its micro batch, as if all GPUs were of it; empty where nothing fits."""
    even_s: float | None = None
    """A step with equal micro batches, in seconds; None where these do not fit."""
    full: str | None = None
    """The kind whose memory keeps it from taking more, where that and not its rate decides."""

    @property
    def slowest(self) -> Candidate:
        """The share that a step waits for."""
        return max(self.shares, key=_step_s)

    @property
    def step_s(self) -> float:
        """Seconds of a step, likely."""
        return _step_s(self.slowest)


def _step_s(share: Candidate) -> float:
    """Return the seconds of a step that waits for no other kind, likely."""
    return share.speed.step_s.likely


def is_mixed(gpu: str | None) -> TypeGuard[str]:
    """Tell whether several kinds are named: `8xa100-80+8xh100`."""
    return len(_JOINED.split(gpu or "")) > 1


def mixed(options: EstimateOptions) -> Mixed:
    """Return the simplest strategy that fits on both kinds, and the share of each.

    Raises:
        UserError: options are missing or make no sense.
    """
    kinds = _kinds(options)
    requests = _requests(options, kinds)
    tightest = min(requests, key=lambda request: request.gpu.usable_bytes)
    answer = answer_of(tightest)
    counts = tuple(count for count, _ in kinds)
    search = _Search(requests=requests, counts=counts)
    asked = options.micro_batch is not None or options.accumulation is not None
    divided = [
        (*found, setup, rounds)
        for name, setup in _candidates(answer)
        for rounds in [[setup.accumulation] if asked else _rounds(setup, gcd(*counts))]
        if (found := search.fastest(name, setup, rounds))
    ]
    nothing = Mixed(
        request=tightest,
        kinds=tuple(zip(counts, (one.gpu.name for one in requests), strict=True)),
        assumed=tuple(_assumed(options, tightest, asked=asked)),
        why=answer.why if answer.chosen is None else f"{answer.chosen.name} does on one of them",
    )
    if not divided:
        return nothing
    least = min(max(map(_step_s, shares)) for shares, *_ in divided)
    shares, full, setup, rounds = next(
        row for row in divided if max(map(_step_s, row[0])) <= MUCH_FASTER * least
    )
    even_s = search.even_s(setup, rounds)
    return replace(
        nothing, why="", strategy=shares[0].name, shares=shares, full=full, even_s=even_s
    )


def _assumed(options: EstimateOptions, request: Request, *, asked: bool) -> Iterator[str]:
    """Yield what was assumed for two kinds alike; micro batches are what is looked for."""
    for text in request.assumed:
        if asked or "--micro-batch" not in text:
            yield text
    if not asked and options.global_batch is None:
        yield "one sequence for each GPU, which leaves nothing to divide (--global-batch)"
    if options.gpus_per_node is None:
        gpus = "GPU" if request.gpus_per_node == 1 else "GPUs"
        yield f"nodes of {request.gpus_per_node} {gpus} of one kind (--gpus-per-node)"
    if options.interconnect is None:
        yield f"{request.interconnect} between nodes, the slower of both (--interconnect)"


def _candidates(answer: Answer) -> Iterator[tuple[str, Setup]]:
    """Yield what may fit, simplest first: with checkpointing last, which leaves room for more."""
    able = [one for one in answer.candidates if one.setup.library is not Library.MEGATRON]
    request = answer.request
    yield from ((one.name, one.setup) for one in able)
    if request.checkpointing is None and request.strategy is None:
        for one in able:
            if one.setup.checkpointing is Checkpointing.NONE and one.fits:
                yield f"{one.name}+ac", replace(one.setup, checkpointing=Checkpointing.FULL)


def _kinds(options: EstimateOptions) -> Sequence[tuple[int, str]]:
    """Return how many there are of each kind, and its name or figures."""
    parts = [_COUNTED.fullmatch(part.strip()) for part in _JOINED.split(options.gpu or "")]
    kinds = [(int(part[1]), part[2]) for part in parts if part]
    if len(parts) > 2:
        raise UserError(f"--gpu names {len(parts)} kinds, and two can be divided", hint=_EXAMPLE)
    if len(kinds) != len(parts) or len(kinds) != 2 or not all(count for count, _ in kinds):
        raise UserError(f"--gpu {options.gpu} does not say how many of which", hint=_EXAMPLE)
    total = sum(count for count, _ in kinds)
    if options.gpus not in {None, total}:
        message = f"--gpus {options.gpus}, and {options.gpu} are {total}"
        raise UserError(message, hint="leave --gpus out")
    given = [name for name in _ONE_KIND if getattr(options, name) not in {None, False}]
    given = ["--" + name.replace("_", "-") for name in given]
    named = None if options.strategy is None else strategy_named(options.strategy)
    if named is not None and (
        named.library is Library.MEGATRON or named.tp or named.pp or named.cp
    ):
        given.append(f"--strategy {options.strategy}")
    if given:
        raise UserError(
            f"{', '.join(given)} is for GPUs of one kind: two share batches by data parallelism",
            hint="leave it out, or name one kind: --gpu h100 --gpus 8",
        )
    return kinds


def _requests(options: EstimateOptions, kinds: Sequence[tuple[int, str]]) -> Sequence[Request]:
    """Return what is asked of each kind, as if all were of it: one network and one precision."""
    gpus = [gpu_named(name) for _, name in kinds]
    if gpus[0] == gpus[1]:
        total = sum(count for count, _ in kinds)
        name = gpus[0].name
        raise UserError(f"both kinds are {name}", hint=f"--gpu {name} --gpus {total}")
    if options.precision is None and not all(gpu.has_bf16 for gpu in gpus):
        options = replace(options, precision="fp16")
    if len({gpu.arch.startswith("gfx") for gpu in gpus}) > 1:
        raise UserError("GPUs of NVIDIA and AMD have no collectives in common", hint=_EXAMPLE)
    counts = [count for count, _ in kinds]
    usual = gcd(PER_NODE, *counts)
    network = min((network_of(gpu) for gpu in gpus), key=lambda one: one.node_gbs(usual))
    options = replace(
        options,
        gpus_per_node=options.gpus_per_node or (None if options.cluster else usual),
        interconnect=options.interconnect or network.name,
    )
    requests = [request_of(replace(options, gpu=name, gpus=sum(counts))) for _, name in kinds]
    if any(count % requests[0].gpus_per_node for count in counts):
        raise UserError(
            f"{counts[0]} and {counts[1]} GPUs are not whole nodes of "
            f"{requests[0].gpus_per_node}, each of one kind",
            hint=f"--gpus-per-node {usual}",
        )
    return requests


def _rounds(setup: Setup, unit: int) -> list[int]:
    """Return the accumulations whose micro batches add up, where each rank has one at least."""
    batch, ranks = setup.global_batch, setup.dp
    small = [number for number in range(1, isqrt(batch) + 1) if batch % number == 0]
    every = sorted({*small, *(batch // number for number in small)})
    return [k for k in every if k * ranks <= batch and batch // k % unit == 0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """Looks for the micro batches of both kinds."""

    requests: Sequence[Request]
    counts: Sequence[int]

    def fastest(self, name: str, setup: Setup, rounds: Sequence[int]) -> _Division | None:
        """Return the division with the shortest step; None where none fits."""
        first = bisect_left(rounds, x=True, key=lambda k: self._best(name, setup, k) is not None)
        found = filter(None, (self._best(name, setup, k) for k in rounds[first : first + _TRIES]))
        return min(found, key=lambda pair: max(map(_step_s, pair[0])), default=None)

    def _best(self, name: str, setup: Setup, rounds: int) -> _Division | None:
        """Return the division into `rounds` micro batches with the shortest step, if one fits.

        With more for the first kind, that takes longer and the second less long: both sides of the
        point where they meet are compared, as far as memory allows.
        """
        first, second = self.counts
        total = setup.global_batch // rounds
        step = second // gcd(first, second)
        least = next(b for b in range(1, step + 1) if (total - first * b) % second == 0)
        sizes = range(least, (total - second) // first + 1, step)

        def other(size: int) -> int:
            return (total - first * size) // second

        def of(kind: int, size: int) -> Setup:
            gpu = self.requests[kind].gpu
            return replace(setup, gpu=gpu, micro_batch=size, accumulation=rounds)

        def seconds(kind: int, size: int) -> float:
            return self.requests[kind].speed(of(kind, size)).step_s.likely

        def slower(size: int) -> bool:
            return seconds(0, size) >= seconds(1, other(size))

        fits = [request.fits for request in self.requests]
        low = bisect_left(sizes, x=True, key=lambda size: fits[1](of(1, other(size))))
        high = bisect_left(sizes, x=True, key=lambda size: not fits[0](of(0, size)))
        if low >= high:
            return None
        meet = bisect_left(sizes, x=True, key=slower)
        near = {min(max(at, low), high - 1) for at in (meet - 1, meet)}
        size = min(
            (sizes[at] for at in near),
            key=lambda one: max(seconds(0, one), seconds(1, other(one))),
        )
        setups = (of(0, size), of(1, other(size)))
        shares = tuple(
            Candidate(name=name, setup=one, memory=request.memory(one), speed=request.speed(one))
            for one, request in zip(setups, self.requests, strict=True)
        )
        full = 0 if meet > high else 1 if meet < low else None
        return shares, None if full is None else self.requests[full].gpu.name

    def even_s(self, setup: Setup, rounds: Sequence[int]) -> float | None:
        """Return the shortest step with equal micro batches, in seconds; None where none fits."""
        share = setup.micro_batch * setup.accumulation
        divided = (k for k in rounds if share % k == 0)
        even = (replace(setup, micro_batch=share // k, accumulation=k) for k in divided)
        asked = self.requests
        fitting = (
            [(request, setup) for request, setup in zip(asked, on, strict=True)]
            for on in ([replace(one, gpu=request.gpu) for request in asked] for one in even)
            if all(request.fits(setup) for request, setup in zip(asked, on, strict=True))
        )
        steps = (
            max(request.speed(setup).step_s.likely for request, setup in one) for one in fitting
        )
        return min(islice(steps, _TRIES), default=None)
