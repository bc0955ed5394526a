"""GPU027: how fast the GPUs of a node reduce among themselves, where it was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import (
    About,
    Check,
    Evidence,
    Judgement,
    Ruling,
    Tier,
    missing,
    passed,
)
from clusterkit.preflight.expected_busbw import ONE_NODE
from clusterkit.preflight.probes.gpu import nccl_tests
from clusterkit.preflight.probes.gpu.nccl_tests import NcclTest
from clusterkit.transport.probe import Missing

_WARN, _FAIL = 0.85, 0.7
"""Shares of the median of the job's nodes, then of what was published for the same GPUs."""


def _judge(evidence: Evidence) -> Judgement:
    if not nccl_tests.asked(evidence.job):
        return
    ran: dict[str, NcclTest] = {}
    for node in evidence.nodes:
        facts = node.of(nccl_tests.PROBE)
        if isinstance(facts, Missing):
            yield node.name, missing(facts)
        else:
            ran[node.name] = facts
    usual = median(test.peak.bus_gb_s for test in ran.values()) if ran else 0.0
    for name, test in ran.items():
        yield name, _rule(test, usual)


def _rule(test: NcclTest, usual: float) -> Ruling:
    if test.correct is False:
        return _odd(
            Verdict.FAIL, "an all-reduce gives wrong values", "data is corrupted on its way"
        )
    if test.error is not None:
        return _odd(Verdict.FAIL, "an all-reduce fails", test.error)
    best = test.peak.bus_gb_s
    for wanted, what in _wanted(test, usual):
        if best < _WARN * wanted:
            verdict = Verdict.FAIL if best < _FAIL * wanted else Verdict.WARN
            summary = (
                f"its GPUs reduce at less than {_FAIL if verdict is Verdict.FAIL else _WARN:.0%}"
            )
            return _odd(verdict, f"{summary} of {what}", f"{best:.0f} GB/s, {wanted:.0f} {what}")
    if test.correct is None:
        return Ruling(
            verdict=Verdict.UNKNOWN, summary="nobody looked at the sums, or it was cut off"
        )
    return passed("its GPUs reduce as fast as they should", f"{best:.0f} GB/s")


def _wanted(test: NcclTest, usual: float) -> Iterator[tuple[float, str]]:
    yield usual, "the job's median"
    for one in ONE_NODE:
        if test.ranks == one.per_node and one.gpu.search(test.device or ""):
            yield one.gbs, f"what is published ({one.source})"


def _odd(verdict: Verdict, summary: str, evidence: str) -> Ruling:
    return Ruling(
        verdict=verdict,
        summary=summary,
        evidence=evidence,
        hint="look at NVLinks, fabric manager and clocks of the node; compare with a good one",
        command="nvidia-smi nvlink -s; nvidia-smi topo -m",
    )


CHECK = Check(
    id="GPU027",
    name="gpu-all-reduce",
    about=About(
        what="An all-reduce between all GPUs of a node gives the right sums, as fast as on the"
        f" other nodes: below {_WARN:.0%} of the job's median, or of what was published for the"
        f" same GPUs, is a warning, below {_FAIL:.0%} a failure.",
        why="All else can look well: only traffic shows a link that is up and slow, or corrupts.",
        how="`all_reduce_perf -b 1G -e 4G` of nccl-tests from PATH, only where the cluster or the"
        f" job sets {nccl_tests.ASK}=1: it keeps all GPUs busy for up to a minute. The best of the"
        " large messages counts; the average that the program prints mixes in small ones.",
        fix="Look at GPU017 (NVLink), GPU018 (fabric) and GPU013 (clocks) of the node.",
        source="facebookresearch/gcm, AWS and Azure for figures; shares are ours.",
    ),
    probes=(nccl_tests.PROBE,),
    judge=_judge,
    tier=Tier.ROUND_TRIP,
)
