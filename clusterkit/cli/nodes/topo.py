"""`clusterkit topo`: what a topology matrix of nvidia-smi means."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import JsonFlag, explained
from clusterkit.cli.frame.main import EXIT_FINDINGS
from clusterkit.core.commands import TIMED_OUT, run_command
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.text import WIDTH, table, wrapped
from clusterkit.preflight.topology.analysis import (
    compare_hca,
    far_nics,
    islands,
    nearest_nics,
    recommended_nics,
    summary,
    warnings,
)
from clusterkit.preflight.topology.matrix import NoMatrix, Topology, View, parse_topology

_NVIDIA_SMI = ("nvidia-smi", "topo", "-m")
_TIMEOUT_S = 60
_TYPE_THIS = "run `nvidia-smi topo -m > topo.txt` on the machine, then `clusterkit topo topo.txt`"


@explained
def topo(
    file: str | None = None,
    nccl_ib_hca: str | None = None,
    json: JsonFlag = False,
) -> None:
    """Explain the links between the GPUs and NICs of a machine.

    Exits with 1 where something in the topology slows jobs down.
    """
    topology, here = _read(file)
    value = nccl_ib_hca or (os.environ.get("NCCL_IB_HCA") if here else None)
    odd = (*warnings(topology), *(compare_hca(topology, value) if value else ()))
    if json:
        console.json_document({**_document(topology), "summary": summary(topology),
                               "warnings": odd})  # fmt: skip
    else:
        console.say(console.bold("\n".join(wrapped(summary(topology)))))
        for block in (_matrix(topology), _affinity(topology), _recommendation(topology)):
            if block:
                console.say("")
                console.say(*block)
        for number, text in enumerate(odd):
            if not number:
                console.say("")
            label = console.coloured("warning:", "yellow")
            first, *more = wrapped(f"warning: {text}", rest="  ")
            console.say(first.replace("warning:", label, 1), *more)
    if odd:
        raise typer.Exit(EXIT_FINDINGS)


def _read(file: str | None) -> tuple[Topology, bool]:
    """Return the matrix, and whether it is that of this machine."""
    from clusterkit.config.document import read_text

    text, source = "", "nvidia-smi topo -m"
    if file is None and not sys.stdin.isatty():
        text = sys.stdin.read()  # empty under a scheduler or cron: they mean this machine
    if file is not None or text.strip():
        source = "<stdin>" if file in {None, "-"} else str(file)
        if file is not None:
            text = read_text(Path("/dev/stdin" if file == "-" else file), source=source)
        try:
            return parse_topology(text), False
        except NoMatrix as error:
            raise UserError(
                f"{source} holds no topology matrix: {error}", hint=_TYPE_THIS
            ) from error
    text = _ask_nvidia_smi()
    try:
        return parse_topology(text, view=View.LINKS), True
    except NoMatrix as error:
        raise RemoteError(f"{source} printed no topology matrix: {error}") from error


def _ask_nvidia_smi() -> str:
    answer = run_command(_NVIDIA_SMI, timeout_s=_TIMEOUT_S)
    if not answer.ran:
        raise UserError("this machine has no nvidia-smi", hint=_TYPE_THIS)
    if answer.code == TIMED_OUT:
        raise RemoteError(
            f"nvidia-smi topo -m gave no answer within {_TIMEOUT_S} s",
            hint="its driver may hang: look for Xid lines in `dmesg`",
        )
    if answer.code:
        lines = (answer.output + answer.errors).strip().splitlines()
        first = next(iter(lines), "nothing said")
        raise RemoteError(f"nvidia-smi topo -m exits {answer.code}: {first}")
    return answer.output


def _document(topology: Topology) -> Mapping[str, Any]:
    nearest = {near.gpu: near.nics for near in nearest_nics(topology)}
    names = topology.names
    return {
        "gpus": topology.gpus,
        "nics": [{"name": nic.name, "device": nic.device} for nic in topology.nics],
        "links": {
            name: {other: cell for other, cell in zip(names, row, strict=True) if other != name}
            for name, row in zip(names, topology.cells, strict=True)
        },
        "affinity": {
            gpu: {"nics": nearest.get(gpu, ()), "cpus": affinity.cpus, "numa": affinity.numa}
            for gpu, affinity in zip(topology.gpus, topology.affinity, strict=True)
        },
        "view": topology.view,
        "islands": [
            {"gpus": island.gpus, "links": island.links, "all_to_all": island.all_to_all}
            for island in islands(topology)
        ],
        "nccl_ib_hca": _hca_value(recommended_nics(topology)),
    }


def _matrix(topology: Topology) -> Sequence[str]:
    """Return the links between GPUs; none where all are the same, as the summary names them."""
    count = len(topology.gpus)
    if len({link for _, _, link in topology.gpu_pairs()}) < 2:
        return ()
    label = max(len(gpu) for gpu in topology.gpus) + 2
    cell = max(len(text) for row in topology.cells for text in row) + 2
    fit = (WIDTH - label) // cell
    lines = []
    for first in range(0, count, fit):
        columns = range(first, min(first + fit, count))
        head = "".join(f"{topology.gpus[c].removeprefix('GPU'):>{cell}}" for c in columns)
        lines.append(" " * label + head)
        for name, row in zip(topology.gpus, topology.cells, strict=False):
            cells = "".join(f"{'-' if row[c] == 'X' else row[c]:>{cell}}" for c in columns)
            lines.append(f"{name:<{label}}{cells}")
    return lines


def _affinity(topology: Topology) -> Sequence[str]:
    """Return a table of what each GPU is near to; GPUs with the same are one line."""
    from clusterkit.core.hosts.hostlist import fold

    nearest = nearest_nics(topology)
    if not nearest and not any(a.cpus or a.numa for a in topology.affinity):
        return ()
    near = [(n.link, " ".join(n.nics)) for n in nearest] or [("", "")] * len(topology.gpus)
    rows = [
        (gpu, (affinity.numa or "-", affinity.cpus or "-", *nics))
        for gpu, affinity, nics in zip(topology.gpus, topology.affinity, near, strict=True)
    ]
    folded = [
        (fold(gpu for gpu, _ in same), *key) for key, same in groupby(rows, key=lambda row: row[1])
    ]
    head = ("GPUs", "NUMA", "CPUs", *(("NIC", "nearest NICs") if nearest else ("", "")))
    shown = [head, *folded]
    starts = table([(*row[:-1], ".") for row in shown])
    return [
        line.rstrip()
        for row, start in zip(shown, starts, strict=True)
        for line in wrapped(row[-1], start[:-1], " " * (len(start) - 1)) or [start[:-1]]
    ]


def _recommendation(topology: Topology) -> Sequence[str]:
    lines = []
    value = _hca_value(recommended_nics(topology))
    if value is not None:
        lines.append(f"NCCL_IB_HCA={value}")
    far = far_nics(topology)
    if far:
        lines += wrapped(f"near no GPU: {' '.join(far)} (storage or management?)", rest="  ")
    return lines


def _hca_value(devices: Sequence[str]) -> str | None:
    # "=": without it, mlx5_1 would take mlx5_10 too.
    return "=" + ",".join(devices) if devices else None
