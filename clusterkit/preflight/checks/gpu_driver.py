"""GPU: whether NVIDIA's driver runs, and shows the GPUs that the job needs, alike on all nodes."""

from __future__ import annotations

import re
import shlex
from collections import Counter

from clusterkit.core.errors import UserError
from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import (
    Part,
    known,
    machine_check,
    majority,
    node_check,
    same_check,
    uniform,
)
from clusterkit.preflight.checks.each_gpu import gpu_check
from clusterkit.preflight.checks.results import Result, Results, advice, missing, ok, skip
from clusterkit.preflight.checks.types import Evidence, NodeFacts, Tier, check
from clusterkit.preflight.probes.gpu import (
    amd_gpus,
    nvidia_gpus,
    nvidia_list,
    pci_gpus,
)
from clusterkit.preflight.probes.gpu.nvidia_gpus import Gpu, NvidiaGpus
from clusterkit.preflight.probes.gpu.nvidia_list import GpuProcess, NvidiaList
from clusterkit.preflight.probes.gpu.pci_gpus import NVIDIA
from clusterkit.transport.probe import Missing, PreflightJob

_NOT_FOUND = 127
_DRIVER_NOT_LOADED = 9
_LOST_DRIVER = Part(name="NVIDIA GPU", advice=advice("GPU001", "lost"))


@check("GPU001", "gpu-driver", nvidia_list.PROBE)
def _driver(evidence: Evidence) -> Results:
    found, results = known(evidence, nvidia_list.PROBE, part=_LOST_DRIVER)
    without = dict(results)
    for node in evidence.nodes:
        output = node.outputs.get(nvidia_list.PROBE.name)
        if node.name in found:
            yield node.name, _listing(found[node.name])
        elif output is not None and output.exit_code == _NOT_FOUND:
            summary = "an NVIDIA GPU is there and nvidia-smi is not"
            yield node.name, advice("GPU001", "install").fail(summary, without[node.name].summary)
        else:
            yield node.name, without[node.name]


def _listing(facts: NvidiaList) -> Result:
    output = "\n".join(facts.problems)
    if facts.exit_code == _DRIVER_NOT_LOADED:
        return advice("GPU001", "load").fail("the NVIDIA driver does not run", output)
    if "inforom" in output.lower():
        return advice("GPU001", "inforom").warn("the infoROM of a GPU is corrupt", output)
    if facts.exit_code != 0 or facts.problems:
        summary = f"nvidia-smi cannot reach a GPU (exit {facts.exit_code})"
        return advice("GPU001", "unreachable").fail(summary, output)
    return ok("driver runs")


_BOARD = 8
_ON_BOARDS = re.compile(r"SXM|HBM3|\b[BH]\d00$|\bH20\b")
"""Names of GPUs that come eight to a board, not as PCIe cards."""
_LOST_GPU = Part(name="NVIDIA GPU", advice=advice("GPU002", "lost"))


@check("GPU002", "gpu-count", nvidia_list.PROBE, amd_gpus.PROBE, tier=Tier.ROUND_TRIP)
def gpu_count(evidence: Evidence) -> Results:
    """Fail nodes with fewer GPUs than the job wants, or than most nodes have."""
    found, results = known(evidence, nvidia_list.PROBE, part=_LOST_GPU)
    required = evidence.job.gpus_per_node
    without = dict(results)
    for node in evidence.nodes:
        if node.name in without:
            none = _none(node, required) if evidence.job.uses_gpus and required else None
            yield node.name, none or without[node.name]
    counts = {name: sum(len(gpu.mig) or 1 for gpu in facts.gpus) for name, facts in found.items()}
    usual = majority(counts)
    for name, count in counts.items():
        if required is not None and count < required:
            yield name, _short(count, f"the job wants {required}")
        elif required is None and usual is not None and count < usual:
            yield name, _short(count, f"most nodes have {usual}")
        elif usual is not None and count != usual:
            yield name, advice("GPU002").warn(f"{_gpus(count)}, most nodes have {usual}")
        elif (
            required is None
            and count == _BOARD - 1
            and all(_ON_BOARDS.search(gpu.name) for gpu in found[name].gpus)
        ):
            yield name, advice("GPU002").warn(f"{_gpus(count)}, such boards have {_BOARD}")
        else:
            yield name, ok(_gpus(count))


def _none(node: NodeFacts, required: int) -> Result | None:
    """Return the result for a node without an NVIDIA GPU, where a job asks for any vendor's."""
    nvidia, amd = node.of(nvidia_list.PROBE), node.of(amd_gpus.PROBE)
    if not isinstance(nvidia, Missing) or nvidia.verdict is not Verdict.SKIP:
        return None
    if not isinstance(amd, Missing):
        return None
    if amd.verdict is not Verdict.SKIP:
        return missing(amd)
    return _short(0, f"the job wants {required}")


def _short(count: int, than: str) -> Result:
    return advice("GPU002", "short").fail(f"{_gpus(count)}, {than}")


def _gpus(count: int) -> str:
    return f"{count or 'no'} GPU{'s' if count > 1 else ''}"


@check("GPU003", "gpu-model", nvidia_gpus.PROBE, tier=Tier.ROUND_TRIP)
def _model(evidence: Evidence) -> Results:
    mixed, probe = advice("GPU003"), nvidia_gpus.PROBE
    hint = f"{_pace(evidence)}{mixed.hint}"
    yield from uniform(evidence, probe, _models, what="GPU model", odd=Verdict.FAIL, hint=hint)
    for node in evidence.nodes:
        facts = node.of(probe)
        if not isinstance(facts, Missing) and len({gpu.name for gpu in facts.gpus}) > 1:
            yield node.name, mixed.warn(f"different GPUs in one node: {_models(facts)}")


def _pace(evidence: Evidence) -> str:
    """Return how much slower the slowest of several models is, by dense 16-bit products.

    Empty where all are alike, or one is not in the table of `estimate`.
    """
    found = [node.of(nvidia_gpus.PROBE) for node in evidence.nodes]
    every = Counter(gpu.name for one in found if not isinstance(one, Missing) for gpu in one.gpus)
    if len(every) < 2:
        return ""
    # A table that only few preflights need, and that each node would load for its own checks.
    from clusterkit.estimate.machines.gpus import gpu_named  # noqa: PLC0415

    try:
        gpus = {name: gpu_named(name) for name in sorted(every)}
    except UserError:
        return ""
    rates = {name: gpu.half_tflops for name, gpu in gpus.items()}
    slow, fast = min(rates, key=rates.__getitem__), max(rates, key=rates.__getitem__)
    if rates[slow] == rates[fast]:
        return ""
    share, ratio = f"{rates[slow] / rates[fast]:.0%}", f"{rates[fast] / rates[slow]:.1f} : 1"
    kinds = shlex.quote("+".join(f"{every[name]}x{gpus[name].name}" for name in (slow, fast)))
    return (
        f"with equal batches {fast} works at up to {share} of its speed, that of {slow} "
        f"(micro batches of {ratio} would use both: clusterkit estimate --gpu {kinds}); "
    )


def _models(facts: NvidiaGpus) -> str | None:
    return " + ".join(sorted({gpu.name for gpu in facts.gpus})) or None


@same_check("GPU004", "gpu-driver-version", nvidia_gpus.PROBE, "driver version", Verdict.FAIL)
def _driver_version(facts: NvidiaGpus) -> str | None:
    if facts.driver is None:
        return None
    return facts.driver + (f" (CUDA {facts.cuda})" if facts.cuda else "")


@same_check("GPU005", "gpu-vbios", nvidia_gpus.PROBE, "VBIOS", Verdict.WARN)
def _vbios(facts: NvidiaGpus) -> str | None:
    return ", ".join(sorted({gpu.vbios for gpu in facts.gpus if gpu.vbios})) or None


_DRIVERS = frozenset({"", "nvidia"})
"""Others have a GPU on purpose: vfio-pci gives it to a virtual machine."""


@machine_check("GPU006", "gpu-pci", pci_gpus.PROBE, nvidia_list.PROBE)
def _pci(node: NodeFacts, job: PreflightJob) -> Result:
    bus, listed = node.need(pci_gpus.PROBE), len(node.need(nvidia_list.PROBE).gpus)
    ours = [gpu for gpu in bus.gpus if gpu.vendor == NVIDIA and gpu.driver in _DRIVERS]
    gone = [gpu.address for gpu in ours if gpu.gone]
    if gone:
        summary = f"GPU at {', '.join(gone)} has fallen off the bus"
        lost = advice("GPU006", "gone", address=gone[0])
        return lost.fail(summary, "its PCI configuration reads as ones")
    if not ours:
        return skip("no NVIDIA GPU on the PCI bus")
    if len(ours) < (job.instance_gpus or 0):
        summary = f"{len(ours)} GPUs on the PCI bus, the instance type has {job.instance_gpus}"
        return advice("GPU006", "few").fail(summary)
    if listed >= min(len(ours), bus.granted or len(ours)):
        return ok("all GPUs on the PCI bus answer")
    summary = f"{len(ours)} GPUs on the PCI bus, nvidia-smi shows {listed}"
    return advice("GPU006", "hidden").fail(summary, ", ".join(gpu.address for gpu in ours))


@gpu_check("GPU019", "gpu-mig", "MIG is off")
def _mig(gpu: Gpu) -> Result | None:
    if gpu.mig is None:
        return skip("no MIG on this GPU")
    return advice("GPU019").warn("MIG mode is on") if gpu.mig else None


@node_check("GPU020", "gpu-processes", nvidia_list.PROCESSES)
def _processes(processes: tuple[GpuProcess, ...]) -> Result:
    if not processes:
        return ok("no process computes on the GPUs")
    owners = ", ".join(sorted({process.user or "a container" for process in processes}))
    count = "1 process" if len(processes) == 1 else f"{len(processes)} processes"
    lines = (f"{p.pid} {p.user or '-'} {p.memory or '-'} {p.name}" for p in processes)
    busy = advice("GPU020", pids=",".join(str(p.pid) for p in processes))
    return busy.warn(f"{count} on the GPUs, of {owners}", "\n".join(lines))


@gpu_check("GPU021", "gpu-persistence", "persistence mode is on")
def _persistence(gpu: Gpu) -> Result | None:
    if gpu.persistence is None:
        return skip("no persistence mode")
    return None if gpu.persistence else advice("GPU021").warn("persistence mode is off")
