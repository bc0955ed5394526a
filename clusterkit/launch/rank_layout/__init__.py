"""Tensor, context, expert, data and pipeline parallel ranks: which sits where, near to whom."""

from clusterkit.launch.rank_layout.exports import Export, export, variables
from clusterkit.launch.rank_layout.fabric import Fabric, Leaf, parse_fabric
from clusterkit.launch.rank_layout.islands import Islands, even_islands, islands_of_groups
from clusterkit.launch.rank_layout.measured import measured_fabric
from clusterkit.launch.rank_layout.mesh import Mesh
from clusterkit.launch.rank_layout.parallelism import (
    DIMENSIONS,
    MEGATRON_ORDER,
    Parallelism,
    Wish,
    arrange,
    parse_order,
)
from clusterkit.launch.rank_layout.patterns import NodeRow, Pattern, patterns
from clusterkit.launch.rank_layout.placement import Layout, Reach, near_first, node_order, place
from clusterkit.launch.rank_layout.warnings import cautions

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
