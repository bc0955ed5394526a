"""State of every NVIDIA GPU of a node, by `nvidia-smi --query-gpu` or, failing that, `-q`.

The slowdown temperature and (before driver 570) the row remapper are in `-q` only, so two of its
sections come along. Cells that say `[N/A]`, `N/A` or `[Not Supported]` are None: not supported,
never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from clusterkit.core.data import read_snippet
from clusterkit.preflight.probes.gpu.nvidia import cell, mask, number, nvidia_probe, switch, whole
from clusterkit.preflight.probes.gpu.nvidia_query import (
    SLOWDOWN,
    SLOWDOWN_TLIMIT,
    Query,
    ask_for,
    is_query,
    read_gpu_table,
    read_query,
)
from clusterkit.transport.probe import Unparsed


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
    memory_mib: float | None = column("memory.total", number)
    memory_used_mib: float | None = column("memory.used", number)
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
    query = read_query(text) if is_query(text) else None
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
