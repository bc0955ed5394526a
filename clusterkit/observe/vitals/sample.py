"""One reading of one node, out of what its probes printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clusterkit.core.findings import Verdict
from clusterkit.observe.vitals.probes import amd, nvidia
from clusterkit.observe.vitals.probes import host as vitals_host
from clusterkit.observe.vitals.probes.gpu import GpuVitals
from clusterkit.observe.vitals.probes.host_text import HostVitals
from clusterkit.transport.probe import Missing, Output, read_output


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSample:
    """One reading of a node."""

    host: HostVitals
    gpus: tuple[GpuVitals, ...] = ()
    gpu_trouble: str = ""
    """Why GPUs could not be read; empty where all were, and where there are none."""


def read_samples(outputs: Mapping[str, Output]) -> tuple[NodeSample, ...] | Missing:
    """Return the readings that one answer of a node holds: one, or two with `vitals_host.TWICE`.

    GPUs are read once an answer; both readings hold the same. Without an answer about the host
    there is none, and the reason is returned.
    """
    host = vitals_host.PROBE
    if vitals_host.TWICE.name in outputs:
        host = vitals_host.TWICE
    readings = read_output(host, outputs.get(host.name))
    if isinstance(readings, Missing):
        return readings
    gpus: list[GpuVitals] = []
    troubles: list[str] = []
    for probe in (nvidia.PROBE, amd.PROBE):
        found = read_output(probe, outputs.get(probe.name))
        if not isinstance(found, Missing):
            gpus += found.gpus
            troubles += [found.trouble] if found.trouble else []
        elif found.verdict is not Verdict.SKIP and probe.name in outputs:
            troubles.append(found.reason)
    return tuple(
        NodeSample(host=reading, gpus=tuple(gpus), gpu_trouble="; ".join(troubles))
        for reading in readings
    )
