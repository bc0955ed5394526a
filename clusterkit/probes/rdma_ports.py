"""RDMA devices and ports, from sysfs, which needs no tool.

The output of `ibstat`, `ibstatus`, `ibv_devinfo` and `rdma link` is read too, so that a bundle
which somebody collected by hand can be judged.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache

from clusterkit.probes import rdma_tools
from clusterkit.probes.base import Probe, Unparsed
from clusterkit.probes.rdma import Device, Gid, Port, Rdma, number, physical, rate, state

_SNIPPET = """\
cd /sys/class/infiniband 2>/dev/null && set -- * && [ -e "$1" ] ||
{ echo 'no RDMA device'; exit 77; }
r() { v=; { IFS= read -r v <"$1"; } 2>/dev/null || :; }
for d
do
r "$d/fw_ver"; f=$v; r "$d/board_id"; b=$v; r "$d/hca_type"
echo "device|$d|$f|$b|$v"
for p in "$d"/ports/*
do
[ -e "$p/state" ] || continue
o="port|$d|${p##*/}"
for n in state phys_state rate link_layer lid sm_lid
do r "$p/$n"; o="$o|$v"
done
echo "$o"
case $o in
*'|Ethernet|'*)
for g in "$p"/gids/*
do
r "$g"
case $v in '' | *:0000:0000:0000:0000:0000) continue;; esac
i=${g##*/}; a=$v; r "$p/gid_attrs/types/$i"; t=$v; r "$p/gid_attrs/ndevs/$i"
echo "gid|$d|${p##*/}|$i|$t|$a|$v"
done;;
esac
done
done
"""


@lru_cache(maxsize=16384)
def parse(text: str) -> Rdma:
    """Read what the snippet printed, or one of the tools."""
    first = next((line for line in text.split("\n") if line.strip()), "")
    if not first.startswith("device|"):
        return rdma_tools.parse(text)
    devices: dict[str, Device] = {}
    ports: dict[str, dict[int, Port]] = {}
    gids: dict[tuple[str, int], list[Gid]] = {}
    for line in filter(None, text.split("\n")):
        match line.split("|"):
            case ["device", name, firmware, board, model]:
                devices[name] = Device(
                    name=name,
                    firmware=firmware or None,
                    board=board or None,
                    model=model or None,
                )
                ports[name] = {}
            case ["port", name, index, *values] if name in ports and len(values) == 6:
                port = _port(name, index, values)
                ports[name][port.number] = port
            case ["gid", name, index, at, kind, value, netdev] if name in ports:
                found = Gid(index=_index(at), kind=kind, value=value, netdev=netdev or None)
                gids.setdefault((name, _index(index)), []).append(found)
            case _:
                raise Unparsed(f"line {line[:40]!r}")
    return Rdma(
        devices=tuple(
            dataclasses.replace(
                device,
                ports=tuple(
                    _with_gids(port, gids.get((name, port.number), ()))
                    for port in ports[name].values()
                ),
            )
            for name, device in devices.items()
        )
    )


def _port(device: str, index: str, values: list[str]) -> Port:
    logical, phys, speed, layer, lid, sm_lid = values
    rate_gbps, width = rate(speed)
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
    )


def _with_gids(port: Port, gids: list[Gid] | tuple[()]) -> Port:
    if not gids:
        return port
    ordered = tuple(sorted(gids, key=lambda gid: gid.index))
    netdev = next((gid.netdev for gid in ordered if gid.netdev), None)
    return dataclasses.replace(port, gids=ordered, netdev=netdev)


def _index(text: str) -> int:
    found = number(text)
    if found is None:
        raise Unparsed("no number of a port or GID")
    return found


PROBE = Probe(name="rdma-ports", command=_SNIPPET, parse=parse)
