"""GPU001: the NVIDIA driver runs and sees its GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import (
    About,
    Check,
    Evidence,
    Judgement,
    Part,
    Ruling,
    known,
    passed,
)
from clusterkit.preflight.probes.gpu import nvidia_list
from clusterkit.preflight.probes.gpu.nvidia_list import NvidiaList

_NOT_FOUND = 127
_DRIVER_NOT_LOADED = 9
_INFOROM = "inforom"
_PART = Part(
    name="NVIDIA GPU",
    hint="a node that lost its GPUs, or that has no place in the job: take it out",
    command="lspci -d 10de:; dmesg | grep -i nvrm | tail",
)


def _judge(evidence: Evidence) -> Judgement:
    found, rulings = known(evidence, nvidia_list.PROBE, part=_PART)
    without = dict(rulings)
    for node in evidence.nodes:
        output = node.outputs.get(nvidia_list.PROBE.name)
        if node.name in found:
            for ruling in _rule(found[node.name]):
                yield node.name, ruling
        elif output is not None and output.exit_code == _NOT_FOUND:
            yield (
                node.name,
                Ruling(
                    verdict=Verdict.FAIL,
                    summary="an NVIDIA GPU is there and nvidia-smi is not",
                    evidence=without[node.name].summary,
                    hint="install the NVIDIA driver, or put nvidia-smi on PATH of plain shells",
                    command="ls -l /dev/nvidia0 /proc/driver/nvidia/version",
                ),
            )
        else:
            yield node.name, without[node.name]


def _rule(facts: NvidiaList) -> Iterator[Ruling]:
    said = "\n".join(facts.problems)
    corrupt = _INFOROM in said.lower()
    if facts.exit_code == _DRIVER_NOT_LOADED:
        yield Ruling(
            verdict=Verdict.FAIL,
            summary="the NVIDIA driver does not run",
            evidence=said,
            hint="load it (modprobe nvidia); after an update of kernel or driver, reboot",
            command="dmesg | grep -i nvrm | tail",
        )
    elif corrupt:
        yield Ruling(
            verdict=Verdict.WARN,
            summary="the infoROM of a GPU is corrupt",
            evidence=said,
            hint="have the GPU replaced when work allows",
            command="nvidia-smi -q | grep -i -A5 inforom",
        )
    elif facts.exit_code != 0 or facts.problems:
        yield Ruling(
            verdict=Verdict.FAIL,
            summary=f"nvidia-smi cannot reach a GPU (exit {facts.exit_code})",
            evidence=said,
            hint="take the node out of the job; reset the GPU or reboot the node",
            command="nvidia-smi -L; dmesg | grep -i xid | tail",
        )
    else:
        yield passed("driver runs")


CHECK = Check(
    id="GPU001",
    name="gpu-driver",
    about=About(
        what="The NVIDIA driver is loaded and nvidia-smi reaches every GPU it lists.",
        why="Without the driver no process of the job starts; a lost GPU hangs all of them.",
        how="`nvidia-smi -L`, its exit code and what it says beside GPUs. A GPU that shows on the "
        "PCI bus on a node without nvidia-smi fails; no GPU at all is skipped, unless other nodes "
        "have some.",
        fix="Load or install the driver, reset the GPU, or reboot the node.",
        source="nvidia-smi manual, RETURN VALUE: 9 driver not loaded, 14 infoROM, 15 GPU lost.",
    ),
    probes=(nvidia_list.PROBE,),
    judge=_judge,
)
