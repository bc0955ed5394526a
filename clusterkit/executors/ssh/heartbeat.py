"""The heartbeat of a keeper: a file it touches, for who sees the run folder but not the node.

Nodes may be out of reach of a client (a jump host that is down, a laptop on another network) which
mounts their file system all the same.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from clusterkit.core import files
from clusterkit.core.errors import ClusterkitError

EVERY_S = 10.0
_LATE_S = 3.5 * EVERY_S
"""Three beats missed, and a file server that is slow with them."""


@contextmanager
def beating(path: Path) -> Iterator[None]:
    """Touch `path` every so often while the block runs; what cannot be written is left out."""
    over = threading.Event()

    def beat() -> None:
        while not over.is_set():
            with suppress(ClusterkitError):
                files.touch(path)
            over.wait(EVERY_S)

    threading.Thread(target=beat, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def silent_for_s(path: Path) -> float | None:
    """Return how long ago the last beat was, where it is too long; 0.0 while it beats.

    None where nobody can tell: there was none, or the folder cannot be written.
    """
    try:
        age_s = files.age_s(path)
    except ClusterkitError:
        return None
    return 0.0 if age_s < _LATE_S else age_s
