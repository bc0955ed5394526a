"""What a topology matrix holds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

PCIE_CLASSES = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Nearest first; legend of `nvidia-smi topo -m`."""

OLD_CLASSES = {"SOC": "SYS"}
"""What drivers before 387 called a class."""

UNKNOWN = "?"
"""Between two NICs, where the matrix came without their rows."""

P2P_STATES = frozenset({"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"})
"""Legend of `nvidia-smi topo -p2p`."""

_NVLINK = re.compile(r"NV(\d+)")


class NoMatrix(ValueError):  # noqa: N818 - a state of a text, not a mistake of anyone
    """Raised for a text that is no topology matrix, or one that contradicts itself."""


class View(StrEnum):
    """Which of nvidia-smi's matrices it is."""

    LINKS = "topo -m"
    PCIE = "topo -mp"
    """PCIe only: NVLink is hidden behind the PCIe class of each pair."""
    P2P = "topo -p2p"
    """What the driver allows between two GPUs, no distances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """A network adapter of the matrix."""

    name: str
    """Name of its column, such as `NIC0` or `mlx5_0`."""
    device: str | None
    """Name of the RDMA device; None where the matrix came without its NIC legend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Affinity:
    """What a GPU is near to; None where the matrix does not say."""

    cpus: str | None = None
    """As printed: old drivers cut it at 12 characters, and a job sees only its own CPUs."""
    numa: str | None = None
    gpu_numa: str | None = None
    """The GPU's memory as a NUMA node of its own (GH200)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """A square, symmetric matrix of links between GPUs and NICs."""

    gpus: tuple[str, ...]
    nics: tuple[Nic, ...]
    cells: tuple[tuple[str, ...], ...]
    """Rows and columns are the GPUs, then the NICs."""
    affinity: tuple[Affinity, ...]
    """One for each GPU."""
    view: View | None
    """None where the text alone does not tell `topo -m` from `topo -mp`."""

    def gpu_pairs(self) -> Iterator[tuple[int, int, str]]:
        """Yield two indices of GPUs and their link, each pair once."""
        for a, b in combinations(range(len(self.gpus)), 2):
            yield a, b, self.cells[a][b]

    def nic_link(self, gpu: int, nic: int) -> str:
        """Return the link between two indices."""
        return self.cells[gpu][len(self.gpus) + nic]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return (*self.gpus, *(nic.name for nic in self.nics))


def nvlinks(cell: str) -> int:
    """Return the number of NVLinks of a cell; 0 where it is another class."""
    match = _NVLINK.fullmatch(cell)
    return int(match.group(1)) if match else 0


def closeness(cell: str) -> int:
    """Return the rank of a link class, nearest first: NVLink 0, PIX 1 ... SYS 5."""
    return 0 if nvlinks(cell) else 1 + PCIE_CLASSES.index(cell)


def is_cell(word: str) -> bool:
    """Tell whether `word` may stand in some topology matrix."""
    return word == "X" or word in PCIE_CLASSES or word in P2P_STATES or nvlinks(word) > 0
