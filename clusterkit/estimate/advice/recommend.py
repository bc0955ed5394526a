"""Try the strategies, simplest first, and say which to take, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from clusterkit.core.errors import Problem, UserError
from clusterkit.estimate.factors import Calibration
from clusterkit.estimate.memory.host import usual_disk, usual_ram
from clusterkit.estimate.memory.phases import memory_of
from clusterkit.estimate.refusals import problems_of
from clusterkit.estimate.request import Wish, ladder, setup_of
from clusterkit.estimate.results import Memory, Speed
from clusterkit.estimate.setup import Checkpointing, Library, Offload, Setup
from clusterkit.estimate.speed.step_time import speed_of
from clusterkit.estimate.strategies import Chosen, Strategy, base_named
from clusterkit.estimate.warnings import warnings_of

MUCH_FASTER = 1.25
"""From this factor on a strategy is worth more trouble than a simpler one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """What the figures of every setup depend on beside the setup."""

    margin: float = 0.08
    calibration: Calibration | None = None
    host_memory: float | None = None
    """RAM of a node in bytes; None for what is usual with such GPUs."""

    def memory(self, setup: Setup) -> Memory:
        """Return the memory of a setup, on nodes with so much RAM."""
        memory = memory_of(setup, margin=self.margin, calibration=self.calibration)
        usual = usual_ram(setup.gpu) * min(setup.gpus, setup.gpus_per_node)
        return replace(memory, host_limit=self.host_memory or usual)

    def speed(self, setup: Setup) -> Speed:
        """Return the speed of a setup."""
        return speed_of(setup, calibration=self.calibration)

    def fits(self, setup: Setup) -> bool:
        """Tell whether a setup can be run and fits."""
        return not problems_of(setup) and self.memory(setup).fits


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
class Tried:
    """What became of the strategies, simplest first."""

    candidates: tuple[Candidate, ...]
    refused: tuple[Refused, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """Which strategy to take, if any fits, and why."""

    chosen: Candidate | None
    why: str


def candidates(wish: Wish, judge: Judge, chosen: Chosen | None = None) -> Tried:
    """Return the strategies that are worth a look, or the one that is asked for.

    Raises:
        UserError: nothing of it can be run; all reasons are in it.
    """
    tries = ladder(wish) if chosen is None else [replace(chosen.strategy, name=chosen.name)]
    found: list[Candidate] = []
    refused: list[Refused] = []
    for strategy in tries:
        outcome = (
            _model_parallel(wish, judge, strategy, alone=chosen is not None)
            if strategy.library is Library.MEGATRON
            else _data_parallel(wish, judge, strategy, alone=chosen is not None)
        )
        for one in outcome:
            if isinstance(one, Refused):
                refused.append(one)
            else:
                found.append(one)
    if not found:
        # Most is wrong with all of them: the reasons of the one that lacks least are enough.
        problems = min((one.problems for one in refused), key=len, default=())
        raise UserError(problems=problems or (_nothing_to_try(wish),))
    return Tried(candidates=_in_order(found), refused=tuple(refused))


def _nothing_to_try(wish: Wish) -> Problem:
    return Problem(
        message=f"no strategy offloads to {wish.offload} on {wish.gpus} GPUs",
        hint="name one with --strategy",
    )


def _in_order(found: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return them simplest first: as they are, with checkpointing, model parallel, offloaded."""

    def rung(candidate: Candidate) -> int:
        setup = candidate.setup
        if Offload.NONE not in {setup.offload_optimizer} | {setup.offload_params}:
            return 4
        if setup.offload_optimizer is not Offload.NONE:
            return 3
        if setup.library is Library.MEGATRON:
            return 2
        return int("+" in candidate.name)

    return tuple(sorted(found, key=rung))


def _data_parallel(
    wish: Wish, judge: Judge, strategy: Strategy, *, alone: bool
) -> Iterator[Candidate | Refused]:
    """Yield a strategy, and with checkpointing where only that makes it fit."""
    setup = setup_of(strategy, wish)
    problems = problems_of(setup)
    if problems:
        yield Refused(name=strategy.name, problems=problems)
        return
    plain = _judged(strategy.name, setup, judge)
    yield plain
    if plain.fits or wish.checkpointing is not None or alone:
        return
    full = _judged(
        f"{strategy.name}+ac",
        replace(setup, checkpointing=Checkpointing.FULL),
        judge,
    )
    if full.fits:
        yield full


def _judged(name: str, setup: Setup, judge: Judge) -> Candidate:
    return Candidate(name=name, setup=setup, memory=judge.memory(setup), speed=judge.speed(setup))


def _model_parallel(
    wish: Wish, judge: Judge, strategy: Strategy, *, alone: bool
) -> Iterator[Candidate | Refused]:
    """Yield the division among the fewest ranks that fits, or the one that is nearest to it."""
    levels = [wish.checkpointing or Checkpointing.NONE]
    if wish.checkpointing is None and not alone:
        levels.append(Checkpointing.FULL)
    legal: list[tuple[Setup, str]] = []
    problems: tuple[Problem, ...] = ()
    for tp, pp in _divisions(wish, alone=alone):
        for level in levels:
            setup = setup_of(strategy, wish, tp=tp, pp=pp, checkpointing=level)
            problems_here = problems_of(setup)
            if problems_here:
                problems = problems or problems_here
                continue
            name = strategy.name
            name += f"-tp{tp}" if wish.tp is None and tp > 1 else ""
            name += f"-pp{pp}" if wish.pp is None and pp > 1 else ""
            name += "+ac" if level is not levels[0] else ""
            if judge.memory(setup).fits:
                yield _judged(name, setup, judge)
                return
            legal.append((setup, name))
    if legal:
        nearest = min(legal, key=lambda pair: judge.memory(pair[0]).excess)
        yield _judged(nearest[1], nearest[0], judge)
    else:
        yield Refused(name=strategy.name, problems=problems)


def _divisions(wish: Wish, *, alone: bool) -> Sequence[tuple[int, int]]:
    """Return ranks that divide the model: within a node first, then stages across nodes.

    Where one of both numbers is given, the other is 1, as in any launch command. That none
    divides the model is a plan of its own only where nothing else is tried beside it.
    """
    if wish.tp is not None or wish.pp is not None:
        return [(wish.tp or 1, wish.pp or 1)]
    powers = [1 << n for n in range(11)]
    within = min(wish.gpus, wish.gpus_per_node)
    tps = [t for t in powers if t <= within and within % t == 0]
    stages = wish.gpus // wish.cp
    layers = wish.model.layers
    pps = [p for p in powers if p <= stages and layers % p == 0]
    least = 1 if alone else 2
    pairs = [(t, p) for t in tps for p in pps if least <= t * p <= wish.gpus] or [(1, 1)]
    return sorted(pairs, key=lambda pair: (pair[1] > 1, pair[0] * pair[1], pair[1]))


def adapters_that_fit(wish: Wish, judge: Judge) -> Candidate | None:
    """Return the simplest way to train adapters only, if that fits where training all does not."""
    for name in ("lora", "qlora"):
        for level in (wish.checkpointing or Checkpointing.NONE, Checkpointing.FULL):
            setup = setup_of(base_named(name), wish, checkpointing=level)
            if judge.fits(setup):
                again = level is Checkpointing.FULL and wish.checkpointing is None
                return _judged(f"{name}{'+ac' if again else ''}", setup, judge)
    return None


def recommend(tried: Tried) -> Recommendation:
    """Return the simplest strategy that fits, unless another one is much faster."""
    fitting = [candidate for candidate in tried.candidates if candidate.fits]
    if not fitting:
        return Recommendation(chosen=None, why=_nothing_fits(tried.candidates))
    simplest = fitting[0]
    fastest = max(candidate.tokens_per_s for candidate in fitting)
    if fastest <= MUCH_FASTER * simplest.tokens_per_s:
        return Recommendation(chosen=simplest, why=_simplest(simplest, tried.candidates))
    chosen = next(one for one in fitting if one.tokens_per_s >= fastest / MUCH_FASTER)
    factor = chosen.tokens_per_s / simplest.tokens_per_s
    why = f"{factor:.1f} times as fast as {simplest.name}, the simplest that fits"
    return Recommendation(chosen=chosen, why=f"{why}; {_room(chosen)} to spare")


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


def cautions_of(one: Candidate) -> tuple[Problem, ...]:
    """Return what a strategy should rather not do, or needs beside GPUs."""
    setup, need = one.setup, one.memory.nvme_bytes
    usual = usual_disk(setup.gpu) * min(setup.gpus, setup.gpus_per_node)
    problems = warnings_of(setup)
    if need <= usual:
        return problems
    much = f"{_gb(need)} on the disks of each node is more than the usual {_gb(usual)}"
    return (*problems, Problem(message=much, hint="look what yours have, or take more nodes"))


def nearest_of(tried: Tried, advice: Recommendation) -> Candidate:
    """Return what is recommended, or what comes nearest to fitting."""
    return advice.chosen or _nearest(tried.candidates)


def _nearest(tried: Sequence[Candidate]) -> Candidate:
    return min(tried, key=lambda candidate: candidate.memory.excess)


def _nothing_fits(tried: Sequence[Candidate]) -> str:
    nearest = _nearest(tried)
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
