"""State of every NVIDIA GPU of a node, by `nvidia-smi --query-gpu` or, failing that, `-q`.

The slowdown temperature and (before driver 570) the row remapper are in `-q` only, so two of its
sections come along. Cells that say `[N/A]`, `N/A` or `[Not Supported]` are None: not supported,
never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from clusterkit.preflight.probes.gpu.nvidia import (
    LANE,
    TIMEOUT_S,
    cell,
    mask,
    number,
    nvidia,
    switch,
    whole,
)
from clusterkit.preflight.probes.gpu.nvidia_query import (
    SLOWDOWN,
    SLOWDOWN_TLIMIT,
    Query,
    is_query,
    read_query,
)
from clusterkit.preflight.probes.gpu.nvidia_table import known_columns, read_table
from clusterkit.transport.probe import Probe, Unparsed

_COLUMNS = (
    "index",
    "name",
    "pci.bus_id",
    "driver_version",
    "vbios_version",
    "persistence_mode",
    "mig.mode.current",
    "gpu_recovery_action",
    "clocks_event_reasons.active",
    "clocks_throttle_reasons.active",
    "temperature.gpu",
    "temperature.gpu.tlimit",
    "enforced.power.limit",
    "power.default_limit",
    "pcie.link.gen.current",
    "pcie.link.gen.max",
    "pcie.link.width.current",
    "pcie.link.width.max",
    "utilization.gpu",
    "memory.total",
    "memory.used",
    "ecc.mode.current",
    "ecc.errors.uncorrected.volatile.total",
    "ecc.errors.uncorrected.aggregate.total",
    "retired_pages.single_bit_ecc.count",
    "retired_pages.double_bit.count",
    "retired_pages.pending",
    "remapped_rows.uncorrectable",
    "remapped_rows.pending",
    "remapped_rows.failure",
    "fabric.state",
    "fabric.status",
)


class _Numbered(Protocol):
    @property
    def index(self) -> int: ...


_Listed = TypeVar("_Listed", bound=_Numbered)
_NEEDED = frozenset({"index", "name", "pci.bus_id"})

# nvidia-smi says on standard output, with 14 or 15, that an infoROM is corrupt or a GPU is lost;
# what it printed of the others counts all the same.
_SNIPPET = f"""{known_columns(_COLUMNS)}
if [ -n "$ask" ] && said=$(nvidia-smi --query-gpu="$ask" --format=csv)
then printf '%s\\n' "$said"
more=$(nvidia-smi -q -d TEMPERATURE,ROW_REMAPPER 2>/dev/null) ||
more=$(nvidia-smi -q -d TEMPERATURE 2>/dev/null) || exit 0
printf '%s\\n' "$more"
exit 0
fi
nvidia-smi -q
c=$?
case $c in 0 | 14 | 15) exit "$c" ;; esac
broken
exit "$c"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One NVIDIA GPU; None is "the driver does not say"."""

    index: int
    name: str
    bus_id: str
    """Such as `00000000:9B:00.0`."""
    vbios: str | None
    persistence: bool | None
    mig: bool | None
    recovery_action: str | None
    """The driver's own verdict: `None`, `Reset`, `Reboot`, `Drain P2P`, `Drain and Reset`."""
    clock_reasons: int | None
    """Bit mask of nvmlClocksEventReason*."""
    temperature_c: float | None
    margin_c: float | None
    """To the slowdown; 0 or less: clocks are being cut."""
    power_limit_w: float | None
    default_power_limit_w: float | None
    pcie_gen: int | None
    pcie_gen_max: int | None
    pcie_width: int | None
    pcie_width_max: int | None
    busy: bool | None
    memory_mib: float | None
    memory_used_mib: float | None
    ecc: bool | None
    uncorrected: int | None
    """ECC errors since the driver was loaded."""
    uncorrected_ever: int | None
    retired_single_bit: int | None
    retired_double_bit: int | None
    retirement_pending: bool | None
    remapped_uncorrectable: int | None
    remap_pending: bool | None
    remap_failed: bool | None
    fabric_state: str | None
    fabric_status: str | None


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
    rows = read_table(table, needed=_NEEDED) if table.strip() else ()
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


def common_cells(row: Mapping[str, str]) -> dict[str, Any]:
    """Return what every question about GPUs asks for, as arguments of its record."""
    index, name = whole(cell(row.get("index", ""))), cell(row.get("name", ""))
    if index is None or name is None:
        raise Unparsed("a GPU without index or name")
    return {
        "index": index,
        "name": name,
        "temperature_c": number_in(row, "temperature.gpu"),
        "power_limit_w": number_in(row, "enforced.power.limit"),
        "memory_mib": number_in(row, "memory.total"),
        "memory_used_mib": number_in(row, "memory.used"),
        "clock_reasons": mask(cell(row.get("clocks_event_reasons.active", ""))),
    }


def number_in(row: Mapping[str, str], column: str) -> float | None:
    """Return the figure of a column, None where the driver does not say; raises `Unparsed`."""
    return number(cell(row.get(column, "")))


def _merge(rows: tuple[dict[str, str], ...], query: Query | None) -> tuple[dict[str, str], ...]:
    """Add what only `-q` says to the rows of the table, GPU by GPU."""
    if query is None:
        return rows
    more = {row["pci.bus_id"].lower(): row for row in query.rows}
    merged = []
    for row in rows:
        extra = more.get(row["pci.bus_id"].strip().lower(), {})
        merged.append(extra | row)
    return tuple(merged)


@lru_cache(maxsize=1 << 15)
def _gpu(cells: tuple[tuple[str, str], ...]) -> Gpu:
    """Read one GPU; those of one place in many nodes often say the same."""
    row = dict(cells)

    def of(column: str) -> str | None:
        return cell(row.get(column, ""))

    bus_id, utilization = of("pci.bus_id"), number_in(row, "utilization.gpu")
    if bus_id is None:
        raise Unparsed("a GPU without bus id")
    return Gpu(
        **common_cells(row),
        bus_id=bus_id,
        vbios=of("vbios_version"),
        persistence=switch(of("persistence_mode")),
        mig=switch(of("mig.mode.current")),
        recovery_action=of("gpu_recovery_action"),
        margin_c=_margin(row),
        default_power_limit_w=number_in(row, "power.default_limit"),
        pcie_gen=whole(of("pcie.link.gen.current")),
        pcie_gen_max=whole(of("pcie.link.gen.max")),
        pcie_width=whole(of("pcie.link.width.current")),
        pcie_width_max=whole(of("pcie.link.width.max")),
        busy=None if utilization is None else utilization > 0,
        ecc=switch(of("ecc.mode.current")),
        uncorrected=whole(of("ecc.errors.uncorrected.volatile.total")),
        uncorrected_ever=whole(of("ecc.errors.uncorrected.aggregate.total")),
        retired_single_bit=whole(of("retired_pages.single_bit_ecc.count")),
        retired_double_bit=whole(of("retired_pages.double_bit.count")),
        retirement_pending=switch(of("retired_pages.pending")),
        remapped_uncorrectable=whole(of("remapped_rows.uncorrectable")),
        remap_pending=switch(of("remapped_rows.pending")),
        remap_failed=switch(of("remapped_rows.failure")),
        fabric_state=of("fabric.state"),
        fabric_status=of("fabric.status"),
    )


def _margin(row: Mapping[str, str]) -> float | None:
    """Return degrees left to the slowdown, from T.Limit (Hopper on) or from its temperature."""
    left = number_in(row, "temperature.gpu.tlimit")
    if left is not None:
        return left - (number_in(row, SLOWDOWN_TLIMIT) or 0.0)
    now, limit = number_in(row, "temperature.gpu"), number_in(row, SLOWDOWN)
    return None if now is None or limit is None else limit - now


PROBE = Probe(
    name="nvidia-gpus",
    command=nvidia(_SNIPPET),
    parse=parse,
    timeout_s=TIMEOUT_S,
    lane=LANE,
    exit_codes=frozenset({0, 14, 15}),
)
