"""Devices of Amazon's Elastic Fabric Adapter, from the bus to libfabric."""

from __future__ import annotations

from dataclasses import dataclass

from clusterkit.core.data import read_snippet
from clusterkit.preflight.probes.snippets import number_of, read_pairs, text_of
from clusterkit.transport.probe import Probe, Unparsed


@dataclass(frozen=True, slots=True, kw_only=True)
class Efa:
    """How far the devices of a node have come."""

    pci: int
    """On the PCI bus."""
    bound: int
    """With a driver, as RDMA devices."""
    usable: int
    """Devices below /dev/infiniband that whoever asks may open, of whatever kind."""
    provider: bool | None
    """Whether libfabric finds one; None without `fi_info`."""


def parse(text: str) -> Efa:
    """Read the pairs of the snippet."""
    pairs = read_pairs(text)
    known = {"there": True, "absent": False, "unknown": None}
    if (provider := text_of(pairs, "provider")) not in known:
        raise Unparsed(f"provider {provider[:40]!r}")
    return Efa(
        pci=number_of(pairs, "pci"),
        bound=number_of(pairs, "bound"),
        usable=number_of(pairs, "usable"),
        provider=known[provider],
    )


PROBE = Probe(name="efa", command=read_snippet("efa"), parse=parse)
