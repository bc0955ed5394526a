"""State of every NVIDIA GPU of a node, by `nvidia-smi --query-gpu` or, failing that, `-q`.

The slowdown temperature and (before driver 570) the row remapper are in `-q` only, so two of its
sections come along. Its text is a tree by indentation, of which sections moved and were renamed
over the years (Clocks Throttle Reasons became Clocks Event Reasons with 535, Power Readings became
GPU Power Readings); what is missing is not reported. Cells that say `[N/A]`, `N/A` or
`[Not Supported]` are None: not supported, never 0.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from clusterkit.core.data import read_snippet, read_table
from clusterkit.preflight.probes.gpu.nvidia import cell, mask, number, nvidia_probe, switch, whole
from clusterkit.transport.probe import Unparsed

SLOWDOWN = "slowdown_temp"
"""Column of ours: the temperature at which clocks are cut; `--query-gpu` has none for it."""
SLOWDOWN_TLIMIT = "slowdown_tlimit"
"""Column of ours: the T.Limit margin at which clocks are cut, 0 or below (Hopper and later)."""

_MARK = "NVSMI LOG"
# A literal beginning is found ten times as fast as `^` with MULTILINE.
_GPU_HEAD = re.compile(r"\nGPU (.*)")
_PATHS = {row["path"]: row["column"] for row in read_table(__file__, "nvidia_query.tsv")}
_REASONS = {row["reason"]: int(row["bit"], 16) for row in read_table(__file__, "clock_reasons.tsv")}
_ECC = "ECC Errors"
_REASON_SECTIONS = ("Clocks Event Reasons", "Clocks Throttle Reasons")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One `nvidia-smi -q`."""

    driver: str | None
    cuda: str | None
    rows: tuple[dict[str, str], ...]
    """One a GPU, in order, by column of `--query-gpu`; `index` is the place in that order."""


def read_query(text: str) -> Query:
    """Read `nvidia-smi -q`, whole or of some sections (`-d`).

    Raises:
        Unparsed: it is none, or has not as many GPUs as it says are attached.
    """
    _, found, body = text.partition(_MARK)
    if not found:
        raise Unparsed("no NVSMI LOG")
    above, *blocks = _GPU_HEAD.split("\n" + body.partition("\n")[2])
    head = _tree(above)
    attached, count = head.get("Attached GPUs"), len(blocks) // 2
    if attached is None or whole(attached) != count:
        raise Unparsed(f"{count} GPUs in the text, {attached or 'none'} attached")
    by_gpu = zip(blocks[::2], blocks[1::2], strict=True)
    return Query(
        driver=cell(head.get("Driver Version", "")),
        cuda=cell(head.get("CUDA Version", "")),
        rows=tuple(
            {"index": str(index), "pci.bus_id": bus_id.strip(), **_row(block)}
            for index, (bus_id, block) in enumerate(by_gpu)
        ),
    )


def _tree(text: str) -> dict[str, str]:
    """Return path -> value; the heading of a section has an empty value."""
    values: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in text.splitlines():
        name = line.strip()
        if not name:
            continue
        indent = len(line) - len(line.lstrip())
        while above and above[-1][0] >= indent:
            above.pop()
        key, colon, value = name.partition(" : ")
        key = key.rstrip()
        path = f"{above[-1][1]}/{key}" if above else key
        above.append((indent, path))
        values.setdefault(path, value.strip() if colon else "")
    return values


@lru_cache(maxsize=1 << 14)
def _row(text: str) -> Mapping[str, str]:
    """Read what stands below one GPU; thousands of them say the same."""
    block = _tree(text)
    row: dict[str, str] = {}
    for path, value in block.items():
        column = _PATHS.get(path)
        if column is not None:
            row.setdefault(column, value)
    row.update(_reasons(block))
    row.update(_uncorrected(block))
    if "gpu_recovery_action" not in row and "reset_required" in row:
        required = switch(cell(row["reset_required"]))
        row["gpu_recovery_action"] = {True: "Reset", False: "None", None: "N/A"}[required]
    return MappingProxyType(row)


def _reasons(block: dict[str, str]) -> dict[str, str]:
    for section in _REASON_SECTIONS:
        if section not in block:
            continue
        reasons = {r: block[f"{section}/{r}"] for r in _REASONS if f"{section}/{r}" in block}
        mask = sum(_REASONS[r] for r, value in reasons.items() if switch(cell(value)))
        return {"clocks_event_reasons.active": f"{mask:#x}"} if reasons else {}
    return {}


def _uncorrected(block: dict[str, str]) -> dict[str, str]:
    """Add up uncorrectable errors by memory; older drivers print a total of double-bit ones."""
    if _ECC not in block:
        return {}
    columns = {}
    for kind in ("Volatile", "Aggregate"):
        prefix = f"{_ECC}/{kind}/"
        parts = [
            cell(value)
            for path, value in block.items()
            if path.startswith(prefix)
            and ("Uncorrectable" in path or path == f"{prefix}Double Bit/Total")
        ]
        counted = [whole(part) or 0 for part in parts if part is not None]
        if counted:
            columns[f"ecc.errors.uncorrected.{kind.lower()}.total"] = str(sum(counted))
    return columns


_OLD_NAMES = {"clocks_throttle_reasons.active": "clocks_event_reasons.active"}


def ask_for(columns: Iterable[str]) -> str:
    """Return a snippet that puts those of `columns` which the driver knows into `$ask`."""
    return read_snippet("nvidia_columns", columns=" ".join(columns))


def read_gpu_table(text: str, *, needed: Collection[str]) -> tuple[dict[str, str], ...]:
    """Read `--format=csv` with its header: one row per GPU, by column, under today's names.

    Raises:
        Unparsed: it is no such table, lacks a column that is `needed`, or has no row.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        header, *rows = csv.reader(lines, skipinitialspace=True, strict=True)
    except (csv.Error, ValueError) as error:
        raise Unparsed(f"no csv table: {error}") from None
    names = _names(tuple(header))
    if not set(needed) <= set(names):
        raise Unparsed(f"no header of a GPU query: {lines[0][:60]!r}")
    if not rows or any(len(row) != len(names) for row in rows):
        raise Unparsed("a row has not as many cells as the header")
    return tuple(dict(zip(names, row, strict=True)) for row in rows)


@lru_cache(maxsize=1 << 10)
def _names(header: tuple[str, ...]) -> tuple[str, ...]:
    # Units stand in the header, in brackets: "memory.total [MiB]".
    names = (name.strip().split(" [", 1)[0] for name in header)
    return tuple(_OLD_NAMES.get(name, name) for name in names)


class _Numbered(Protocol):
    @property
    def index(self) -> int: ...


_Listed = TypeVar("_Listed", bound=_Numbered)
_NEEDED = frozenset({"index", "name", "pci.bus_id"})


def _busy(text: str | None) -> bool | None:
    percent = number(text)
    return None if percent is None else percent > 0


def column(
    name: str, read: Callable[[str | None], Any] = lambda text: text, *, default: Any = MISSING
) -> Any:
    """Return a field that is a column of `--query-gpu`, and how a cell of it is read."""
    return field(default=default, metadata={"column": name, "read": read})


def columns_of(kind: type) -> tuple[str, ...]:
    """Return the columns that the fields of a record are, in order."""
    return tuple(f.metadata["column"] for f in fields(kind) if f.metadata)


def read_row(kind: type, row: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of a record that are columns, by name.

    Raises:
        Unparsed: a cell is not what its column holds, or nothing says which GPU it is.
    """
    cells = {
        f.name: f.metadata["read"](cell(row.get(f.metadata["column"], "")))
        for f in fields(kind)
        if f.metadata
    }
    if None in (cells["index"], cells["name"], cells.get("bus_id", "")):
        raise Unparsed("a GPU without index, name or bus id")
    return cells


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One NVIDIA GPU; None is "the driver does not say"."""

    index: int = column("index", whole)
    name: str = column("name")
    bus_id: str = column("pci.bus_id")
    """Such as `00000000:9B:00.0`."""
    vbios: str | None = column("vbios_version")
    persistence: bool | None = column("persistence_mode", switch)
    mig: bool | None = column("mig.mode.current", switch)
    recovery_action: str | None = column("gpu_recovery_action")
    """The driver's own verdict: `None`, `Reset`, `Reboot`, `Drain P2P`, `Drain and Reset`."""
    clock_reasons: int | None = column("clocks_event_reasons.active", mask)
    """Bit mask of nvmlClocksEventReason*."""
    temperature_c: float | None = column("temperature.gpu", number)
    margin_c: float | None
    """To the slowdown; 0 or less: clocks are being cut."""
    power_limit_w: float | None = column("enforced.power.limit", number)
    default_power_limit_w: float | None = column("power.default_limit", number)
    pcie_gen: int | None = column("pcie.link.gen.current", whole)
    pcie_gen_max: int | None = column("pcie.link.gen.max", whole)
    pcie_width: int | None = column("pcie.link.width.current", whole)
    pcie_width_max: int | None = column("pcie.link.width.max", whole)
    busy: bool | None = column("utilization.gpu", _busy)
    ecc: bool | None = column("ecc.mode.current", switch)
    uncorrected: int | None = column("ecc.errors.uncorrected.volatile.total", whole)
    """ECC errors since the driver was loaded."""
    uncorrected_ever: int | None = column("ecc.errors.uncorrected.aggregate.total", whole)
    retired_single_bit: int | None = column("retired_pages.single_bit_ecc.count", whole)
    retired_double_bit: int | None = column("retired_pages.double_bit.count", whole)
    retirement_pending: bool | None = column("retired_pages.pending", switch)
    remapped_uncorrectable: int | None = column("remapped_rows.uncorrectable", whole)
    remap_pending: bool | None = column("remapped_rows.pending", switch)
    remap_failed: bool | None = column("remapped_rows.failure", switch)
    fabric_state: str | None = column("fabric.state")
    fabric_status: str | None = column("fabric.status")
    fabric_domain: str | None = column("fabric.clusterUuid")
    """Of a rack whose nodes NVLink joins; nothing but zeros on a node by itself."""
    fabric_clique: str | None = column("fabric.cliqueId")


_COLUMNS = (
    *columns_of(Gpu),
    *("driver_version", "clocks_throttle_reasons.active", "temperature.gpu.tlimit"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaGpus:
    """The GPUs of a node by index."""

    driver: str | None
    cuda: str | None
    """The newest CUDA version that the driver can run."""
    gpus: tuple[Gpu, ...]


def parse(text: str) -> NvidiaGpus:
    """Read what the snippet prints: a csv table, an `nvidia-smi -q`, or one after the other."""
    at = text.find("==============NVSMI LOG")
    table = text if at < 0 else text[:at]
    query = read_query(text) if _MARK in text else None
    rows = read_gpu_table(table, needed=_NEEDED) if table.strip() else ()
    if not rows and query is None:
        raise Unparsed("neither a csv table nor an NVSMI LOG")
    merged = _merge(rows, query) if rows else query.rows if query else ()
    driver = cell(rows[0].get("driver_version", "")) if rows else query.driver if query else None
    gpus = by_index(_gpu(tuple(row.items())) for row in merged)
    return NvidiaGpus(driver=driver, cuda=query.cuda if query else None, gpus=gpus)


def by_index(gpus: Iterable[_Listed]) -> tuple[_Listed, ...]:
    """Return GPUs in the order of their numbers; raises `Unparsed` where two have the same."""
    listed = tuple(sorted(gpus, key=lambda gpu: gpu.index))
    if len({gpu.index for gpu in listed}) != len(listed):
        raise Unparsed("a GPU is listed twice")
    return listed


def _number_in(row: Mapping[str, str], column: str) -> float | None:
    """Return the figure of a column, None where the driver does not say; raises `Unparsed`."""
    return number(cell(row.get(column, "")))


def _merge(rows: tuple[dict[str, str], ...], query: Query | None) -> tuple[dict[str, str], ...]:
    """Add what only `-q` says to the rows of the table, GPU by GPU."""
    if query is None:
        return rows
    more = {row["pci.bus_id"].lower(): row for row in query.rows}
    return tuple(more.get(row["pci.bus_id"].strip().lower(), {}) | row for row in rows)


@lru_cache(maxsize=1 << 15)
def _gpu(cells: tuple[tuple[str, str], ...]) -> Gpu:
    """Read one GPU; those of one place in many nodes often say the same."""
    row = dict(cells)
    return Gpu(**read_row(Gpu, row), margin_c=_margin(row))


def _margin(row: Mapping[str, str]) -> float | None:
    """Return degrees left to the slowdown, from T.Limit (Hopper on) or from its temperature."""
    left = _number_in(row, "temperature.gpu.tlimit")
    if left is not None:
        return left - (_number_in(row, SLOWDOWN_TLIMIT) or 0.0)
    now, limit = _number_in(row, "temperature.gpu"), _number_in(row, SLOWDOWN)
    return None if now is None or limit is None else limit - now


PROBE = nvidia_probe(
    "nvidia-gpus",
    ask_for(_COLUMNS) + read_snippet("nvidia_gpus"),
    parse,
    exit_codes=(0, 14, 15),
)
