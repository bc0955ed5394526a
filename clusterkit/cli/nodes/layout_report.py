"""A layout as a picture of 80 columns, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from clusterkit.core.errors import Problem
from clusterkit.core.hosts.hostlist import fold, fold_set
from clusterkit.core.records import picked
from clusterkit.core.text import WIDTH, wrapped
from clusterkit.core.text import table as listed
from clusterkit.launch.rank_layout.parallelism import DIMENSIONS
from clusterkit.launch.rank_layout.placement import Layout, Pattern, Reach, patterns

_MOST_ROWS = 24
_LABEL = 8
_MOST_NAMES = 34
"""Characters of a hostlist; a longer one has lines of its own."""
_MOST_RANGES = 24
"""Characters; of more ranges, only where they begin and end is told."""


def headline(layout: Layout) -> str:
    """Return the layout in one line."""
    of = layout.parallelism
    sizes = " x ".join(
        f"{n} {getattr(of, n)}" for n in of.order if n != "ep" and getattr(of, n) > 1
    )
    experts = f", ep {of.ep}" if of.ep > 1 else ""
    counts = f"{_many(layout.nodes, 'node')} x {_many(layout.gpus_per_node, 'GPU')}"
    return (
        f"{counts} = {_many(of.ranks, 'rank')}: {sizes or 'dp 1'}{experts}\n"
        f"order {'-'.join(of.order)}, the fastest first"
    )


def _many(number: int, what: str) -> str:
    return f"{number} {what}" + "s" * (number != 1)


def picture(layout: Layout) -> Sequence[str]:
    """Return which coordinates sit in which slot, and which nodes are alike."""
    lines: list[str] = []
    for number, pattern in enumerate(patterns(layout)):
        if len(lines) > 3 * _MOST_ROWS:
            return [*lines, "", "... and other patterns: --json has every rank"]
        lines += [""] * bool(number)
        lines += [*_slots(layout, pattern), *_nodes(layout, pattern)]
    return lines


def _slots(layout: Layout, pattern: Pattern) -> Iterator[str]:
    """Yield a row for each dimension that changes within a node, `|` where an island ends."""
    count = layout.gpus_per_node
    if not pattern.slots:
        return
    highest = max(count - 1, *(max(values) for values in pattern.slots.values()))
    cell = len(str(highest)) + 2 + bool(pattern.moving)
    fit = (WIDTH - _LABEL) // cell
    rows: Mapping[str, Sequence[int]] = {"slot": range(count), **pattern.slots}
    for first in range(0, count, fit):
        for name, values in rows.items():
            sign = "+" if name in pattern.moving else ""
            cells = "".join(
                _cell(layout, slot, f"{sign}{values[slot]}", cell)
                for slot in range(first, min(first + fit, count))
            )
            yield f"{name:<{_LABEL}}{cells}".rstrip()
        yield ""


def _cell(layout: Layout, slot: int, value: str, width: int) -> str:
    islands = layout.islands.of_slot
    ends = slot + 1 < len(islands) and islands[slot] != islands[slot + 1]
    return f"{value:>{width - 1}}" + ("|" if ends else " ")


def _nodes(layout: Layout, pattern: Pattern) -> Iterator[str]:
    names = tuple(pattern.rows[0].coordinates)
    rows: list[tuple[str, ...]] = [("nodes", "ranks", *names)]
    for row in pattern.rows[:_MOST_ROWS]:
        ranks = [(n * layout.gpus_per_node, (n + 1) * layout.gpus_per_node - 1) for n in row.nodes]
        where = [_ranges([(v, v) for v in row.coordinates[name]]) for name in names]
        hosts = fold_set(layout.hosts[node] for node in row.nodes)
        rows.append((hosts, _ranges(ranks), *where))
    cells = [("" if len(row[0]) > _MOST_NAMES else row[0], *row[1:]) for row in rows]
    for (hosts, *_), line in zip(rows, listed(cells), strict=True):
        yield from _wrapped_list(hosts) if len(hosts) > _MOST_NAMES else ()
        yield line
    if len(pattern.rows) > _MOST_ROWS:
        yield f"... and {len(pattern.rows) - _MOST_ROWS} more rows: --json has every rank"


def _ranges(spans: Sequence[tuple[int, int]]) -> str:
    joined: list[tuple[int, int]] = []
    for low, high in spans:
        if joined and joined[-1][1] + 1 == low:
            joined[-1] = (joined[-1][0], high)
        else:
            joined.append((low, high))
    text = ",".join(str(low) if low == high else f"{low}-{high}" for low, high in joined)
    return text if len(text) <= _MOST_RANGES else f"{joined[0][0]}..{joined[-1][1]}"


def reaches(layout: Layout, *, assumed: bool) -> Sequence[str]:
    """Return how far the groups of each dimension go."""
    table = [("", "size", "groups", "each group is in")] if layout.dimensions else []
    for name in layout.dimensions:
        groups = layout.groups(name)
        far = _farthest(layout, groups)
        nodes = max(len({layout.node(rank) for rank in group}) for group in groups)
        where = _where(far, nodes, measured=layout.measured)
        table.append((name, str(len(groups[0])), str(len(groups)), where))
    lines = listed(table, "<>>", widths=(4, 4, 6))
    if layout.switches is not None:
        lines += ["", *_wrapped_list(f"hosts in rank order: {fold(layout.hosts)}")]
    if assumed and layout.gpus_per_node > 1:
        lines += ["", "NVLink is taken to join all GPUs of a node; --island says otherwise."]
    return lines


def _farthest(layout: Layout, groups: Sequence[Sequence[int]]) -> Reach:
    far = {layout.reach(group) for group in groups}
    return max(far, key=list(Reach).index)


def _where(reach: Reach, nodes: int, *, measured: bool) -> str:
    if reach is Reach.ISLAND:
        return "one NVLink island" + (f", {nodes} nodes" if nodes > 1 else "")
    if reach is Reach.NODE:
        return "one node"
    near = " near each other" if measured else " behind one switch"
    return f"{nodes} nodes" + (near if reach is Reach.SWITCH else "")


def _wrapped_list(text: str) -> Iterator[str]:
    """Yield a long hostlist in lines that end at its commas."""
    return (line.replace(", ", ",") for line in wrapped(text.replace(",", ", "), rest="  "))


def wrapped_warning(problem: Problem) -> str:
    """Return a warning and what to type instead."""
    lines = wrapped(f"warning: {problem.message}", rest="  ")
    if problem.hint:
        lines += wrapped(f"hint: {problem.hint}", "  ", "  ")
    return "\n".join(lines)


def document(layout: Layout, odd: Sequence[Problem], *, assumed: bool) -> Mapping[str, Any]:
    """Return everything about a layout, rank by rank."""
    of = layout.parallelism
    grids = {name: of.mesh(name) for name in layout.dimensions}
    return {
        "ranks_total": of.ranks,
        **picked(layout, "nodes", "gpus_per_node", "hosts", "switches", "measured"),
        "order": "-".join(of.order),
        "sizes": picked(of, *DIMENSIONS, "edp"),
        "island": {
            "assumed": assumed,
            "slots": layout.islands.parts,
            "nodes": layout.islands.nodes,
        },
        "dimensions": {
            name: {
                "size": mesh.size(name),
                "reach": _farthest(layout, mesh.groups(name)),
                "groups": mesh.groups(name),
            }
            for name, mesh in grids.items()
        },
        "ranks": [
            {
                "rank": rank,
                "host": layout.hosts[layout.node(rank)],
                "node": layout.node(rank),
                "slot": layout.slot(rank),
                **{name: mesh.coordinate(name, rank) for name, mesh in grids.items()},
            }
            for rank in range(of.ranks)
        ],
        "warnings": [
            {"about": problem.key, "message": problem.message, "hint": problem.hint}
            for problem in odd
        ],
    }
