"""GPU017: NVLinks that are down."""

from __future__ import annotations

import re

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import (
    About,
    Check,
    Evidence,
    Judgement,
    Ruling,
    missing,
    passed,
)
from clusterkit.preflight.checks.by_gpu import together
from clusterkit.preflight.probes.gpu import nvidia_nvlink
from clusterkit.preflight.probes.gpu.nvidia_nvlink import NvlinkGpu, NvlinkState
from clusterkit.transport.probe import Missing

# Links of boards that always have them (NVIDIA data sheets); a PCIe card may go without a bridge.
_EXPECTED = (
    (re.compile(r"V100-SXM"), 6),
    (re.compile(r"A100-SXM|A800-SXM"), 12),
    (re.compile(r"H100 80GB HBM3|H200(?! NVL)|\bG?B[23]00\b"), 18),
)


def _judge(evidence: Evidence) -> Judgement:
    for node in evidence.nodes:
        facts = node.of(nvidia_nvlink.PROBE)
        if isinstance(facts, Missing):
            yield node.name, missing(facts)
            continue
        ruled = [(gpu.index, ruling) for gpu in facts if (ruling := _rule(gpu)) is not None]
        troubles = [(i, r) for i, r in ruled if r.verdict is not Verdict.SKIP]
        for ruling in together(troubles):
            yield node.name, ruling
        if not troubles and len(ruled) == len(facts):
            yield node.name, ruled[0][1]
        elif not troubles:
            yield node.name, passed("all NVLinks are up")


def _rule(gpu: NvlinkGpu) -> Ruling | None:
    expected = next((links for name, links in _EXPECTED if name.search(gpu.name)), None)
    if gpu.state is NvlinkState.MIG:
        return Ruling(verdict=Verdict.UNKNOWN, summary="NVLink is not told in MIG mode")
    if gpu.state is NvlinkState.ABSENT or (gpu.state is NvlinkState.ALL_INACTIVE and not expected):
        return Ruling(verdict=Verdict.SKIP, summary="no NVLink, or no bridge on it")
    if gpu.state is NvlinkState.ALL_INACTIVE:
        return _down(gpu, "all NVLinks are down")
    if gpu.inactive:
        numbers = ",".join(str(number) for number in gpu.inactive)
        return _down(gpu, f"{len(gpu.inactive)} of {gpu.links} NVLinks down (link {numbers})")
    if expected is not None and gpu.links < expected:
        return _down(gpu, f"{gpu.links} NVLinks, a {gpu.name} has {expected}")
    return None


def _down(gpu: NvlinkGpu, summary: str) -> Ruling:
    return Ruling(
        verdict=Verdict.FAIL,
        summary=summary,
        hint="restart the fabric manager and reset the GPUs; if it stays, the board is broken",
        command=f"nvidia-smi nvlink -s -i {gpu.index}; nvidia-smi nvlink -e -i {gpu.index}",
    )


CHECK = Check(
    id="GPU017",
    name="gpu-nvlink",
    about=About(
        what="All NVLinks of every GPU are up: 6 on V100 SXM, 12 on A100, 18 on Hopper, Blackwell.",
        why="NCCL goes around a missing link, at a fraction of the bandwidth, or hangs.",
        how="`nvidia-smi nvlink -s`: link lines, <inactive>, and the message that all links are "
        "inactive in each of its spellings. PCIe cards without a bridge are skipped; in MIG mode "
        "the driver does not tell, which is unknown.",
        fix="Restart nvidia-fabricmanager, reset the GPUs, reboot; then replace the board.",
        source="NVIDIA data sheets for the number of links. Looking for `inactive` in lower case "
        "misses what newer drivers print (leptonai/gpud#1085).",
    ),
    probes=(nvidia_nvlink.PROBE,),
    judge=_judge,
)
