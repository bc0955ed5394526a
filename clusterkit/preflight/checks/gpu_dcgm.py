"""GPU022: what `dcgmi diag` found, where it was asked for."""

from __future__ import annotations

from collections.abc import Iterator

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
from clusterkit.preflight.probes.gpu import dcgm_diag
from clusterkit.preflight.probes.gpu.dcgm_diag import Diag, DiagTest
from clusterkit.transport.probe import Missing

_NOT_READY = "system not yet initialized"
"""CUDA_ERROR_SYSTEM_NOT_READY: NVSwitches are there, and nobody has set them up."""


def _judge(evidence: Evidence) -> Judgement:
    if not dcgm_diag.asked(evidence.job):
        return
    for node in evidence.nodes:
        facts = node.of(dcgm_diag.PROBE)
        if isinstance(facts, Missing):
            yield node.name, missing(facts)
            continue
        for ruling in _rules(facts):
            yield node.name, ruling


def _rules(diag: Diag) -> Iterator[Ruling]:
    troubles = [test for test in diag.tests if test.result in {"Fail", "Warn"}]
    for test in troubles:
        warns = test.result == "Warn" or test.configuration
        yield Ruling(
            verdict=Verdict.WARN if warns else Verdict.FAIL,
            summary=" ".join(filter(None, ["dcgmi diag:", test.name, test.entity, test.result])),
            evidence="\n".join(test.warnings),
            hint=_hint(test),
            command="dcgmi diag -r 1",
        )
    if not troubles:
        yield _no_trouble(diag.tests)


def _hint(test: DiagTest) -> str:
    if any(_NOT_READY in warning for warning in test.warnings):
        return "CUDA waits for the fabric manager: systemctl status nvidia-fabricmanager"
    return "a setting of the node, not its hardware" if test.configuration else ""


def _no_trouble(tests: tuple[DiagTest, ...]) -> Ruling:
    ran = sum(test.result == "Pass" for test in tests)
    if not ran:
        return Ruling(verdict=Verdict.UNKNOWN, summary="dcgmi diag ran no test")
    return passed("dcgmi diag passes", f"{ran} of {len(tests)} tests ran")


CHECK = Check(
    id="GPU022",
    name="gpu-dcgm",
    about=About(
        what="NVIDIA's own diagnosis, level 1, passes.",
        why="It looks at libraries, permissions, settings and memory as NVIDIA's support would.",
        how="`dcgmi diag -r 1 -j`, only where the cluster or the job sets CLUSTERKIT_DCGM_DIAG=1: "
        "it takes up to a minute and wants idle GPUs. A skipped test is not a passed one; what "
        "DCGM files under configuration (severity 5) only warns.",
        fix="Read the evidence; run `dcgmi diag -r 3` on that node when it is free.",
        source="DCGM User Guide, diagnostics; dcgm_errors.h for the severities.",
    ),
    probes=(dcgm_diag.PROBE,),
    judge=_judge,
)
