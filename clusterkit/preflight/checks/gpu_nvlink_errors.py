"""GPU026: NVLinks that gather errors."""

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
from clusterkit.preflight.checks.by_gpu import together
from clusterkit.preflight.probes.gpu.nvidia_nvlink_errors import PROBE, NvlinkErrorLog, NvlinkErrors
from clusterkit.transport.probe import Missing

_AN_HOUR = 1.0
_AT_LEAST = 5
"""Fewer say nothing, however short ago the node was booted (imbue-ai/cluster-health: 5 in all)."""


def _judge(evidence: Evidence) -> Judgement:
    for node in evidence.nodes:
        facts = node.of(PROBE)
        if isinstance(facts, Missing):
            yield node.name, missing(facts)
            continue
        for ruling in _rulings(facts):
            yield node.name, ruling


def _rulings(facts: NvlinkErrorLog) -> Iterator[Ruling]:
    if all(gpu.links is None for gpu in facts.gpus):
        yield Ruling(verdict=Verdict.SKIP, summary="no NVLink whose errors are counted")
        return
    bad = [(gpu.index, ruling) for gpu in facts.gpus if (ruling := _rule(gpu, facts.hours))]
    yield from together(bad)
    if not bad:
        seen = [
            f"GPU {gpu.index} link {n}: {count}"
            for gpu in facts.gpus
            for n, count in gpu.links or ()
        ]
        yield passed("NVLinks gather no errors", ", ".join(seen))


def _rule(gpu: NvlinkErrors, hours: float) -> Ruling | None:
    least = max(_AT_LEAST, _AN_HOUR * hours)
    bad = [(link, count) for link, count in gpu.links or () if count >= least]
    if not bad:
        return None
    return Ruling(
        verdict=Verdict.WARN,
        summary=f"NVLink {','.join(str(link) for link, _ in bad)} gathers errors",
        evidence=", ".join(f"GPU {gpu.index} link {link}: {count}" for link, count in bad)
        + f" in {hours:.0f} h at most",
        hint="a board or a switch that is about to fail: watch it, and plan to have it tested",
        command=f"nvidia-smi nvlink -e -i {gpu.index}",
    )


CHECK = Check(
    id="GPU026",
    name="gpu-nvlink-errors",
    about=About(
        what="No NVLink has counted an error an hour or more since boot, five at least.",
        why="Each is sent again, or the link is trained anew: collectives get slower with no word,"
        " until the link fails in the middle of a job.",
        how="`nvidia-smi nvlink -e` (replay, recovery and CRC errors; those of Blackwell that were"
        " not corrected) over the time since boot. A total says nothing without its time.",
        fix="Reset the GPUs and see whether they come back; then have board and switches tested.",
        source="imbue-ai/cluster-health warns from five errors on, AWS from the first one, whatever"
        " the time; the rate is ours.",
    ),
    probes=(PROBE,),
    judge=_judge,
)
