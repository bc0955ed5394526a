"""Keep Python's search for cycles out of work that only adds values."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Do without the cyclic garbage collector inside the block (or the decorated function).

    The facts of thousands of nodes are millions of frozen values that stay and cannot form cycles;
    looking through all of them again and again doubles the time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
