"""GPU: how NVIDIA GPUs are joined to each other, to their node, and to those of other nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import Found, machine_check, node_check
from clusterkit.preflight.checks.each_gpu import by_gpu, gpu_check, together
from clusterkit.preflight.checks.results import Result, advice, ok, skip, unknown
from clusterkit.preflight.checks.types import NodeFacts
from clusterkit.preflight.probes.gpu import nvidia_gpus, nvidia_links
from clusterkit.preflight.probes.gpu.nvidia_gpus import Gpu
from clusterkit.preflight.probes.host import names
from clusterkit.preflight.probes.host.names import Names
from clusterkit.transport.probe import Missing, PreflightJob


@gpu_check("GPU016", "gpu-pcie", "PCIe links have their full width")
def _pcie(gpu: Gpu) -> Result | None:
    if gpu.pcie_width is None or gpu.pcie_width_max is None:
        return skip("no PCIe link is told")
    if gpu.pcie_width < gpu.pcie_width_max:
        summary = f"PCIe x{gpu.pcie_width} of x{gpu.pcie_width_max}"
        return advice("GPU016", "width", gpu=gpu.index).fail(summary)
    slow = gpu.pcie_gen and gpu.pcie_gen_max and gpu.pcie_gen < gpu.pcie_gen_max
    # An idle GPU lowers its generation to save power, and raises it under load.
    if not (slow and gpu.busy):
        return None
    summary = f"PCIe generation {gpu.pcie_gen} of {gpu.pcie_gen_max} under load"
    return advice("GPU016", "generation", gpu=gpu.index).warn(summary)


# Links of boards that always have them (NVIDIA data sheets); a PCIe card may go without a bridge.
_LINKS = (
    (re.compile(r"V100-SXM"), 6),
    (re.compile(r"A100-SXM|A800-SXM"), 12),
    (re.compile(r"H100 80GB HBM3|H200(?! NVL)|\bG?B[23]00\b"), 18),
)


@node_check("GPU017", "gpu-nvlink", nvidia_links.NVLINK)
def _nvlink(gpus: tuple[nvidia_links.NvlinkGpu, ...]) -> Iterator[Result]:
    return by_gpu(((gpu.index, _links(gpu)) for gpu in gpus), ok("all NVLinks are up"))


def _links(gpu: nvidia_links.NvlinkGpu) -> Result | None:
    expected = next((links for name, links in _LINKS if name.search(gpu.name)), None)
    down = advice("GPU017", gpu=gpu.index)
    if gpu.state is nvidia_links.NvlinkState.MIG:
        return unknown("NVLink is not told in MIG mode")
    if gpu.state is nvidia_links.NvlinkState.ABSENT or (
        gpu.state is nvidia_links.NvlinkState.ALL_INACTIVE and not expected
    ):
        return skip("no NVLink, or no bridge on it")
    if gpu.state is nvidia_links.NvlinkState.ALL_INACTIVE:
        return down.fail("all NVLinks are down")
    if gpu.inactive:
        numbers = ",".join(str(number) for number in gpu.inactive)
        return down.fail(f"{len(gpu.inactive)} of {gpu.links} NVLinks down (link {numbers})")
    if expected is not None and gpu.links < expected:
        return down.fail(f"{gpu.links} NVLinks, a {gpu.name} has {expected}")
    return None


@gpu_check("GPU018", "gpu-fabric", "the NVLink fabric is ready")
def _fabric(gpu: Gpu) -> Result | None:
    if gpu.fabric_state is None:
        return skip("no NVLink fabric")
    if gpu.fabric_state == "Completed" and gpu.fabric_status in {None, "Success"}:
        return None
    status = f" ({gpu.fabric_status})" if gpu.fabric_status else ""
    return advice("GPU018").fail(f"fabric state is {gpu.fabric_state}{status}")


_ERRORS_PER_HOUR = 1.0
_MIN_ERRORS = 5
"""Fewer say nothing, however short ago the node was booted (imbue-ai/cluster-health: 5 in all)."""


@node_check("GPU026", "gpu-nvlink-errors", nvidia_links.NVLINK_ERRORS)
def _nvlink_errors(facts: nvidia_links.NvlinkErrorLog) -> Iterator[Result]:
    if all(gpu.links is None for gpu in facts.gpus):
        yield skip("no NVLink whose errors are counted")
        return
    bad = [(gpu.index, found) for gpu in facts.gpus if (found := _errors(gpu, facts.hours))]
    yield from together(bad)
    if not bad:
        counts = ((gpu.index, *link) for gpu in facts.gpus for link in gpu.links or ())
        seen = ", ".join(f"GPU {index} link {n}: {count}" for index, n, count in counts)
        yield ok("NVLinks gather no errors", seen)


def _errors(gpu: nvidia_links.NvlinkErrors, hours: float) -> Result | None:
    minimum = max(_MIN_ERRORS, _ERRORS_PER_HOUR * hours)
    bad = [(link, count) for link, count in gpu.links or () if count >= minimum]
    if not bad:
        return None
    counts = ", ".join(f"GPU {gpu.index} link {link}: {count}" for link, count in bad)
    summary = f"NVLink {','.join(str(link) for link, _ in bad)} gathers errors"
    return advice("GPU026", gpu=gpu.index).warn(summary, f"{counts} in {hours:.0f} h at most")


_MNNVL = "NCCL_MNNVL_ENABLE"


def no_nvlink_between(job: PreflightJob) -> str | None:
    """Return why a job uses no NVLink between its nodes."""
    if job.uses_gpus is False:
        return "the job uses no GPU"
    if job.env.get(_MNNVL) == "0":
        return f"{_MNNVL}=0: the job does without"
    return None if job.spans_nodes else "one node"


@machine_check(
    *("GPU029", "gpu-imex", nvidia_gpus.PROBE, nvidia_links.IMEX, names.PROBE),
    skip_if=no_nvlink_between,
)
def _imex(node: NodeFacts, job: PreflightJob) -> Found:
    if nvidia_links.clique_of(node.need(nvidia_gpus.PROBE)) is None:
        return skip("no NVLink between nodes")
    # Sites start it in Slurm's prolog, which a login by ssh does not run.
    early = job.kind == "slurm" and node.reach.via == "ssh"
    verdict = Verdict.WARN if early else Verdict.FAIL
    return [*_imex_faults(node.need(nvidia_links.IMEX), node, verdict)] or ok("IMEX is ready")


def _imex_faults(found: nvidia_links.Imex, node: NodeFacts, verdict: Verdict) -> Iterator[Result]:
    wrong, named = advice("GPU029"), node.of(names.PROBE)
    if found.channel != "open":
        how = "may not be opened" if found.channel == "denied" else "is missing"
        summary = f"the IMEX channel {how}: NCCL ends at its start"
        yield advice("GPU029", "channel").result(verdict, summary)
    if found.state and found.state.lower() not in {"ready", "active"}:
        yield wrong.result(verdict, f"IMEX is {found.state}")
    if not found.nodes:
        yield advice("GPU029", "nodes").result(verdict, "IMEX has no list of nodes")
    elif not isinstance(named, Missing) and not _lists(found.nodes, node.name, named):
        summary = "IMEX does not list the node itself"
        listed = f"{len(found.nodes)} listed: {' '.join(found.nodes[:8])}"
        yield advice("GPU029", "nodes").result(verdict, summary, listed)


def _lists(nodes: tuple[str, ...], name: str, named: Names) -> bool:
    """Tell whether a node is in a list; also where its own addresses are not all known."""
    unknown = not named.local or any(":" in listed for listed in nodes)
    return unknown or not {name, named.name, *named.own, *named.local}.isdisjoint(nodes)
