"""What the NVIDIA GPUs of a node do at this moment: one short `nvidia-smi --query-gpu`."""

from __future__ import annotations

from clusterkit.observe.vitals.probes.gpu import GpusVitals, GpuVitals
from clusterkit.preflight.probes.gpu.nvidia import (
    LANE,
    TIMEOUT_S,
    cell,
    mask,
    number,
    nvidia,
    whole,
)
from clusterkit.preflight.probes.gpu.nvidia_table import known_columns, read_table
from clusterkit.transport.probe import Probe, Unparsed, first_line

_COLUMNS = (
    "index",
    "name",
    "utilization.gpu",
    "memory.used",
    "memory.total",
    "temperature.gpu",
    "power.draw",
    "enforced.power.limit",
    "clocks.current.sm",
    "clocks.max.sm",
    "clocks_event_reasons.active",
    "clocks_throttle_reasons.active",
)
_NEEDED = frozenset({"index", "name"})

_SNIPPET = f"""{known_columns(_COLUMNS)}
[ -n "$ask" ] || {{ broken; nvidia-smi >&2; exit 1; }}
said=$(nvidia-smi --query-gpu="$ask" --format=csv)
c=$?
case $c in 0 | 14 | 15) printf '%s\\n' "$said"; exit "$c" ;; esac
broken
printf '%s\\n' "$said" >&2
exit "$c"
"""
_LOST = "Unable to determine the device handle"
"""How a line begins in which nvidia-smi gives a GPU up; the others follow."""


def parse(text: str) -> GpusVitals:
    """Read the table, and what stands between its rows of GPUs that are lost."""
    lines = text.splitlines()
    trouble = [line for line in lines if line.startswith(_LOST)]
    table = "\n".join(line for line in lines if not line.startswith(_LOST))
    if trouble and not table.strip():
        return GpusVitals(gpus=(), trouble=first_line(trouble[0]))
    gpus = sorted(map(_gpu, read_table(table, needed=_NEEDED)), key=lambda gpu: gpu.index)
    if len({gpu.index for gpu in gpus}) != len(gpus):
        raise Unparsed("a GPU is listed twice")
    return GpusVitals(gpus=tuple(gpus), trouble=first_line(trouble[0]) if trouble else "")


def _gpu(row: dict[str, str]) -> GpuVitals:
    def of(column: str) -> str | None:
        return cell(row.get(column, ""))

    index, name = whole(of("index")), of("name")
    if index is None or name is None:
        raise Unparsed("a GPU without index or name")
    return GpuVitals(
        index=index,
        name=name,
        busy_percent=number(of("utilization.gpu")),
        memory_used_mib=number(of("memory.used")),
        memory_mib=number(of("memory.total")),
        temperature_c=number(of("temperature.gpu")),
        power_w=number(of("power.draw")),
        power_limit_w=number(of("enforced.power.limit")),
        clock_mhz=number(of("clocks.current.sm")),
        clock_max_mhz=number(of("clocks.max.sm")),
        clock_reasons=mask(of("clocks_event_reasons.active")),
    )


PROBE = Probe(
    name="vitals-nvidia",
    command=nvidia(_SNIPPET),
    parse=parse,
    timeout_s=TIMEOUT_S,
    lane=LANE,
    exit_codes=frozenset({0, 14, 15}),
)
