"""Try the strategies, simplest first, and say which to take, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from clusterkit.core.errors import Problem, UserError
from clusterkit.estimate.memory.phases import usual_disk
from clusterkit.estimate.refusals import problems_of, warnings_of
from clusterkit.estimate.request import Request, ladder, setup_of
from clusterkit.estimate.results import Memory, Speed
from clusterkit.estimate.setup import Checkpointing, Library, Offload, Setup
from clusterkit.estimate.speed.step_time import Point, scaling
from clusterkit.estimate.strategies import Strategy, base_named

MUCH_FASTER = 1.25
"""From this factor on a strategy is worth more trouble than a simpler one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A strategy with its figures."""

    name: str
    setup: Setup
    memory: Memory
    speed: Speed

    @property
    def fits(self) -> bool:
        """Whether it fits."""
        return self.memory.fits

    @property
    def tokens_per_s(self) -> float:
        """What a GPU does, most likely."""
        return self.speed.tokens_per_s_per_gpu.likely


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A strategy that cannot be run as asked."""

    name: str
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of the strategies, simplest first, and which to take, if any fits, and why."""

    request: Request
    candidates: tuple[Candidate, ...]
    refused: tuple[Refused, ...]
    chosen: Candidate | None
    why: str

    @property
    def subject(self) -> Candidate:
        """What is recommended, or what comes nearest to fitting."""
        return self.chosen or min(self.candidates, key=lambda candidate: candidate.memory.excess)

    @property
    def shown(self) -> Sequence[Candidate]:
        """The candidates without those that offload, where something fits without it."""
        kept = [one for one in self.candidates if one.setup.offload_optimizer is Offload.NONE]
        return kept if any(one.fits for one in kept) else self.candidates

    @property
    def assumed(self) -> Sequence[str]:
        """What was not given and had to be assumed; the RAM only where something uses it."""
        request = self.request
        if request.host_memory is not None or not any(one.memory.host_bytes for one in self.shown):
            return request.assumed
        limit = max(one.memory.host_limit for one in self.shown)
        return (*request.assumed, f"{limit / 1e9:,.1f} GB of RAM in each node (--host-memory)")

    def points(self) -> Sequence[Point]:
        """Return the scaling curve of the subject, from the first number of GPUs on that fits.

        Numbers are doubled from 1 on, well beyond the one that is asked for.
        """
        request = self.request
        most = max(64, 8 * request.gpus)
        counts = sorted({1 << power for power in range(most.bit_length())} | {request.gpus})
        setup = replace(self.subject.setup, gpus_per_node=request.gpus_per_node)
        counts = [count for count in counts if count <= most]
        fitting = [count for count in counts if request.fits(replace(setup, gpus=count))]
        return scaling(setup, fitting or counts, calibration=request.calibration)


def answer_of(request: Request) -> Answer:
    """Return the strategies that are worth a look, or the one that is asked for, and the best.

    Raises:
        UserError: nothing of it can be run; all reasons are in it.
    """
    named = request.strategy
    tries = ladder(request) if named is None else [replace(named, name=named.full_name)]
    found: list[Candidate] = []
    refused: list[Refused] = []
    for strategy in tries:
        megatron = strategy.library is Library.MEGATRON
        for one in (_model_parallel if megatron else _data_parallel)(request, strategy):
            if isinstance(one, Refused):
                refused.append(one)
            else:
                found.append(one)
    if not found:
        # Most is wrong with all of them: the reasons of the one that lacks least are enough.
        problems = min((one.problems for one in refused), key=len, default=())
        raise UserError(
            f"no strategy offloads to {request.offload} on {request.gpus} GPUs",
            hint="name one with --strategy",
            problems=problems,
        )
    candidates = tuple(sorted(found, key=_rung))
    chosen, why = recommended(candidates)
    return Answer(
        request=request, candidates=candidates, refused=tuple(refused), chosen=chosen, why=why
    )


def _rung(candidate: Candidate) -> int:
    """Return where it stands, simplest first: with checkpointing, model parallel, offloaded."""
    setup = candidate.setup
    if setup.offload_optimizer is not Offload.NONE:
        return 3 if setup.offload_params is Offload.NONE else 4
    return 2 if setup.library is Library.MEGATRON else int("+" in candidate.name)


def _data_parallel(request: Request, strategy: Strategy) -> Iterator[Candidate | Refused]:
    """Yield a strategy, and with checkpointing where only that makes it fit."""
    setup = setup_of(strategy, request)
    problems = problems_of(setup)
    if problems:
        yield Refused(name=strategy.name, problems=problems)
        return
    plain = _candidate(strategy.name, setup, request)
    yield plain
    if plain.fits or request.checkpointing is not None or request.strategy is not None:
        return
    setup = replace(setup, checkpointing=Checkpointing.FULL)
    if request.memory(setup).fits:
        yield _candidate(f"{strategy.name}+ac", setup, request)


def _candidate(name: str, setup: Setup, request: Request) -> Candidate:
    return Candidate(
        name=name, setup=setup, memory=request.memory(setup), speed=request.speed(setup)
    )


def _model_parallel(request: Request, strategy: Strategy) -> Iterator[Candidate | Refused]:
    """Yield the division among the fewest ranks that fits, or the one that is nearest to it."""
    levels = [request.checkpointing or Checkpointing.NONE]
    if request.checkpointing is None and request.strategy is None:
        levels.append(Checkpointing.FULL)
    legal: list[tuple[Setup, str]] = []
    problems: tuple[Problem, ...] = ()
    for tp, pp in _divisions(request):
        for level in levels:
            setup = setup_of(strategy, request, tp=tp, pp=pp, checkpointing=level)
            problems_here = problems_of(setup)
            if problems_here:
                problems = problems or problems_here
                continue
            name = strategy.name
            name += f"-tp{tp}" if request.tp is None and tp > 1 else ""
            name += f"-pp{pp}" if request.pp is None and pp > 1 else ""
            name += "+ac" if level is not levels[0] else ""
            if request.memory(setup).fits:
                yield _candidate(name, setup, request)
                return
            legal.append((setup, name))
    if legal:
        setup, name = min(legal, key=lambda pair: request.memory(pair[0]).excess)
        yield _candidate(name, setup, request)
    else:
        yield Refused(name=strategy.name, problems=problems)


def _divisions(request: Request) -> Sequence[tuple[int, int]]:
    """Return ranks that divide the model: within a node first, then stages across nodes.

    Where one of both numbers is given, the other is 1, as in any launch command. That none
    divides the model is a plan of its own only where nothing else is tried beside it.
    """
    if request.tp is not None or request.pp is not None:
        return [(request.tp or 1, request.pp or 1)]
    powers = [1 << n for n in range(11)]
    within = min(request.gpus, request.gpus_per_node)
    tps = [t for t in powers if t <= within and within % t == 0]
    stages = request.gpus // request.cp
    layers = request.model.layers
    pps = [p for p in powers if p <= stages and layers % p == 0]
    minimum = 2 if request.strategy is None else 1
    pairs = [(t, p) for t in tps for p in pps if minimum <= t * p <= request.gpus] or [(1, 1)]
    return sorted(pairs, key=lambda pair: (pair[1] > 1, pair[0] * pair[1], pair[1]))


def adapters_that_fit(request: Request) -> Candidate | None:
    """Return the simplest way to train adapters only, if that fits where training all does not."""
    for name in ("lora", "qlora"):
        for level in (request.checkpointing or Checkpointing.NONE, Checkpointing.FULL):
            setup = setup_of(base_named(name), request, checkpointing=level)
            if request.fits(setup):
                again = level is Checkpointing.FULL and request.checkpointing is None
                return _candidate(f"{name}{'+ac' if again else ''}", setup, request)
    return None


def recommended(tried: Sequence[Candidate]) -> tuple[Candidate | None, str]:
    """Return the simplest strategy that fits, unless another one is much faster, and why."""
    fitting = [candidate for candidate in tried if candidate.fits]
    if not fitting:
        return None, _nothing_fits(tried)
    simplest = fitting[0]
    fastest = max(candidate.tokens_per_s for candidate in fitting)
    if fastest <= MUCH_FASTER * simplest.tokens_per_s:
        return simplest, _simplest(simplest, tried)
    chosen = next(one for one in fitting if one.tokens_per_s >= fastest / MUCH_FASTER)
    factor = chosen.tokens_per_s / simplest.tokens_per_s
    why = f"{factor:.1f} times as fast as {simplest.name}, the simplest that fits"
    return chosen, f"{why}; {_room(chosen)} to spare"


def _simplest(chosen: Candidate, tried: Sequence[Candidate]) -> str:
    if len(tried) == 1:
        return f"it fits, with {_room(chosen)} to spare"
    before = [one for one in tried[: tried.index(chosen)] if not one.fits]
    if not before:
        return f"the simplest of all, and it fits with {_room(chosen)} to spare"
    memory = before[-1].memory
    needs = f"{_gb(memory.device.likely)}, most of it {memory.binding.name}"
    if memory.lacks_ram:
        needs = f"{_gb(memory.host_bytes)} of RAM in each node, which has {_gb(memory.host_limit)}"
    return f"the simplest that fits, with {_room(chosen)} to spare; {before[-1].name} needs {needs}"


def _room(chosen: Candidate) -> str:
    return _gb(chosen.memory.limit - chosen.memory.device.likely)


def warnings_for(one: Candidate) -> tuple[Problem, ...]:
    """Return what a strategy should rather not do, or needs beside GPUs."""
    setup, need = one.setup, one.memory.nvme_bytes
    usual = usual_disk(setup.gpu) * min(setup.gpus, setup.gpus_per_node)
    problems = tuple(warnings_of(setup))
    if need <= usual:
        return problems
    much = f"{_gb(need)} on the disks of each node is more than the usual {_gb(usual)}"
    return (*problems, Problem(message=much, hint="look what yours have, or take more nodes"))


def _nothing_fits(tried: Sequence[Candidate]) -> str:
    nearest = min(tried, key=lambda candidate: candidate.memory.excess)
    memory = nearest.memory
    needs = f"needs {_gb(memory.device.likely)} of {_gb(memory.limit)}"
    most = f"most of it {memory.binding.name}, {_gb(memory.binding.bytes)}"
    if memory.lacks_ram:
        needs = f"needs {_gb(memory.host_bytes)} of RAM in each node"
        most = f"which has {_gb(memory.host_limit)} (--host-memory says what yours have)"
    if len(tried) == 1:
        return f"{nearest.name} does not fit: it {needs}, {most}"
    return f"nothing fits; {nearest.name} comes nearest: it {needs}, {most}"


def _gb(amount: float) -> str:
    return f"{amount / 1e9:,.1f} GB"
