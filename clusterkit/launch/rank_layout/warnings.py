"""What a layout can do but should rather not: each with its reason and what to type."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from clusterkit.core.errors import Problem, UserError
from clusterkit.core.hosts.hostlist import fold_set
from clusterkit.launch.rank_layout.parallelism import (
    DIMENSIONS,
    MEGATRON_ORDER,
    LayoutRequest,
    arrange,
)
from clusterkit.launch.rank_layout.placement import Layout, Reach

_WHY = {
    "tp": "each layer waits for it four times",
    "cp": "each layer of attention hands keys and values round",
    "ep": "each layer of experts sends every token there and back",
}


def layout_warnings(layout: Layout) -> tuple[Problem, ...]:
    """Return what slows training down in a layout; empty where all is near."""
    return (*_tensor(layout), *_crossing(layout), *_pipeline(layout), *_unknown(layout))


def _tensor(layout: Layout) -> Iterator[Problem]:
    groups = layout.groups("tp")
    reaches = [layout.reach(group) for group in groups]
    out = [reach for reach in reaches if reach is not Reach.ISLAND]
    if not out:
        return
    where = "its node" if any(reach is not Reach.NODE for reach in out) else "its NVLink island"
    island = layout.islands
    message = (
        f"tp {layout.parallelism.tp} leaves {where} in {_some(len(out), len(groups))}: {_WHY['tp']}"
    )
    order = [slot for part in island.parts for slot in part]
    if not island.consecutive and layout.parallelism.tp <= island.gpus:
        visible = ",".join(map(str, order))
        yield Problem(message=message, hint=f"--env CUDA_VISIBLE_DEVICES={visible}", key="tp")
        return
    yield Problem(message=message, hint=_smaller(layout, "tp", island.gpus), key="tp")


def _crossing(layout: Layout) -> Iterator[Problem]:
    """Yield where experts or sequences are divided over nodes."""
    for name in ("cp", "ep"):
        groups = layout.groups(name)
        out = [g for g in groups if layout.reach(g) in {Reach.SWITCH, Reach.NETWORK}]
        if out:
            nodes = max(len({layout.node(rank) for rank in group}) for group in out)
            yield Problem(
                message=f"{name} {getattr(layout.parallelism, name)} goes over {nodes} nodes in "
                f"{_some(len(out), len(groups))}: {_WHY[name]}",
                hint=_smaller(layout, name, layout.gpus_per_node * layout.islands.nodes),
                key=name,
            )


def _pipeline(layout: Layout) -> Iterator[Problem]:
    """Yield where a stage hands over to one behind another switch."""
    if layout.switches is None:
        return
    pairs = tuple(layout.neighbours())
    far = sum(1 for pair in pairs if layout.reach(pair) is Reach.NETWORK)
    if far:
        where = "near each other" if layout.measured else "behind the same switch"
        group = "group of near hosts" if layout.measured else "switch"
        yield Problem(
            message=f"{far} of {len(pairs)} pairs of pipeline neighbours are not {where}",
            hint=f"hosts in numbers that fill pipelines, so many of each {group}, or smaller --pp",
            key="pp",
        )


def _unknown(layout: Layout) -> Iterator[Problem]:
    if layout.switches is None or None not in layout.switches:
        return
    unknown = fold_set(h for h, s in zip(layout.hosts, layout.switches, strict=True) if s is None)
    key, message = "topology", f"the topology does not know {unknown}"
    hint = "look at the names in `scontrol show topology`"
    if layout.measured:
        key, message = "bundle", f"nothing was measured between {unknown} and the others"
        hint = "clusterkit preflight --network --save DIR, and look at what it says of them"
    yield Problem(message=message, hint=hint, key=key)


def _smaller(layout: Layout, name: str, block: int) -> str | None:
    """Return the size, or else the order, that would keep groups of a dimension in a block."""
    now = layout.parallelism
    sizes = {size: getattr(now, size) for size in ("tp", "cp", "ep", "pp", "order")}
    request = LayoutRequest(nodes=layout.nodes, gpus_per_node=layout.gpus_per_node, **sizes)
    changes: list[tuple[str, dict[str, Any]]] = []
    if now.order != DIMENSIONS:
        changes.append((f"--order {MEGATRON_ORDER}", {"order": DIMENSIONS}))
    smaller = range(getattr(now, name) - 1, 1, -1)
    for flag, change in (*changes, *((f"--{name} {size}", {name: size}) for size in smaller)):
        with suppress(UserError):  # it does not divide
            other = arrange(dataclasses.replace(request, **change))
            if other.mesh(name).stays_within(name, block):
                return flag
    if name != "tp":
        return "fewer tensor ranks beside it, or a network that can carry it"
    return f"--gpus-per-node {now.tp}" if now.tp < layout.gpus_per_node else "--tp 1 and more --pp"


def _some(number: int, of: int) -> str:
    if number == of:
        return "every group" if of > 1 else "its only group"
    return f"{number} of {of} groups"
