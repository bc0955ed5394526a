"""The topology matrix of a node, by `nvidia-smi topo -m`."""

from __future__ import annotations

from functools import lru_cache

from clusterkit.core.data import read_snippet
from clusterkit.preflight.probes.gpu.nvidia import nvidia_probe
from clusterkit.preflight.topology import NoMatrix, Topology, View, parse_topology
from clusterkit.transport.probe import Unparsed


@lru_cache(maxsize=4096)
def parse(text: str) -> Topology:
    """Read the matrix; nodes of one model print the same one, so each is read once."""
    try:
        return parse_topology(text, view=View.LINKS)
    except NoMatrix as error:
        raise Unparsed(str(error)) from None


PROBE = nvidia_probe("nvidia-topo", read_snippet("nvidia_topo"), parse)
