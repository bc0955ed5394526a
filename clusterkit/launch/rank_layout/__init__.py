"""Tensor, context, expert, data and pipeline parallel ranks: which sits where, near to whom."""

from clusterkit.launch.rank_layout.exports import Export, export, variables
from clusterkit.launch.rank_layout.fabric import Fabric, Leaf, measured_fabric, parse_fabric
from clusterkit.launch.rank_layout.parallelism import (
    DIMENSIONS,
    MEGATRON_ORDER,
    LayoutRequest,
    Mesh,
    Parallelism,
    arrange,
    parse_order,
)
from clusterkit.launch.rank_layout.placement import (
    Islands,
    Layout,
    NodeRow,
    Pattern,
    Reach,
    even_islands,
    islands_of_groups,
    near_first,
    node_order,
    patterns,
    place,
)
from clusterkit.launch.rank_layout.warnings import cautions

__all__ = [
    "DIMENSIONS",
    "MEGATRON_ORDER",
    "Export",
    "Fabric",
    "Islands",
    "Layout",
    "LayoutRequest",
    "Leaf",
    "Mesh",
    "NodeRow",
    "Parallelism",
    "Pattern",
    "Reach",
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
