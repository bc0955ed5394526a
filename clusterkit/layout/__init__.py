"""Tensor, context, expert, data and pipeline parallel ranks: which sits where, near to whom."""

from clusterkit.layout.cautions import cautions
from clusterkit.layout.exports import Export, export, variables
from clusterkit.layout.fabric import Fabric, Leaf, parse_fabric
from clusterkit.layout.islands import Islands, even_islands, islands_of_groups
from clusterkit.layout.measured import measured_fabric
from clusterkit.layout.mesh import Mesh
from clusterkit.layout.parallelism import (
    DIMENSIONS,
    MEGATRON_ORDER,
    Parallelism,
    Wish,
    arrange,
    parse_order,
)
from clusterkit.layout.patterns import NodeRow, Pattern, patterns
from clusterkit.layout.placement import Layout, Reach, near_first, node_order, place

__all__ = [
    "DIMENSIONS",
    "MEGATRON_ORDER",
    "Export",
    "Fabric",
    "Islands",
    "Layout",
    "Leaf",
    "Mesh",
    "NodeRow",
    "Parallelism",
    "Pattern",
    "Reach",
    "Wish",
    "arrange",
    "cautions",
    "even_islands",
    "export",
    "islands_of_groups",
    "measured_fabric",
    "near_first",
    "node_order",
    "parse_fabric",
    "parse_order",
    "patterns",
    "place",
    "variables",
]
