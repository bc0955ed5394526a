"""How what some work costs grows with how much it is: a ratio, so that no machine is too slow."""

from __future__ import annotations

import time
from collections.abc import Callable


def growth(work: Callable[[int], object], small: int, large: int) -> float:
    """Return how much more each part of the large work costs than each of the small one.

    About 1 where the cost grows with the size, `large / small` where with its square. What is
    measured is time of the processor, the least of three, one after the other in turn.
    """
    costs = [(_cost(work, small), _cost(work, large)) for _ in range(3)]
    least, most = (min(pair[k] for pair in costs) for k in (0, 1))
    return most / least * small / large


def _cost(work: Callable[[int], object], size: int) -> float:
    began = time.thread_time()
    work(size)
    return time.thread_time() - began
