"""`clusterkit layout`: which rank of a parallel training job sits where."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import JsonFlag, explained
from clusterkit.cli.frame.main import EXIT_FINDINGS
from clusterkit.cli.nodes.layout_report import document, headline, picture, reaches, wrapped_warning
from clusterkit.core.errors import Problem, UserError, choices_hint
from clusterkit.core.hosts.hostlist import expand, fold
from clusterkit.launch.rank_layout.exports import Export
from clusterkit.launch.rank_layout.exports import export as exported
from clusterkit.launch.rank_layout.fabric import Fabric, parse_fabric
from clusterkit.launch.rank_layout.parallelism import LayoutRequest, arrange, parse_order
from clusterkit.launch.rank_layout.placement import (
    Islands,
    Layout,
    even_islands,
    islands_of_groups,
    place,
)
from clusterkit.launch.rank_layout.warnings import layout_warnings
from clusterkit.preflight.topology.analysis import islands
from clusterkit.preflight.topology.matrix import NoMatrix, parse_topology


@explained
def layout(
    tp: int = 1,
    pp: int = 1,
    dp: int | None = None,
    cp: int = 1,
    ep: int = 1,
    nodes: int | None = None,
    gpus_per_node: int = 8,
    order: str = "tp-cp-ep-dp-pp",
    hosts: str | None = None,
    topology: str | None = None,
    bundle: str | None = None,
    keep_order: bool = False,
    island: str | None = None,
    export: str | None = None,
    json: JsonFlag = False,
) -> None:
    """Show which rank sits where, and who has to talk over the network.

    Exits with 1 where a layout slows training down.
    """
    target = _target(export)
    fabric = _fabric(topology, bundle)
    names = _names(hosts, fabric, nodes)
    count = nodes if nodes is not None else len(names)
    if nodes is None and not names:
        count = _enough_nodes(tp * pp * cp, dp, gpus_per_node)
    sizes = {"tp": tp, "pp": pp, "dp": dp, "cp": cp, "ep": ep, "order": parse_order(order)}
    request = LayoutRequest(nodes=count, gpus_per_node=gpus_per_node, **sizes)  # type: ignore[arg-type]
    parallelism = arrange(request)
    found = place(
        parallelism,
        hosts=names or tuple(f"node-{number}" for number in range(count)),
        gpus_per_node=gpus_per_node,
        islands=_islands(island, request),
        fabric=fabric,
        keep_order=keep_order,
    )
    text = exported(parallelism, target) if target else None
    odd = layout_warnings(found)
    if json:
        more: Mapping[str, Any] = {} if text is None else {"export": text}
        console.json_document({**document(found, odd, assumed=island is None), **more})
    elif text is not None:
        console.say(text.rstrip("\n"))
        for problem in odd:
            console.warn(str(dataclasses.replace(problem, key=None)))
    else:
        _show(found, odd, assumed=island is None)
    if odd:
        raise typer.Exit(EXIT_FINDINGS)


def _show(found: Layout, odd: tuple[Problem, ...], *, assumed: bool) -> None:
    console.say(console.bold(headline(found)))
    for block in (picture(found), reaches(found, assumed=assumed)):
        if block:
            console.say("")
            console.say(*block)
    if odd:
        console.say("")
    for problem in odd:
        label = console.coloured("warning:", "yellow")
        console.say(wrapped_warning(problem).replace("warning:", label, 1))


def _target(word: str | None) -> Export | None:
    if word is None:
        return None
    known = {str(target): target for target in Export}
    if word not in known:
        raise UserError(f"--export {word} is not known", hint=choices_hint(word, known))
    return known[word]


def _names(hosts: str | None, fabric: Fabric | None, nodes: int | None) -> tuple[str, ...]:
    """Return the machines by name; none where nothing names them."""
    if hosts is None and fabric is None:
        return ()
    names = expand(hosts, source="--hosts") if hosts is not None else fabric.nodes if fabric else ()
    known = "--bundle" if fabric is not None and fabric.measured else "the topology"
    where = "--hosts" if hosts is not None else known
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise UserError(f"{where} names {fold(twice)} twice", hint="name every machine once")
    if not names or (nodes is not None and len(names) != nodes):
        note = f", and --nodes says {nodes}" if nodes is not None else ""
        some = fold(names[:nodes]) if nodes and len(names) > nodes else "LIST"
        raise UserError(
            f"{where} has {len(names)} nodes{note}",
            hint=f"--hosts {some}" + (f", or --nodes {len(names)}" if names else ""),
        )
    return names


def _enough_nodes(model: int, dp: int | None, gpus_per_node: int) -> int:
    """Return how many machines hold `dp` copies of a model of `model` GPUs."""
    if dp is None:
        raise UserError("how many machines are there?", hint="--nodes N, or --hosts LIST, or --dp")
    return max(1, -(-model * dp // max(gpus_per_node, 1)))


def _fabric(topology: str | None, bundle: str | None) -> Fabric | None:
    """Return what is known of the network; None where nothing is."""
    if topology is None and bundle is not None:
        from clusterkit.preflight.network import measured_in

        return measured_in(Path(bundle))
    if topology is None:
        return None
    if bundle is not None:
        raise UserError(
            "--topology and --bundle both say which machines are near each other",
            hint="leave one out; switches are surer than measurements",
        )
    source = "<stdin>" if topology == "-" else topology
    what = "- or a file with what `scontrol show topology` printed"
    text = sys.stdin.read() if topology == "-" else _text(topology, what=what)
    return parse_fabric(text, source=source)


def _text(file: str, *, what: str) -> str:
    """Return the text of a file that a flag names; `what` is the hint where there is none."""
    from clusterkit.config.document import read_text

    if not Path(file).exists():
        raise UserError(f"there is no file {file}", hint=what)
    return read_text(Path(file), source=file)


def _islands(island: str | None, request: LayoutRequest) -> Islands:
    if island is None or island.isdecimal():
        return even_islands(int(island or request.gpus_per_node), request.gpus_per_node)
    what = "--island N, or a file with what `nvidia-smi topo -m` printed"
    try:
        matrix = parse_topology(_text(island, what=what))
    except NoMatrix as error:
        raise UserError(f"{island} holds no topology matrix: {error}", hint=what) from error
    groups = [[matrix.gpus.index(gpu) for gpu in joined.gpus] for joined in islands(matrix)]
    return islands_of_groups(groups, request.gpus_per_node, gpus=len(matrix.gpus), source=island)
