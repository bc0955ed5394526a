"""Network interfaces that are up: MTU and speed, from sysfs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from clusterkit.core.data import read_snippet
from clusterkit.transport.probe import Probe, Unparsed

VIRTUAL = """\
lo | docker* | br-* | veth* | virbr* | vnet* | cni* | flannel* | cali* | lxc* | tun* | tap* |\
 dummy* | ifb* | podman* | nerdctl* | kube* | cilium* | gre* | erspan* | sit* | ip6*"""
"""Interfaces that containers and virtual machines come with, as patterns of `case`: they differ
from node to node and carry no traffic between nodes."""


_LINE = re.compile(r"([^|/\s]{1,15})\|(\d{1,8})\|(-?\d{0,8})\|(\d{1,6})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """A network interface."""

    name: str
    mtu: int
    speed_mbps: int | None
    """None where the driver does not know, as on most virtual machines."""
    infiniband: bool
    """IP over InfiniBand (ARPHRD_INFINIBAND)."""


@lru_cache(maxsize=16384)
def parse(text: str) -> tuple[Interface, ...]:
    """Read one line an interface: name, MTU, speed in Mb/s, type (linux/if_arp.h)."""
    found = []
    for line in filter(None, text.split("\n")):
        match = _LINE.fullmatch(line)
        if match is None:
            raise Unparsed(f"line {line[:40]!r}")
        speed = int(match[3]) if match[3] not in {"", "-"} else -1
        found.append(
            Interface(
                name=match[1],
                mtu=int(match[2]),
                speed_mbps=speed if speed > 0 else None,
                infiniband=match[4] == "32",
            )
        )
    return tuple(found)


PROBE = Probe(
    name="net-interfaces", command=read_snippet("net_interfaces", virtual=VIRTUAL), parse=parse
)
