"""Scan many large logs at once: one process a core, each with its share of the files."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from pathlib import Path

from clusterkit.observe.diagnose.hits import Scanned
from clusterkit.observe.diagnose.open_log import text_size
from clusterkit.observe.diagnose.rules import Rule
from clusterkit.observe.diagnose.scan import Scanner

_WORTH_IT = 1 << 28
"""Bytes of all files from which on it pays to start Python once more for each core."""
_MOST = 4
"""Processes: each takes about 50 MiB."""


def scan_all(
    rules: Sequence[Rule], paths: Sequence[Path], ranks: int | None = None
) -> tuple[Scanned, ...]:
    """Return what each file holds, in their order; of a job of so many ranks, where it is known."""
    sizes = {path: text_size(path) for path in paths}
    processes = min(len(sizes), len(os.sched_getaffinity(0)), _MOST)
    if processes > 1 and sum(sizes.values()) >= _WORTH_IT:
        try:
            return _in_processes(processes, rules, sizes, paths, ranks)
        except (BrokenExecutor, OSError):  # no memory, or no semaphores: one after the other
            pass
    scanner = Scanner(rules, ranks)
    return tuple(scanner.scan(path) for path in paths)


def _in_processes(
    processes: int,
    rules: Sequence[Rule],
    sizes: dict[Path, int],
    paths: Sequence[Path],
    ranks: int | None,
) -> tuple[Scanned, ...]:
    shares: list[list[Path]] = [[] for _ in range(processes)]
    for path in sorted(sizes, key=lambda path: -sizes[path]):
        min(shares, key=lambda share: sum(sizes[one] for one in share)).append(path)
    # Not forked: whoever waits for a job over ssh has threads.
    context = multiprocessing.get_context("spawn")
    others = frozenset(multiprocessing.active_children())
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        try:
            done = pool.map(_scan_share, [rules] * processes, shares, [ranks] * processes)
            found = {scanned.file: scanned for share in done for scanned in share}
        except KeyboardInterrupt:
            for child in frozenset(multiprocessing.active_children()) - others:
                child.terminate()  # else the pool waits until they have read all
            raise
    return tuple(found[path] for path in paths)


def _scan_share(rules: Sequence[Rule], paths: Sequence[Path], ranks: int | None) -> list[Scanned]:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who has asked is told to stop, and ends them
    scanner = Scanner(rules, ranks)
    return [scanner.scan(path) for path in paths]
