"""The matrix that `nvidia-smi topo -m`, `-mp` or `-p2p` prints, and how it is read.

What is printed has changed over the years: see docs/how-to/topology.md. A text that is not square,
not symmetric or holds an unknown class is refused: a guess would be worse than no answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

from clusterkit.core.text import ESCAPES

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


_TAIL = re.compile(r"\b(CPU Affinity|NUMA Affinity|GPU NUMA ID)\b")
_HEADER = re.compile(r"\s+GPU\d+(\s|$)")
_GPU = re.compile(r"GPU\d+")
_NIC = re.compile(r"[A-Za-z][A-Za-z_.-]*\d[A-Za-z0-9_.-]*")
_LEGEND = re.compile(r"\s*(NIC\d+):\s*(\S+)\s*")
_COMMAND = re.compile(r"\btopo\s+(-mp|-m|-p2p|--matrix_pci|--matrix|--p2pstatus)\b")
_VIEWS = {"-m": View.LINKS, "--matrix": View.LINKS, "-mp": View.PCIE, "--matrix_pci": View.PCIE}
_WORD = re.compile(r"\S+")
_TAB = 8
_UNKNOWN = frozenset({"", "N/A", "[N/A]"})
_GLUED = re.compile(r"((?:GPU|NIC)\d+)((?:GPU|NIC|mlx).+)")
_LEGEND_LINE = re.compile(r"^\s*(SYS|NODE|PHB|PXB|PIX|NV#) *= ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    cells: tuple[str, ...]
    tail: tuple[str, ...]


def parse_topology(text: str, *, view: View | None = None) -> Topology:
    """Return the matrix in `text`; `view` is what the command asked for, if that is known.

    Raises:
        NoMatrix: there is none, it is cut off, or it contradicts itself.
    """
    lines = [line.rstrip("\r") for line in ESCAPES.sub("", text).split("\n")]
    start = next((n for n, line in enumerate(lines) if _is_header(line)), None)
    if start is None:
        shown = next((line.strip() for line in lines if line.strip()), "")
        raise NoMatrix(f"it says {shown[:60]!r}" if shown else "it is empty")
    if any("ROCm System Management" in line for line in lines[:start]):
        raise NoMatrix("it is of rocm-smi, and only the matrix of nvidia-smi is read")
    names, tail = _header(lines[start])
    rows = list(_rows(lines[start + 1 :], names, tail))
    cells = _square(names, rows)
    gpus = tuple(name for name in names if _GPU.fullmatch(name))
    if names[: len(gpus)] != gpus:
        raise NoMatrix("the columns are not GPUs first, then NICs")
    rest = "\n".join(lines[start + 1 + len(rows) :])
    return Topology(
        gpus=gpus,
        nics=_nics(names[len(gpus) :], rest),
        cells=cells,
        affinity=tuple(_affinity(tail, row.tail) for row in rows[: len(gpus)]),
        view=_view(cells, "\n".join(lines[:start]), rest, requested=view),
    )


def _is_header(line: str) -> bool:
    # A row of `topo -p2p` starts with a blank too, but its second word is a cell.
    fields = line.split()
    return bool(_HEADER.match(line)) and not any(is_cell(field) for field in fields[1:2])


def _header(line: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    first = _TAIL.search(line)
    matrix, tail = (line[: first.start()], line[first.start() :]) if first else (line, "")
    names = tuple(matrix.split())
    odd = next((n for n in names if not _NIC.fullmatch(n) or is_cell(n)), None)
    if glued := next(filter(None, map(_GLUED.fullmatch, names)), None):
        raise NoMatrix(f"the columns {glued[1]} and {glued[2]} have run together")
    if odd is not None:
        raise NoMatrix(f"no GPU or NIC is called {odd[:20]!r}")
    if len(set(names)) != len(names):
        raise NoMatrix("two columns have the same name")
    if _TAIL.sub("", tail).strip():
        raise NoMatrix(f"unknown column {_TAIL.sub('', tail).strip()[:20]!r}")
    return names, tuple(_TAIL.findall(tail))


def _rows(lines: Sequence[str], names: tuple[str, ...], tail: tuple[str, ...]) -> Iterator[_Row]:
    """Yield one row for each name, or for each GPU; they follow the header."""
    for number, name in enumerate(names):
        line = lines[number] if number < len(lines) else ""
        row = _tabbed(line, names) if "\t" in line else _spaced(line, names)
        if row.name != name:
            if number and not _GPU.fullmatch(name) and row.name not in names:
                return  # the rows of the NICs were left out
            raise NoMatrix(f"the row of {name} is missing")
        cells = tuple(OLD_CLASSES.get(cell, cell) for cell in row.cells)
        for other, cell in zip(names, cells, strict=False):
            if not is_cell(cell):
                raise NoMatrix(f"unknown class {cell[:20]!r} between {name} and {other}")
        if len(row.cells) < len(names):
            raise NoMatrix(f"the row of {name} is cut off")
        yield _Row(row.name, cells, _without_extra_tab(row.tail, tail, name))


def _tabbed(line: str, names: tuple[str, ...]) -> _Row:
    name, *cells = (cell.strip() for cell in line.split("\t"))
    return _Row(name, tuple(cells[: len(names)]), tuple(cells[len(names) :]))


def _spaced(line: str, names: tuple[str, ...]) -> _Row:
    """Split a row whose tabs a terminal has turned into blanks.

    Cells of the matrix are never empty, so words are cells. Cells of the affinity may be: words
    say which is which only when there is one for each column; else their places do, since each tab
    led to the next multiple of 8.
    """
    fields = list(_WORD.finditer(line))
    head, rest = fields[: len(names) + 1], fields[len(names) + 1 :]
    texts = tuple(field.group() for field in head)
    tail: list[str] = []
    column = (head[-1].end() // _TAB + 1) * _TAB if head else 0
    for field in rest:
        tail += [""] * ((field.start() - column) // _TAB)
        tail.append(field.group())
        column = (field.end() // _TAB + 1) * _TAB
    return _Row(texts[0] if texts else "", texts[1:], tuple(tail))


def _without_extra_tab(cells: tuple[str, ...], tail: tuple[str, ...], name: str) -> tuple[str, ...]:
    """Return one cell for each column of `tail`; empty for what is missing.

    nvidia-smi prints two tabs before GPU NUMA ID, so one empty cell too many stands there.
    """
    filled = tuple(cell for cell in cells if cell)
    if len(filled) == len(tail):
        return filled
    if tail[-1:] == ("GPU NUMA ID",) and len(cells) == len(tail) + 1 and not cells[-2]:
        cells = (*cells[:-2], cells[-1])
    while len(cells) > len(tail) and not cells[-1]:
        cells = cells[:-1]
    if len(cells) > len(tail):
        raise NoMatrix(f"the row of {name} has more cells than there are columns")
    return cells + ("",) * (len(tail) - len(cells))


def _square(names: tuple[str, ...], rows: Sequence[_Row]) -> tuple[tuple[str, ...], ...]:
    cells = [row.cells for row in rows]
    for name in names[len(rows) :]:
        column = names.index(name)
        rest = tuple("X" if name == other else UNKNOWN for other in names[len(rows) :])
        cells.append((*(row.cells[column] for row in rows), *rest))
    for a, row in enumerate(cells):
        for b, cell in enumerate(row):
            if (cell == "X") != (a == b):
                raise NoMatrix(f"{cell} between {names[a]} and {names[b]}")
            if cell != cells[b][a]:
                raise NoMatrix(
                    f"not symmetric: {names[a]} to {names[b]} is {cell}, back is {cells[b][a]}"
                )
    return tuple(cells)


def _nics(names: tuple[str, ...], rest: str) -> tuple[Nic, ...]:
    legend = {match[1]: match[2] for line in rest.split("\n") if (match := _LEGEND.fullmatch(line))}
    if legend and (lacking := [n for n in names if n.startswith("NIC") and n not in legend]):
        raise NoMatrix(f"the NIC legend does not know {lacking[0]}")
    return tuple(
        Nic(name=name, device=legend.get(name) if re.fullmatch(r"NIC\d+", name) else name)
        for name in names
    )


def _affinity(columns: tuple[str, ...], cells: tuple[str, ...]) -> Affinity:
    known = {
        column: cell for column, cell in zip(columns, cells, strict=True) if cell not in _UNKNOWN
    }
    return Affinity(
        cpus=known.get("CPU Affinity"),
        numa=known.get("NUMA Affinity"),
        gpu_numa=known.get("GPU NUMA ID"),
    )


def _view(
    cells: tuple[tuple[str, ...], ...], before: str, rest: str, *, requested: View | None
) -> View | None:
    kinds = {cell for row in cells for cell in row} - {"X", UNKNOWN}
    legend = set(_LEGEND_LINE.findall(rest))
    if kinds & P2P_STATES:
        if kinds - P2P_STATES or requested not in {None, View.P2P}:
            raise NoMatrix("states of `topo -p2p` where link classes belong")
        return View.P2P
    if requested is View.P2P and kinds & {*PCIE_CLASSES}:
        raise NoMatrix("link classes where states of `topo -p2p` belong")
    if any(nvlinks(cell) for cell in kinds) or "NV#" in legend:
        return View.LINKS if requested is None else requested
    if legend.issuperset(PCIE_CLASSES):
        return View.PCIE  # the legend of `topo -m` continues with NV#
    if requested is not None:
        return requested
    typed = _COMMAND.findall(before)
    return _VIEWS.get(typed[-1]) if typed else None
