"""RDMA devices and ports, from sysfs, which needs no tool.

The output of `ibstat`, `ibstatus`, `ibv_devinfo` and `rdma link` is read too, so that a bundle
which somebody collected by hand can be judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from clusterkit.core.data import read_snippet
from clusterkit.preflight.probes.net import rdma_tools
from clusterkit.preflight.probes.net.rdma import (
    Device,
    Gid,
    Port,
    Rdma,
    number,
    physical,
    rate,
    state,
)
from clusterkit.transport.probe import Probe, Unparsed


@lru_cache(maxsize=16384)
def parse(text: str) -> Rdma:
    """Read what the snippet printed, or one of the tools."""
    first = next((line for line in text.split("\n") if line.strip()), "")
    if not first.startswith("device|"):
        return rdma_tools.parse(text)
    gids: dict[tuple[str, str], list[Gid]] = {}
    rows: dict[str, list[tuple[str, list[str]]]] = {}
    about: dict[str, list[str]] = {}
    for line in filter(None, text.split("\n")):
        kind, *cells = line.split("|")
        if kind == "device" and len(cells) == 4:
            rows[cells[0]] = []
            about[cells[0]] = cells[1:]
        elif kind == "port" and len(cells) == 8 and cells[0] in rows:
            rows[cells[0]].append((cells[1], cells[2:]))
        elif kind == "gid" and len(cells) == 6 and cells[0] in rows:
            gids.setdefault((cells[0], cells[1]), []).append(_gid(cells[2:]))
        else:
            raise Unparsed(f"line {line[:40]!r}")
    return Rdma(
        devices=tuple(
            _device(name, about[name], [_port(name, row, gids) for row in ports])
            for name, ports in rows.items()
        )
    )


def _device(name: str, about: list[str], ports: list[Port]) -> Device:
    firmware, board, model = about
    return Device(
        name=name,
        firmware=firmware or None,
        board=board or None,
        model=model or None,
        ports=tuple(ports),
    )


def _port(
    device: str, row: tuple[str, list[str]], gids: Mapping[tuple[str, str], list[Gid]]
) -> Port:
    index, (logical, phys, speed, layer, lid, sm_lid) = row
    rate_gbps, width = rate(speed)
    own = sorted(gids.get((device, index), ()), key=lambda gid: gid.index)
    return Port(
        device=device,
        number=_index(index),
        state=state(logical),
        physical=physical(phys),
        rate_gbps=rate_gbps,
        width=width,
        layer=layer or None,
        lid=number(lid),
        sm_lid=number(sm_lid),
        netdev=next((gid.netdev for gid in own if gid.netdev), None),
        gids=tuple(own),
    )


def _gid(cells: list[str]) -> Gid:
    index, kind, value, netdev = cells
    return Gid(index=_index(index), kind=kind, value=value, netdev=netdev or None)


def _index(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 5):
        raise Unparsed(f"number of a port or GID {text[:20]!r}")
    return int(text)


PROBE = Probe(name="rdma-ports", command=read_snippet("rdma_ports"), parse=parse)
