"""Ranks as points of a grid: the arithmetic that every library of parallel training shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from operator import mul


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

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Return where a rank stands, one number for each of `names`."""
        return tuple(
            rank // stride % size for stride, size in zip(self.strides, self.sizes, strict=True)
        )

    def rank(self, coordinates: Sequence[int]) -> int:
        """Return the rank at `coordinates`, one number for each of `names`."""
        return sum(at * stride for at, stride in zip(coordinates, self.strides, strict=True))

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
