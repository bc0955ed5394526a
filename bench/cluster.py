"""A practice cluster of a benchmark's own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.figures import BenchError
from tests.lab.lab import Lab
from tests.lab.layout import LabError


@contextmanager
def practice_cluster(root: Path, nodes: int) -> Iterator[Lab]:
    """Start a cluster of so many nodes in the folder `root`, and take it down in the end.

    Raises:
        BenchError: the folder is there already, or something of the cluster does not run.
    """
    if root.exists():
        raise BenchError(f"{root} is in use by another benchmark, or left over: remove it")
    lab = Lab(root)
    try:
        lab.up(nodes)
        yield lab
    except (LabError, OSError, subprocess.SubprocessError) as error:
        raise BenchError(f"practice cluster: {error}") from error
    finally:
        lab.down()
