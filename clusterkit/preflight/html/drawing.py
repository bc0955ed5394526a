"""A topology as a drawing: NUMA nodes as boxes, GPUs in them, NICs above, NVLink below.

Only links that matter are lines: a NIC to the GPUs on its PCIe switches, NVLink or a PCIe switch
between GPUs. Whatever passes the CPU has no line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from clusterkit.preflight.topology.analysis import islands, pcie_groups
from clusterkit.preflight.topology.matrix import Topology, closeness

_NEAR = closeness("PXB")
_FAR = closeness("SYS")
_SLOT, _GPU_WIDTH, _NIC_WIDTH = 86, 68, 78
_PAD, _GAP = 14, 18
_TITLE = 34
_NIC_TOP, _NIC_HEIGHT = -88, 38
_GPU_TOP, _GPU_HEIGHT = 0, 44
"""Heights count from the top of the GPUs; where there is no NIC, nothing is above them."""
_BELOW = _GPU_TOP + _GPU_HEIGHT
_NICS_STACKED = 3
"""NICs that are near no GPU stand below each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle with up to two lines of text in its middle."""

    kind: str
    """Class of the style sheet: numa, gpu, nic, nvlink or pcie."""
    x: float
    y: float
    width: float
    height: float
    text: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A path of SVG."""

    kind: str
    """Class of the style sheet: near, pxb, nvlink or pcie."""
    path: str
    width: float = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """What stands where, in pixels."""

    top: float
    width: float
    bottom: float
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]


def draw(topology: Topology) -> Drawing:
    """Return the drawing of one machine."""
    groups = _groups(topology)
    boxes: list[Box] = []
    gpu_x: dict[int, float] = {}
    nic_x: dict[int, float] = {}
    x = 1.0
    top = (_NIC_TOP if topology.nics else _GPU_TOP) - _TITLE
    bottom: float = _BELOW + _PAD
    for title, gpus, nics in groups:
        across = max(len(gpus), len(nics)) if gpus else -(-len(nics) // _NICS_STACKED)
        width = across * _SLOT + 2 * _PAD
        boxes.append(Box(kind="numa", x=x, y=top, width=width, height=bottom - top, text=title))
        if gpus:
            gpu_x |= _spread(gpus, x + _PAD, width - 2 * _PAD)
            nic_x |= _spread(nics, x + _PAD, width - 2 * _PAD)
        else:
            boxes += _stacked(topology, nics, x + _PAD)
        x += width + _GAP
    gpu = (_GPU_WIDTH, _GPU_HEIGHT)
    boxes += [_box("gpu", at, _GPU_TOP, gpu, topology.gpus[index]) for index, at in gpu_x.items()]
    boxes += [_nic_box(topology, index, middle) for index, middle in nic_x.items()]
    lines = list(_nic_lines(topology, gpu_x, nic_x))
    for part in _joined(topology, gpu_x, bottom):
        boxes += part.boxes
        lines += part.lines
        bottom = max(bottom, part.bottom)
    return Drawing(
        top=top - 1,
        width=x - _GAP + 1,
        bottom=bottom + 2,
        boxes=tuple(boxes),
        lines=tuple(lines),
    )


def _groups(topology: Topology) -> list[tuple[str, list[int], list[int]]]:
    """Return title, GPUs and NICs of each NUMA node; NICs that are near nothing come last."""
    numa = [affinity.numa for affinity in topology.affinity]
    homes = [_home(topology, nic, numa) for nic in range(len(topology.nics))]
    found = []
    for node in sorted(set(numa), key=_numbered):
        gpus = [index for index, of in enumerate(numa) if of == node]
        nics = [nic for nic, home in enumerate(homes) if home == (node,)]
        nics.sort(key=lambda nic: _pull(topology, nic, gpus))
        found.append((f"NUMA {node}" if node else "NUMA node not known", gpus, nics))
    if lost := [nic for nic, home in enumerate(homes) if home is None]:
        found.append(("no GPU near", [], lost))
    return found


def _home(topology: Topology, nic: int, numa: Sequence[str | None]) -> tuple[str | None] | None:
    """Return the NUMA node of the nearest GPU, in a tuple as it may be None; None: none is near."""
    best = min(range(len(numa)), key=lambda gpu: closeness(topology.nic_link(gpu, nic)))
    return None if closeness(topology.nic_link(best, nic)) >= _FAR else (numa[best],)


def _pull(topology: Topology, nic: int, gpus: Sequence[int]) -> float:
    """Return the place among `gpus` to which a NIC is drawn, so that lines cross little."""
    links = [closeness(topology.nic_link(gpu, nic)) for gpu in gpus]
    nearest = [place for place, link in enumerate(links) if link == min(links)]
    return sum(nearest) / len(nearest)


def _numbered(node: str | None) -> tuple[bool, int, str]:
    text = node or ""
    return node is None, int(text) if text.isdecimal() else 0, text


def _spread(items: Sequence[int], left: float, width: float) -> dict[int, float]:
    return {item: left + width * (n + 0.5) / len(items) for n, item in enumerate(items)}


def _box(
    kind: str, middle: float, y: float, size: tuple[float, float], text: str, note: str = ""
) -> Box:
    width, height = size
    return Box(
        kind=kind, x=middle - width / 2, y=y, width=width, height=height, text=text, note=note
    )


def _stacked(topology: Topology, nics: Sequence[int], left: float) -> Iterator[Box]:
    for place, nic in enumerate(nics):
        column, row = divmod(place, _NICS_STACKED)
        middle = left + (column + 0.5) * _SLOT
        yield _nic_box(topology, nic, middle, top=_NIC_TOP + row * (_NIC_HEIGHT + 8))


def _nic_box(topology: Topology, index: int, middle: float, top: float = _NIC_TOP) -> Box:
    nic = topology.nics[index]
    links = [topology.nic_link(gpu, index) for gpu in range(len(topology.gpus))]
    nearest = min(links, key=closeness)
    return _box("nic", middle, top, (_NIC_WIDTH, _NIC_HEIGHT), nic.device or nic.name, nearest)


def _nic_lines(
    topology: Topology, gpu_x: dict[int, float], nic_x: dict[int, float]
) -> Iterator[Line]:
    for nic, nic_at in nic_x.items():
        best = min(closeness(topology.nic_link(gpu, nic)) for gpu in gpu_x)
        for gpu, gpu_at in gpu_x.items():
            link = topology.nic_link(gpu, nic)
            if closeness(link) == best <= _NEAR:
                yield Line(
                    kind="near" if link == "PIX" else "pxb",
                    path=f"M{nic_at:g} {_NIC_TOP + _NIC_HEIGHT}L{gpu_at:g} {_GPU_TOP}",
                )


def _joined(topology: Topology, gpu_x: dict[int, float], top: float) -> Iterator[Drawing]:
    """Yield what is below the GPUs: one part for each group that NVLink or a switch joins."""
    places = {topology.gpus[index]: at for index, at in gpu_x.items()}
    found = islands(topology)
    in_island = {gpu for island in found for gpu in island.gpus}
    for island in found:
        members = [places[gpu] for gpu in island.gpus]
        if island.all_to_all and len(island.links) == 1 and len(members) > 2:
            text = f"NVLink {island.links[0]}, every pair of {len(members)} GPUs"
            yield (part := _bus("nvlink", members, text, top))
            top = part.bottom
        else:
            yield _arcs(topology, gpu_x, [topology.gpus.index(gpu) for gpu in island.gpus], top)
    for group in pcie_groups(topology):
        if len(group) > 1 and not in_island & set(group):
            yield _bus("pcie", [places[gpu] for gpu in group], "PCIe switch", top)


def _bus(kind: str, members: Sequence[float], text: str, top: float) -> Drawing:
    left, right = min(members) - _GPU_WIDTH / 2, max(members) + _GPU_WIDTH / 2
    y = top + 10
    bar = Box(kind=kind, x=left, y=y, width=right - left, height=22, text=text)
    stubs = tuple(
        Line(kind=kind, path=f"M{at:g} {_BELOW}V{y:g}", width=3) for at in sorted(members)
    )
    return Drawing(top=top, width=right, bottom=y + 24, boxes=(bar,), lines=stubs)


def _arcs(
    topology: Topology, gpu_x: dict[int, float], members: Sequence[int], top: float
) -> Drawing:
    """Draw each pair that has NVLink of its own, thicker where there is more of it."""
    links = {
        (a, b): topology.cells[a][b]
        for a, b in combinations(members, 2)
        if closeness(topology.cells[a][b]) == 0
    }
    classes = sorted(set(links.values()), key=lambda link: int(link.removeprefix("NV")))
    lines, deepest = [], 0.0
    for (a, b), link in links.items():
        left, right = sorted((gpu_x[a], gpu_x[b]))
        depth = 26 + (right - left) * 0.22
        deepest = max(deepest, depth)
        path = f"M{left:g} {_BELOW}C{left:g} {_BELOW + depth:g} {right:g} {_BELOW + depth:g}"
        thickness = 1.5 + 2.5 * (classes.index(link) / max(1, len(classes) - 1))
        lines.append(Line(kind="nvlink", path=f"{path} {right:g} {_BELOW}", width=thickness))
    places = [gpu_x[index] for index in members]
    y = max(top, _BELOW + deepest * 0.75) + 8
    text = f"NVLink {' / '.join(reversed(classes))}" + (
        ", thicker is more" if len(classes) > 1 else ""
    )
    width = max(max(places) - min(places) + _GPU_WIDTH, 6.6 * len(text) + 16)
    middle = (max(places) + min(places)) / 2
    label = _box("label", middle, y, (width, 20), text)
    return Drawing(top=top, width=width, bottom=y + 22, boxes=(label,), lines=tuple(lines))
