"""The topology of a node: links between GPUs and NICs, as `nvidia-smi topo` prints them."""

from clusterkit.topology.analysis import (
    Island,
    Nearest,
    far_nics,
    islands,
    nearest_nics,
    nic_warning,
    numa_warning,
    nvlink_warnings,
    pcie_groups,
    recommended_nics,
    summary,
    through_cpu_warning,
    warnings,
)
from clusterkit.topology.compare import Difference, common_shape, differences, typical
from clusterkit.topology.hca import HcaFilter, compare_hca, parse_hca_filter
from clusterkit.topology.matrix import Affinity, Nic, NoMatrix, Topology, View, closeness, nvlinks
from clusterkit.topology.parse import parse_topology

__all__ = [
    "Affinity",
    "Difference",
    "HcaFilter",
    "Island",
    "Nearest",
    "Nic",
    "NoMatrix",
    "Topology",
    "View",
    "closeness",
    "common_shape",
    "compare_hca",
    "differences",
    "far_nics",
    "islands",
    "nearest_nics",
    "nic_warning",
    "numa_warning",
    "nvlink_warnings",
    "nvlinks",
    "parse_hca_filter",
    "parse_topology",
    "pcie_groups",
    "recommended_nics",
    "summary",
    "through_cpu_warning",
    "typical",
    "warnings",
]
