"""A topology beside those of other nodes, and beside NCCL_IB_HCA: who differs, what is left out.

NCCL reads `[^][=]name[:port],...`: `^` turns the list into what to leave out, `=` asks for exact
names; without it each name is a prefix, so that mlx5_1 takes mlx5_10 too (NCCL source:
src/misc/utils.cc `matchIfList`, src/transport/net_ib.cc).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from clusterkit.preflight.topology.analysis import far_nics, recommended_nics
from clusterkit.preflight.topology.matrix import Topology, nvlinks

Shape = tuple[str, ...]
"""Names of the columns."""
Typical = Mapping[tuple[int, int], str]
"""Two indices of columns to the link that most nodes have there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A pair of devices whose link is not what most nodes have."""

    a: str
    b: str
    has: str
    most: str

    @property
    def nvlink(self) -> bool:
        """Whether NVLink comes into it; else it is about PCIe."""
        return nvlinks(self.has) > 0 or nvlinks(self.most) > 0


def common_shape(topologies: Sequence[Topology]) -> Shape | None:
    """Return the columns that more than half of the nodes have; None where there are none."""
    ranked = Counter(topology.names for topology in topologies).most_common(1)
    return ranked[0][0] if ranked and ranked[0][1] * 2 > len(topologies) else None


def typical(topologies: Sequence[Topology]) -> Typical:
    """Return, for every pair of columns, the link that more than half of the nodes have.

    All have the same columns. Pairs without such a link are left out.
    """
    counts = Counter(topology.cells for topology in topologies)
    total = sum(counts.values())
    size = len(topologies[0].names) if topologies else 0
    found: dict[tuple[int, int], str] = {}
    for a in range(size):
        for b in range(a + 1, size):
            votes: Counter[str] = Counter()
            for cells, n in counts.items():
                votes[cells[a][b]] += n
            link, n = votes.most_common(1)[0]
            if n * 2 > total:
                found[a, b] = link
    return found


def differences(topology: Topology, most: Typical) -> tuple[Difference, ...]:
    """Return the pairs whose link differs from that of most nodes with the same columns."""
    names = topology.names
    return tuple(
        Difference(a=names[a], b=names[b], has=topology.cells[a][b], most=link)
        for (a, b), link in most.items()
        if topology.cells[a][b] != link
    )


_WHOLE = 4
"""A job that sees fewer GPUs may share the machine: NICs near none of them may be near others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HcaFilter:
    """A value of NCCL_IB_HCA."""

    names: tuple[tuple[str, int | None], ...]
    """Name or prefix, and the port; None for all ports."""
    exact: bool = False
    exclude: bool = False

    def takes(self, device: str, port: int | None = None) -> bool:
        """Tell whether NCCL uses this device; None asks for any port of it."""
        listed = any(
            (device == name if self.exact else device.startswith(name))
            and (port is None or wanted in {None, port})
            for name, wanted in self.names
        )
        return listed != self.exclude if self.names else True


def parse_hca_filter(value: str) -> HcaFilter:
    """Read a value as NCCL does: `^` before `=`, empty names dropped, no blank trimmed."""
    exclude = value.startswith("^")
    rest = value[1:] if exclude else value
    exact = rest.startswith("=")
    rest = rest[1:] if exact else rest
    names = []
    for word in filter(None, rest.split(",")):
        name, _, port = word.partition(":")
        names.append((name, int(port) if re.fullmatch(r"[0-9]{1,3}", port) else None))
    return HcaFilter(names=tuple(names), exact=exact, exclude=exclude)


def compare_hca(
    topology: Topology, value: str, *, down: frozenset[str] = frozenset()
) -> Iterator[str]:
    """Yield what is odd about a value of NCCL_IB_HCA on a machine with this topology.

    Devices that are `down` are not missed: NCCL uses ports in state Active only.
    """
    devices = [nic.device for nic in topology.nics if nic.device is not None]
    if not devices or len(devices) != len(topology.nics):
        return
    wanted = parse_hca_filter(value)
    taken = [device for device in devices if wanted.takes(device)]
    if not taken:
        yield f"NCCL_IB_HCA={value} takes none of the NICs"
        return
    far = [device for device in far_nics(topology) if device in taken]
    if len(topology.gpus) < _WHOLE:
        far = []
    if far:
        named = {name for name, _ in wanted.names}
        surprise = not (wanted.exact or wanted.exclude) and not named & set(far)
        how = " (its names are prefixes)" if surprise else ""
        yield f"NCCL_IB_HCA takes {','.join(far)}, near no GPU{how}"
    recommended = recommended_nics(topology)
    left_out = [device for device in recommended if device not in taken and device not in down]
    if left_out:
        yield f"NCCL_IB_HCA leaves out {','.join(left_out)}, near a GPU"
