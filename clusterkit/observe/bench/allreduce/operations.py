"""The collectives that are measured, what of a message each rank sends, and message sizes."""

from __future__ import annotations

from enum import Enum

from clusterkit.config.units import parse_memory
from clusterkit.core.errors import UserError, choices_hint

SIZE_FORMS = (
    "one size or FIRST:LAST, such as 64M or 1M:1G; in between, each is twice the one before"
)
_MOST_SIZES = 40
_LARGEST = 1 << 40


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


MEASURED = (Operation.ALL_REDUCE, Operation.ALL_GATHER, Operation.REDUCE_SCATTER)
"""Those that `bench allreduce` measures itself, and that `estimate` knows the time of."""


def parse_operations(text: str) -> tuple[Operation, ...]:
    """Return the collectives that `--ops` names, each once and in its order.

    Raises:
        UserError: one of them is none.
    """
    known = {operation.words: operation for operation in MEASURED}
    found: dict[Operation, None] = {}
    for word in (part.strip().lower().replace("_", "-") for part in text.split(",")):
        if word == "all":
            found |= dict.fromkeys(MEASURED)
        elif word in known:
            found[known[word]] = None
        else:
            hint = choices_hint(word, (*known, "all"))
            raise UserError(f"--ops {text}: {word!r} is no collective that is measured", hint=hint)
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
            number = size / unit
            return f"{number:.0f} {name}" if number >= 100 else f"{number:.3g} {name}"
    return f"{size} B"
