"""How many ranks each kind of parallelism has, and in which order they are numbered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from math import lcm, prod
from operator import mul

from clusterkit.core.errors import Problem, UserError, choices_hint

DIMENSIONS = ("tp", "cp", "ep", "dp", "pp")
MEGATRON_ORDER = "tp-cp-ep-dp-pp"
"""Megatron-LM's own, tensor parallel fastest (initialize_model_parallel)."""

MOST_RANKS = 1_048_576
"""Beyond which a number must be a typing mistake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """Sizes of the dimensions, and their order, the fastest first."""

    tp: int = 1
    cp: int = 1
    ep: int = 1
    """Experts are divided among ranks of cp x dp: this number multiplies nothing."""
    dp: int = 1
    pp: int = 1
    order: tuple[str, ...] = DIMENSIONS

    @property
    def ranks(self) -> int:
        """Processes in all."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def edp(self) -> int:
        """Ranks that hold the same experts."""
        return self.cp * self.dp // self.ep

    @property
    def dense(self) -> Mesh:
        """The grid of everything but the experts."""
        names = tuple(name for name in self.order if name != "ep")
        return Mesh(names=names, sizes=tuple(getattr(self, name) for name in names))

    @property
    def experts(self) -> Mesh:
        """The grid of the experts: `ep` and `edp` stand where `ep` and `dp` do in the order.

        As Megatron's second RankGenerator does it, with as many tensor ranks as elsewhere.
        """
        names = tuple("edp" if name == "dp" else name for name in self.order if name != "cp")
        return Mesh(names=names, sizes=tuple(getattr(self, name) for name in names))

    @property
    def same_stages(self) -> bool:
        """Tell whether a rank has its experts in the stage in which it has all else.

        Megatron asserts it of every layout, also of one without experts.
        """
        return self.pp == 1 or self.dense.stride("pp") == self.experts.stride("pp")

    def mesh(self, name: str) -> Mesh:
        """Return the grid that has a dimension."""
        return self.experts if name in {"ep", "edp"} else self.dense


def parse_order(text: str) -> tuple[str, ...]:
    """Return the dimensions of an order such as `tp-dp-pp` or `tp,dp,pp`; those left out come last.

    Raises:
        UserError: a word is no dimension, or stands there twice.
    """
    dimensions = tuple(text.strip().lower().replace(",", "-").split("-"))
    for dimension in dimensions:
        if dimension not in DIMENSIONS:
            raise UserError(
                f"--order {text}: unknown dimension {dimension!r}",
                hint=choices_hint(dimension, DIMENSIONS),
            )
        if dimensions.count(dimension) > 1:
            raise UserError(f"--order {text}: {dimension} stands there twice", hint=MEGATRON_ORDER)
    return dimensions + tuple(name for name in DIMENSIONS if name not in dimensions)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRequest:
    """What somebody asks for; checked by `arrange`."""

    nodes: int
    gpus_per_node: int
    tp: int = 1
    cp: int = 1
    ep: int = 1
    pp: int = 1
    dp: int | None = None
    """None for as many as there are GPUs for."""
    order: tuple[str, ...] = DIMENSIONS

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.nodes * self.gpus_per_node

    @property
    def model(self) -> int:
        """GPUs for one copy of the model."""
        return self.tp * self.cp * self.pp


def arrange(request: LayoutRequest) -> Parallelism:
    """Return the parallelism that fills the GPUs of `request`.

    Raises:
        UserError: it does not divide; with everything that would.
    """
    problems = tuple(_absurd(request)) or tuple(_uneven(request)) or tuple(_uneven_experts(request))
    if problems:
        raise UserError(problems=problems)
    return _arranged(request)


def _arranged(request: LayoutRequest) -> Parallelism:
    dp = request.gpus // request.model
    return Parallelism(
        tp=request.tp, cp=request.cp, ep=request.ep, dp=dp, pp=request.pp, order=request.order
    )


def _absurd(request: LayoutRequest) -> Iterator[Problem]:
    for name in ("nodes", "gpus_per_node", *DIMENSIONS):
        flag, number = "--" + name.replace("_", "-"), getattr(request, name)
        if number is not None and number < 1:
            yield Problem(message=f"{flag} is {number}", hint="give a number from 1 on")
    if request.gpus > MOST_RANKS:
        message = f"{request.nodes:,} nodes x {request.gpus_per_node:,} GPUs are {request.gpus:,}"
        yield Problem(message=message, hint=f"at most {MOST_RANKS:,} ranks are laid out")


def _uneven(request: LayoutRequest) -> Iterator[Problem]:
    """Yield why the GPUs cannot be divided so."""
    have = f"{request.nodes} nodes x {request.gpus_per_node} GPUs = {request.gpus}"
    if request.dp is None:
        if request.gpus % request.model:
            yield Problem(
                message=f"{have} do not divide into {_product(request)} for one copy of the model",
                hint=_either([*_other_sizes(request), *_other_nodes(request, request.model)]),
            )
    elif request.model * request.dp != request.gpus:
        copies, unused = divmod(request.gpus, request.model)
        nodes, rest = divmod(request.model * request.dp, request.gpus_per_node)
        changes = [] if unused else [f"--dp {copies}"]
        changes += [] if rest else [f"--nodes {nodes}"]
        yield Problem(
            message=f"{_product(request)}, but {have}",
            hint=_either(changes or [*_other_sizes(request)]),
        )


def _uneven_experts(request: LayoutRequest) -> Iterator[Problem]:
    ranks = request.gpus // request.model * request.cp
    if ranks % request.ep:
        works = ", ".join(str(n) for n in _near(ranks, request.ep))
        yield Problem(
            message=f"ep {request.ep} does not divide the {ranks} ranks of dp x cp",
            hint=f"--ep {works}: experts are divided among ranks that have other data",
        )
        return
    if request.ep > 1 and not _arranged(request).same_stages:
        yield Problem(
            message=f"with the order {'-'.join(request.order)}, ep {request.ep} would put the "
            "experts of a rank into another pipeline stage than the rest of it",
            hint=f"--order {MEGATRON_ORDER}, in which pp comes last",
        )


def _other_sizes(request: LayoutRequest) -> Iterator[str]:
    """Yield each flag with the sizes next to the wanted one that would divide the GPUs."""
    for name in ("pp", "cp", "tp"):
        size = getattr(request, name)
        rest = request.model // size
        if size > 1 and request.gpus % rest == 0:
            yield f"--{name} " + " or ".join(str(n) for n in _near(request.gpus // rest, size))


def _other_nodes(request: LayoutRequest, model: int) -> Iterator[str]:
    unit = lcm(request.gpus_per_node, model) // request.gpus_per_node
    fewer, more = request.nodes // unit * unit, -(-request.nodes // unit) * unit
    yield "--nodes " + (f"{fewer} or {more}" if fewer else str(more))


def _near(number: int, target: int) -> tuple[int, ...]:
    """Return the divisors of `number` next to `target`: one below and one above."""
    divisors = [n for n in range(1, number + 1) if number % n == 0]
    below = [n for n in divisors if n < target][-1:]
    return (*below, *[n for n in divisors if n > target][:1])


def _product(request: LayoutRequest) -> str:
    sizes = {name: getattr(request, name) for name in ("tp", "cp", "dp", "pp")}
    shown = {name: size for name, size in sizes.items() if (size or 1) > 1}
    return " x ".join(f"{n} {s}" for n, s in shown.items()) + f" = {prod(shown.values())} GPUs"


def _either(options: list[str]) -> str | None:
    return ", or ".join(options) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Dimensions of a grid of ranks, the fastest first: neighbours in it are consecutive ranks.

    That is how Megatron-LM writes an order (`tp-cp-ep-dp-pp`, megatron/core/parallel_state.py).
    torch's `init_device_mesh` has the same grid with the dimensions the other way round.
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def ranks(self) -> int:
        """Number of ranks in the grid."""
        return prod(self.sizes)

    @property
    def strides(self) -> tuple[int, ...]:
        """By how much the rank grows with each coordinate."""
        return tuple(accumulate(self.sizes[:-1], mul, initial=1))

    def size(self, name: str) -> int:
        """Return the size of one dimension."""
        return self.sizes[self.names.index(name)]

    def stride(self, name: str) -> int:
        """Return by how much the rank grows with the coordinate of one dimension."""
        return self.strides[self.names.index(name)]

    def coordinate(self, name: str, rank: int) -> int:
        """Return where a rank stands in one dimension."""
        return rank // self.stride(name) % self.size(name)

    def groups(self, name: str) -> tuple[tuple[int, ...], ...]:
        """Return the groups of ranks that differ in one dimension only, by their first rank."""
        stride, size = self.stride(name), self.size(name)
        span = stride * size
        return tuple(
            tuple(range(first, first + span, stride))
            for block in range(0, self.ranks, span)
            for first in range(block, block + stride)
        )

    def stays_within(self, name: str, block: int) -> bool:
        """Tell whether every group of a dimension lies in one of the blocks of `block` ranks."""
        span = self.stride(name) * self.size(name)
        return self.size(name) == 1 or block % span == 0
