"""The collectives that are measured, message sizes, and what a measurement of them has found."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from clusterkit.config.units import parse_memory
from clusterkit.core.errors import UserError, choices_hint
from clusterkit.core.text import figure

SIZE_FORMS = (
    "one size or FIRST:LAST, such as 64M or 1M:1G; in between, each is twice the one before"
)
_MOST_SIZES = 40
_LARGEST = 1 << 40
_ROUNDED = 1e10
"""Bytes per second below which two decimals of GB/s, as nccl-tests prints, say less than times."""


class Operation(Enum):
    """A collective, by the name that torch.distributed and nccl-tests use."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    ALLTOALL = "alltoall"
    GATHER = "gather"
    SCATTER = "scatter"
    SENDRECV = "sendrecv"

    @property
    def words(self) -> str:
        """Its name in a sentence."""
        return self.value.replace("_", "-")

    @property
    def program(self) -> str:
        """The program of nccl-tests that measures it."""
        return f"{self.value}_perf"

    @property
    def shared(self) -> bool:
        """Whether each rank has only a part of the message."""
        return self not in {
            Operation.ALL_REDUCE,
            Operation.BROADCAST,
            Operation.REDUCE,
            Operation.SENDRECV,
        }

    def bus_factor(self, ranks: int) -> float:
        """Return bus bandwidth over algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md).

        Algorithm bandwidth is the size of the message over time, and what all ranks hold together
        counts as the message of those that share it. Times this factor it is the rate of the
        links, whatever the number of ranks.
        """
        share = (ranks - 1) / ranks
        if self is Operation.ALL_REDUCE:
            return 2 * share
        return share if self.shared else 1.0


MEASURED = (
    Operation.ALL_REDUCE,
    Operation.ALL_GATHER,
    Operation.REDUCE_SCATTER,
    Operation.BROADCAST,
    Operation.ALLTOALL,
    Operation.SENDRECV,
)
"""Those that `bench collectives` measures itself."""
_ALIASES = {"all-to-all": Operation.ALLTOALL, "send-recv": Operation.SENDRECV}
OVER = ("tp", "cp", "ep", "dp", "pp")
"""Dimensions of a layout whose groups are measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The ranks that exchange data with each other; all groups of a job do so at the same time."""

    over: str
    """The dimension of the layout: `tp`."""
    ranks: int
    """Of one group."""
    stride: int
    """Between the numbers of two neighbours of a group."""


def parse_operations(text: str) -> tuple[Operation, ...]:
    """Return the collectives that `--ops` names, each once and in its order.

    Raises:
        UserError: one of them is none.
    """
    known = {operation.words: operation for operation in MEASURED} | _ALIASES
    found: dict[Operation, None] = {}
    for word in (part.strip().lower().replace("_", "-") for part in text.split(",")):
        if word == "all":
            found |= dict.fromkeys(MEASURED)
        elif word in known:
            found[known[word]] = None
        else:
            hint = choices_hint(word, (*known, "all"))
            raise UserError(f"--ops {text}: {word!r} is not a measured collective", hint=hint)
    return tuple(found)


def parse_sizes(text: str) -> tuple[int, ...]:
    """Return the message sizes in bytes that `--sizes` asks for, smallest first.

    Raises:
        UserError: it has no such form, or asks for sizes that make no sense.
    """
    first, colon, last = text.partition(":")
    try:
        low = parse_memory(first, default_unit="")
        high = parse_memory(last, default_unit="") if colon else low
    except ValueError as error:
        raise UserError(f"--sizes {text}: {error}", hint=SIZE_FORMS) from error
    if not 4 <= low <= high <= _LARGEST:
        raise UserError(f"--sizes {text}: from 4 bytes to 1T, the smaller first", hint=SIZE_FORMS)
    sizes = [low << k for k in range(_MOST_SIZES) if low << k <= high]
    return tuple(sizes)


def size_in_words(size: int) -> str:
    """Return a size as it is asked for: `64 MiB`, and bytes where there is no such number."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        # Gathers take a multiple of the ranks, a few bytes less than what was asked for.
        if size >= 0.999 * unit:
            return f"{figure(size / unit)} {name}"
    return f"{size} B"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One collective at one message size."""

    op: Operation
    bytes: int
    """What nccl-tests calls the size: for gathers, what all ranks hold together."""
    seconds: float
    """Of one collective: the median of the repeats, each as slow as its slowest rank."""
    algbw: float
    """Bytes per second: the message over time."""
    busbw: float
    """Bytes per second on the links."""
    fastest: float | None = None
    """Bus bandwidth of the fastest repeat; None where only one figure is known."""
    slowest: float | None = None
    repeats: int | None = None
    iterations: int | None = None
    """How many collectives were timed in all."""

    @classmethod
    def printed(
        cls, *, op: Operation, size: int, seconds: float, algbw: float, busbw: float
    ) -> Measured:
        """Return what nccl-tests printed: its figures, or the time where they are rounded more."""
        rate = algbw if algbw >= _ROUNDED else size / seconds
        return cls(op=op, bytes=size, seconds=seconds, algbw=rate, busbw=busbw)

    def between(self, ranks: int) -> Measured:
        """Return it with the bus bandwidth of so many ranks, where what was printed is rounded."""
        if self.busbw >= _ROUNDED:
            return self
        return replace(self, busbw=self.algbw * self.op.bus_factor(ranks))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """A wrong result: on one rank where that is known."""

    op: Operation
    bytes: int
    elements: int
    rank: int | None = None
    node: str | None = None
    detail: str = ""
    """The first element that was wrong, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """What was asked for and not measured."""

    op: Operation
    bytes: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run."""

    source: str
    """What measured: `torch`, `nccl-tests`."""
    backend: str
    """`nccl` or `gloo`."""
    device: str | None = None
    """The GPU, or `cpu`; None where the run does not say."""
    ranks: int | None = None
    nodes: tuple[str, ...] = ()
    """In rank order; empty where the run does not list them all."""
    node_count: int | None = None
    groups: Groups | None = None
    """None where all ranks are one group."""
    measured: tuple[Measured, ...] = ()
    correct: bool | None = None
    """Whether all results were right; None where nobody looked, or the end is missing."""
    wrong: tuple[Wrong, ...] = ()
    suspects: tuple[str, ...] = ()
    """Nodes on which a wrong result was seen."""
    left_out: tuple[LeftOut, ...] = ()
    versions: tuple[str, ...] = ()
    complete: bool = True
    """Whether it came to its end."""
    checked: bool = True
    """Whether anybody looked at the results that there are."""
    error: str | None = None
    """What it failed with, where that is no wrong result."""
    perhaps: tuple[Operation, ...] = ()
    """What it may have been instead: collectives whose tables look the same."""

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The collectives that there are figures of, in the order of their measurement."""
        return tuple(dict.fromkeys(one.op for one in self.measured))

    @property
    def per_node(self) -> int | None:
        """Ranks of each node, where all nodes have as many."""
        if not self.ranks or not self.node_count or self.ranks % self.node_count:
            return None
        return self.ranks // self.node_count

    def of(self, op: Operation) -> tuple[Measured, ...]:
        """Return the figures of one collective, smallest message first."""
        return tuple(sorted((m for m in self.measured if m.op is op), key=lambda m: m.bytes))

    def best(self, op: Operation) -> Measured:
        """Return the size with the highest bus bandwidth, the largest of several."""
        return max(self.of(op), key=lambda one: (one.busbw, one.bytes))

    def large(self, op: Operation) -> Measured:
        """Return the largest message, which is what gradients of large models are like."""
        return self.of(op)[-1]

    def on(self, *, ranks: int | None, node_count: int | None) -> Result:
        """Return the result with what it does not say itself of ranks and nodes."""
        measured = self.measured
        if self.ranks is None and ranks is not None:
            measured = tuple(one.between(ranks) for one in measured)
        return replace(
            self,
            ranks=self.ranks or ranks,
            node_count=self.node_count or node_count,
            measured=measured,
        )
