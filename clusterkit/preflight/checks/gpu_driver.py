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
from clusterkit.preflight.checks.types import Evidence, NodeFacts, Tier, about, check
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
@about(
    what="The NVIDIA driver is loaded and nvidia-smi reaches every GPU it lists.",
    why="Without the driver no process of the job starts; a lost GPU hangs all of them.",
    how="`nvidia-smi -L`, its exit code and what it says beside GPUs. A GPU that shows on the PCI"
    " bus on a node without nvidia-smi fails; no GPU at all is skipped, unless other nodes have"
    " some.",
    fix="Load or install the driver, reset the GPU, or reboot the node.",
    source="nvidia-smi manual, RETURN VALUE: 9 driver not loaded, 14 infoROM, 15 GPU lost.",
)
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
@about(
    what="Every node shows as many GPUs as the job starts processes on it; where that is not"
    " known, as many as most nodes of the job.",
    why="A rank without a GPU dies at its first CUDA call, and the job with it.",
    how="Lines of `nvidia-smi -L` that begin with a GPU; a GPU in MIG mode counts as its MIG"
    " devices. Inside a Slurm job only the job's own GPUs may be seen. A node without any is"
    " skipped where no node has one and `--gpus-per-node` does not ask for some. Seven of those"
    " that come eight to a board warn where nothing says how many are wanted.",
    fix="Take the node out of the job (--exclude), or ask for fewer GPUs a node.",
    source="Counting all lines of `nvidia-smi -L` takes MIG devices for GPUs, as several health"
    " checks in the field do.",
)
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
@about(
    what="All GPUs of the job are of one model.",
    why="In data-parallel training every step waits for the slowest GPU, and the batch has to fit"
    " the smallest memory.",
    how="Column `name` of `nvidia-smi --query-gpu`, by majority over the nodes of the job.",
    fix="Restrict the job to nodes of one kind, or `--ignore gpu-model` where it is meant.",
    source="Majority vote over the nodes of the job; no list to keep.",
)
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
@about(
    what="All nodes run the same NVIDIA driver, and so the same newest CUDA version.",
    why="With mixed drivers NCCL may choose different features on each side and hang or fail while"
    " it starts; a container may start on one node and not on the next.",
    how="`driver_version` of `nvidia-smi --query-gpu` and CUDA Version of `nvidia-smi -q`, by"
    " majority over the nodes of the job.",
    fix="Update the odd nodes; a node whose update was not followed by a reboot shows too.",
    source="Majority vote over the nodes of the job; no list to keep.",
)
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
@about(
    what="All GPUs have the same VBIOS.",
    why="Firmware sets power and clock limits; one that differs makes a GPU differ.",
    how="`vbios_version` of `nvidia-smi --query-gpu`, by majority over the nodes of the job.",
    fix="Update the firmware of the odd nodes when work allows.",
    source="Majority vote over the nodes of the job; no list to keep.",
)
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
@about(
    what="Every NVIDIA GPU on the PCI bus is also known to the driver.",
    why="A GPU that fell off the bus does not come back without a power cycle.",
    how="/sys/bus/pci/devices (vendor 10de, display class) against `nvidia-smi -L`. GPUs that"
    " another driver holds do not count, nor those that a container or a Slurm job was not given"
    " (no device node, or one that may not be opened).",
    fix="Power-cycle the node; replace the GPU if it happens again.",
    source="PCI: reads of a device that does not answer return ones; Xid 79 of NVIDIA.",
)
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
@about(
    what="No GPU is in MIG mode.",
    why="MIG devices have no NVLink and no peer-to-peer access: NCCL copies through the host, and"
    " one process can use one device only.",
    how="`mig.mode.current` of `nvidia-smi --query-gpu`.",
    fix="`nvidia-smi -i N -mig 0` as root, with nothing running on the GPU.",
    source="NVIDIA Multi-Instance GPU User Guide, limitations.",
)
@each_gpu("MIG is off")
def _mig(gpu: Gpu) -> Result | None:
    if gpu.mig is None:
        return skip("no MIG on this GPU")
    hint = "for training over several GPUs switch it off, or use other nodes"
    return warn("MIG mode is on", hint=hint, command=_LIST) if gpu.mig else None


@check("GPU020", "gpu-processes", nvidia_processes.PROBE)
@about(
    what="Nothing computes on the GPUs before the job starts.",
    why="It takes memory and time from the job, which then runs out of the one or lags.",
    how="`nvidia-smi --query-compute-apps`, and the owner from /proc. Nothing is ever killed.",
    fix="End what is left over, or choose nodes that are free.",
    source="As in Meta's GCM and Character.AI's slonk; theirs may kill, ours never does.",
)
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
@about(
    what="The driver stays loaded when no process uses a GPU.",
    why="Else each first CUDA call takes seconds, ECC counts start anew with each job, and ranks"
    " that start late run into time-outs.",
    how="`persistence_mode` of `nvidia-smi --query-gpu`. It is never switched here.",
    fix="Run nvidia-persistenced, or `nvidia-smi -pm 1` as root.",
    source="NVIDIA driver persistence; DCGM's deployment test fails on it.",
)
@each_gpu("persistence mode is on")
def _persistence(gpu: Gpu) -> Result | None:
    if gpu.persistence is None:
        return skip("no persistence mode")
    if gpu.persistence:
        return None
    hint = "have nvidia-persistenced run at boot (root)"
    command = "systemctl status nvidia-persistenced"
    return warn("persistence mode is off", hint=hint, command=command)
