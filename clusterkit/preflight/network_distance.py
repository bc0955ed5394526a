"""Which nodes are near each other, by what preflight measured or by what Slurm knows."""

from __future__ import annotations

from pathlib import Path

from clusterkit.config.document import read_text
from clusterkit.core.errors import UserError
from clusterkit.launch.rank_layout.fabric import Fabric, measured_fabric, parse_fabric
from clusterkit.preflight.bundle_reader import read_bundle
from clusterkit.preflight.checks.net_evidence import read_links
from clusterkit.preflight.evaluate import evidence_of


def fabric_in(place: Path) -> Fabric:
    """Return the fabric that a file with a topology, or the folder of a bundle, tells of.

    Raises:
        UserError: it tells of none.
    """
    if place.is_dir():
        return measured_in(place)
    return parse_fabric(read_text(place), source=str(place))


def measured_in(folder: Path) -> Fabric:
    """Return the fabric that was measured, from a bundle.

    Raises:
        UserError: it is not a bundle, or nothing was measured.
    """
    evidence = evidence_of(read_bundle(folder))
    links = read_links(evidence)
    nodes = [node.name for node in evidence.nodes]
    fabric = measured_fabric(nodes, latencies_us=links.latencies_us, rates=links.rates)
    if not fabric.leaves:
        raise UserError(
            f"{folder}: nothing was measured between the nodes",
            hint="clusterkit preflight --network --save DIR",
        )
    return fabric
