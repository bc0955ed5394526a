"""GPU: whether NVIDIA's driver runs, and shows the GPUs that the job needs, alike on all nodes."""

from __future__ import annotations

import re

from clusterkit.core.findings import Verdict
from clusterkit.core.shell import quote
from clusterkit.preflight.checks.base import (
    Part,
    each_machine,
    each_node,
    known,
    majority,
    same_on_all,
    uniform,
)
from clusterkit.preflight.checks.each_gpu import each_gpu
from clusterkit.preflight.checks.results import Result, Results, fail, missing, ok, skip, warn
from clusterkit.preflight.checks.types import Evidence, NodeFacts, Tier, check
from clusterkit.preflight.probes.gpu import (
    amd_gpus,
    nvidia_gpus,
    nvidia_list,
    nvidia_processes,
    pci_gpus,
)
from clusterkit.preflight.probes.gpu.nvidia_gpus import Gpu, NvidiaGpus
from clusterkit.preflight.probes.gpu.nvidia_list import NvidiaList
from clusterkit.preflight.probes.gpu.nvidia_processes import GpuProcess
from clusterkit.preflight.probes.gpu.pci_gpus import NVIDIA
from clusterkit.transport.probe import Missing

_NOT_FOUND = 127
_DRIVER_NOT_LOADED = 9
_LOST_DRIVER = Part(
    name="NVIDIA GPU",
    hint="a node that lost its GPUs, or that has no place in the job: take it out",
    command="lspci -d 10de:; dmesg | grep -i nvrm | tail",
)


@check("GPU001", "gpu-driver", nvidia_list.PROBE)
def _driver(evidence: Evidence) -> Results:
    found, results = known(evidence, nvidia_list.PROBE, part=_LOST_DRIVER)
    without = dict(results)
    for node in evidence.nodes:
        output = node.outputs.get(nvidia_list.PROBE.name)
        if node.name in found:
            yield node.name, _listing(found[node.name])
        elif output is not None and output.exit_code == _NOT_FOUND:
            no_driver = fail(
                "an NVIDIA GPU is there and nvidia-smi is not",
                without[node.name].summary,
                hint="install the NVIDIA driver, or put nvidia-smi on PATH of plain shells",
                command="ls -l /dev/nvidia0 /proc/driver/nvidia/version",
            )
            yield node.name, no_driver
        else:
            yield node.name, without[node.name]


def _listing(facts: NvidiaList) -> Result:
    output = "\n".join(facts.problems)
    if facts.exit_code == _DRIVER_NOT_LOADED:
        return fail(
            "the NVIDIA driver does not run",
            output,
            hint="load it (modprobe nvidia); after an update of kernel or driver, reboot",
            command="dmesg | grep -i nvrm | tail",
        )
    if "inforom" in output.lower():
        return warn(
            "the infoROM of a GPU is corrupt",
            output,
            hint="have the GPU replaced when work allows",
            command="nvidia-smi -q | grep -i -A5 inforom",
        )
    if facts.exit_code != 0 or facts.problems:
        return fail(
            f"nvidia-smi cannot reach a GPU (exit {facts.exit_code})",
            output,
            hint="take the node out of the job; reset the GPU or reboot the node",
            command="nvidia-smi -L; dmesg | grep -i xid | tail",
        )
    return ok("driver runs")


_LIST = "nvidia-smi -L"
_BOARD = 8
_ON_BOARDS = re.compile(r"SXM|HBM3|\b[BH]\d00$|\bH20\b")
"""Names of GPUs that come eight to a board, not as PCIe cards."""
_LOST_GPU = Part(
    name="NVIDIA GPU",
    hint="look for GPUs that fell off the bus, or take the node out of the job",
    command="lspci -d 10de:",
)


@check("GPU002", "gpu-count", nvidia_list.PROBE, amd_gpus.PROBE, tier=Tier.ROUND_TRIP)
def _count(evidence: Evidence) -> Results:
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
            yield name, warn(f"{_gpus(count)}, most nodes have {usual}", command=_LIST)
        elif required is None and _one_short(found[name]):
            yield name, warn(f"{_gpus(count)}, such boards have {_BOARD}", command=_LIST)
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


def _one_short(facts: NvidiaList) -> bool:
    """Tell whether one of the eight GPUs of a board is missing, on all nodes alike."""
    return len(facts.gpus) == _BOARD - 1 and all(_ON_BOARDS.search(gpu.name) for gpu in facts.gpus)


def _short(count: int, than: str) -> Result:
    hint = "look for a GPU that fell off the bus, or ask for fewer with --gpus-per-node"
    return fail(f"{_gpus(count)}, {than}", hint=hint, command=_LIST)


def _gpus(count: int) -> str:
    return f"{count or 'no'} GPU{'s' if count > 1 else ''}"


_ONE_KIND = (
    "a job runs at the pace of its slowest GPU: ask for one kind (constraint, partition, hosts)"
)


@check("GPU003", "gpu-model", nvidia_gpus.PROBE, tier=Tier.ROUND_TRIP)
def _model(evidence: Evidence) -> Results:
    yield from uniform(
        evidence, nvidia_gpus.PROBE, _models, what="GPU model", odd=Verdict.FAIL, hint=_ONE_KIND
    )
    for node in evidence.nodes:
        facts = node.of(nvidia_gpus.PROBE)
        if not isinstance(facts, Missing) and len({gpu.name for gpu in facts.gpus}) > 1:
            summary = f"different GPUs in one node: {_models(facts)}"
            yield node.name, warn(summary, hint=_ONE_KIND, command=_LIST)


def _models(facts: NvidiaGpus) -> str | None:
    return " + ".join(sorted({gpu.name for gpu in facts.gpus})) or None


@check("GPU004", "gpu-driver-version", nvidia_gpus.PROBE, tier=Tier.ROUND_TRIP)
@same_on_all(
    nvidia_gpus.PROBE,
    "driver version",
    odd=Verdict.FAIL,
    hint="install the driver that most nodes have, then reboot; or leave the node out",
)
def _driver_version(facts: NvidiaGpus) -> str | None:
    if facts.driver is None:
        return None
    return facts.driver + (f" (CUDA {facts.cuda})" if facts.cuda else "")


@check("GPU005", "gpu-vbios", nvidia_gpus.PROBE, tier=Tier.ROUND_TRIP)
@same_on_all(
    nvidia_gpus.PROBE,
    "VBIOS",
    odd=Verdict.WARN,
    hint="plan a firmware update; it may explain GPUs that clock or fail differently",
)
def _vbios(facts: NvidiaGpus) -> str | None:
    return ", ".join(sorted({gpu.vbios for gpu in facts.gpus if gpu.vbios})) or None


_DRIVERS = frozenset({"", "nvidia"})
"""Others have a GPU on purpose: vfio-pci gives it to a virtual machine."""


@check("GPU006", "gpu-pci", pci_gpus.PROBE, nvidia_list.PROBE)
@each_machine
def _pci(node: NodeFacts) -> Result:
    bus, listed = node.need(pci_gpus.PROBE), len(node.need(nvidia_list.PROBE).gpus)
    ours = [gpu for gpu in bus.gpus if gpu.vendor == NVIDIA and gpu.driver in _DRIVERS]
    gone = [gpu.address for gpu in ours if gpu.gone]
    if gone:
        return fail(
            f"GPU at {', '.join(gone)} has fallen off the bus",
            "its PCI configuration reads as ones",
            hint="power-cycle the node; if it comes back, have the GPU or its riser replaced",
            command=f"lspci -s {quote(gone[0])}; dmesg | grep -i 'fallen off'",
        )
    if not ours:
        return skip("no NVIDIA GPU on the PCI bus")
    if listed >= min(len(ours), bus.granted or len(ours)):
        return ok("all GPUs on the PCI bus answer")
    return fail(
        f"{len(ours)} GPUs on the PCI bus, nvidia-smi shows {listed}",
        ", ".join(gpu.address for gpu in ours),
        hint="the driver gave one up: look for Xid 79 in the kernel log, then reboot",
        command="nvidia-smi -L; dmesg | grep NVRM | tail",
    )


@check("GPU019", "gpu-mig", nvidia_gpus.PROBE)
@each_gpu("MIG is off")
def _mig(gpu: Gpu) -> Result | None:
    if gpu.mig is None:
        return skip("no MIG on this GPU")
    hint = "for training over several GPUs switch it off, or use other nodes"
    return warn("MIG mode is on", hint=hint, command=_LIST) if gpu.mig else None


@check("GPU020", "gpu-processes", nvidia_processes.PROBE)
@each_node(nvidia_processes.PROBE)
def _processes(processes: tuple[GpuProcess, ...]) -> Result:
    if not processes:
        return ok("no process computes on the GPUs")
    owners = ", ".join(sorted({process.user or "a container" for process in processes}))
    count = "1 process" if len(processes) == 1 else f"{len(processes)} processes"
    return warn(
        f"{count} on the GPUs, of {owners}",
        "\n".join(f"{p.pid} {p.user or '-'} {p.memory or '-'} {p.name}" for p in processes),
        hint="left over from a job, or someone's at work: ask, or choose other nodes",
        command=f"ps -o pid,user,etime,args -p {','.join(str(p.pid) for p in processes)}",
    )


@check("GPU021", "gpu-persistence", nvidia_gpus.PROBE)
@each_gpu("persistence mode is on")
def _persistence(gpu: Gpu) -> Result | None:
    if gpu.persistence is None:
        return skip("no persistence mode")
    if gpu.persistence:
        return None
    hint = "have nvidia-persistenced run at boot (root)"
    command = "systemctl status nvidia-persistenced"
    return warn("persistence mode is off", hint=hint, command=command)
