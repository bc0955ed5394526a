"""Error counters of RDMA ports, read twice."""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterkit.core.data import read_snippet, read_table
from clusterkit.preflight.probes.snippets import matched
from clusterkit.transport.probe import Probe, Unparsed

COUNTERS = {row["counter"]: int(row["bits"]) for row in read_table(__file__, "rdma_counters.tsv")}
"""Each counter with its bits."""
_WIDEST = 32
"""Bits that some drivers count to."""
_NARROW = 4
"""Bits of counters that are full on sound machines, too, soon after they have started."""


_LINE = re.compile(r"([12]) ([\w.-]+)/ports/(\d{1,3})((?: \w+=\d{1,20})*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PortCounters:
    """The counters of a port that are not 0."""

    port: str
    """Such as `mlx5_0/1`."""
    total: tuple[tuple[str, int], ...]
    rising: tuple[tuple[str, int], ...]
    """What was added between the two readings."""

    @property
    def full(self) -> tuple[tuple[str, int], ...]:
        """Counters at their end, where they stay until they are reset: they rise no more."""
        return tuple((name, n) for name, n in self.total if n in _ends(name))


def _ends(name: str) -> set[int]:
    bits = COUNTERS.get(name, _WIDEST)
    return {2**n - 1 for n in (bits, _WIDEST) if n > _NARROW}


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaCounters:
    """Counters of all ports that have some; virtual functions have none."""

    ports: tuple[PortCounters, ...]


def parse(text: str) -> RdmaCounters:
    """Read the two blocks of lines, one line per port."""
    samples: dict[str, dict[str, dict[str, int]]] = {"1": {}, "2": {}}
    for match in matched(text, _LINE):
        values = (word.split("=") for word in match[4].split())
        samples[match[1]][f"{match[2]}/{match[3]}"] = {name: int(n) for name, n in values}
    if samples["1"].keys() != samples["2"].keys():
        raise Unparsed("the two readings are not of the same ports")
    ports = []
    for port, after in samples["2"].items():
        before = samples["1"][port]
        # A counter that was reset in between is smaller: it has not risen.
        added = ((name, n - before.get(name, 0)) for name, n in after.items())
        rising = tuple((name, n) for name, n in added if n > 0)
        ports.append(PortCounters(port=port, total=tuple(after.items()), rising=rising))
    return RdmaCounters(ports=tuple(ports))


PROBE = Probe(
    name="rdma-counters",
    command=read_snippet("rdma_counters", counters=" ".join(COUNTERS)),
    parse=parse,
)
