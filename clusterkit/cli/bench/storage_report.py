"""What `bench storage` found, as a terminal of 80 columns shows it."""

from __future__ import annotations

from collections.abc import Iterator

from clusterkit.cli.bench.job import finding_lines
from clusterkit.cli.frame import console
from clusterkit.core.hosts.hostlist import fold_set
from clusterkit.core.text import figure, in_words, size_in_words, table, wrapped
from clusterkit.observe.bench.storage import Node, Result, checkpoints, findings, nodes

_MOST_ROWS = 16
_SOURCES = {
    "memory": "the file system keeps what was written in memory: reads are of that",
    "unknown": "nobody tells whether reads came from memory",
    "direct": "the file system keeps what was written in memory: read around it, by O_DIRECT",
}


def storage_lines(result: Result, mtbf_s: float | None) -> Iterator[str]:
    """Yield the lines of an answer."""
    known = nodes(result)
    ranks = f"{len(result.workers)} rank" + "s" * (len(result.workers) != 1)
    places = dict.fromkeys(f"{one.path} ({one.file_system})" for one in known if one.file_system)
    size = max((one.size for one in result.workers if one.size), default=0)
    names = {one.name for one in known}
    of_each = f"{size_in_words(size)} per node" if size else ""
    parts = (fold_set(names), ", ".join(places), of_each)
    yield from wrapped(f"{console.bold(ranks)}: {'; '.join(filter(None, parts))}")
    yield ""
    if size:
        yield from _table(known)
        for source in dict.fromkeys(one.read_from for one in known):
            if source in _SOURCES:
                yield from wrapped(_SOURCES[source], "  ", "  ")
        yield ""
    yield from _interval(result, mtbf_s, size, len(known))
    yield from finding_lines(findings(result), names)
    if not result.complete:
        yield console.coloured("the end is missing", "yellow")


def _table(known: tuple[Node, ...]) -> Iterator[str]:
    """Yield the slowest nodes, the very slowest at the end."""
    rows = [["node", "write", "all write", "read", "all read", "files/s", "checkpoint"]]
    by_speed = sorted(known, key=lambda one: one.checkpoint_s or 0.0)
    for one in by_speed[-_MOST_ROWS:]:
        rates = (one.write, one.write_all, one.read, one.read_all)
        cells = ["-" if rate is None else figure(rate / 1e6) for rate in rates]
        small = "-" if one.small_per_s is None else figure(one.small_per_s)
        took = "-" if one.checkpoint_s is None else f"{figure(one.checkpoint_s)} s"
        rows.append([one.name, *cells, small, took])
    head, *rest = table(rows, "<>>>>>>")
    yield console.dim(head)
    yield from rest
    yield "  MB/s of one process of each node, and of all; small files, each with an fsync"
    if (hidden := len(by_speed) - _MOST_ROWS) > 0:
        yield f"  and {hidden} that are faster: --json has all"


def _interval(result: Result, mtbf_s: float | None, size: int, count: int) -> Iterator[str]:
    found = checkpoints(result, mtbf_s)
    if found is None:
        return
    guess = "" if mtbf_s else f", guessed from {count} node" + "s" * (count != 1) + " (--mtbf)"
    every, young = in_words(found.daly_s), in_words(found.young_s)
    text = (
        f"checkpoint every {every} (Daly; Young {young}): one of {size_in_words(size)} per node "
        f"takes {figure(found.write_s)} s, and a failure is expected every "
        f"{in_words(found.mtbf_s)}{guess}; that costs {found.lost:.2%} of all time"
    )
    yield from wrapped(text, rest="  ")
