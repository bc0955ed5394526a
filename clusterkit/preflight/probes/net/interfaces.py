"""Network interfaces: MTU and speed of those that are up; names and addresses of all."""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterkit.core.data import read_snippet
from clusterkit.preflight.probes.snippets import matched
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


def parse(text: str) -> tuple[Interface, ...]:
    """Read one line an interface: name, MTU, speed in Mb/s, type (linux/if_arp.h)."""
    return tuple(
        Interface(
            name=row[1],
            mtu=int(row[2]),
            speed_mbps=int(row[3]) if row[3].isdigit() and int(row[3]) else None,
        )
        for row in matched(text, _LINE)
    )


PROBE = Probe(
    name="net-interfaces", command=read_snippet("net_interfaces", virtual=VIRTUAL), parse=parse
)


_UP = frozenset({"up", "unknown"})
"""Tunnels, loopback and some drivers never say more than `unknown`."""
_NAME = re.compile(r"[^|/\s]{1,15}")
_ADDRESS = re.compile(r"[0-9a-fA-F.:]{2,45}(/\d{1,3})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedInterface:
    """A network interface as a variable may name it."""

    name: str
    up: bool
    addresses: tuple[str, ...] | None
    """Without link-local ones; None where there is no `ip` to ask."""

    @property
    def usable(self) -> bool:
        """Whether sockets can be bound to it, as far as is known."""
        return self.up and self.addresses != ()


def parse_named(text: str) -> tuple[NamedInterface, ...]:
    """Read `interface|NAME|STATE` and `address|NAME|ADDRESS/LENGTH` lines."""
    states: dict[str, str] = {}
    addresses: dict[str, list[str]] = {}
    wanted = True
    for line in filter(None, text.split("\n")):
        match line.split("|"):
            case ["interface", name, state] if _NAME.fullmatch(name):
                states[name] = state
            case ["address", name, address] if _ADDRESS.fullmatch(address):
                if not address.lower().startswith("fe80:"):
                    addresses.setdefault(name.partition("@")[0], []).append(address)
            case ["no ip"]:
                wanted = False
            case _:
                raise Unparsed(f"line {line[:40]!r}")
    if not states:
        raise Unparsed("no interface at all, not even lo")
    return tuple(
        NamedInterface(
            name=name,
            up=state in _UP,
            addresses=tuple(addresses.get(name, ())) if wanted else None,
        )
        for name, state in states.items()
    )


NAMED = Probe(name="interfaces", command=read_snippet("interfaces"), parse=parse_named)
