"""NET006: whether all-reduces between nodes are about as fast, and as fast as the adapters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from statistics import median

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling, Tier
from clusterkit.preflight.checks.net_evidence import (
    BAD,
    SLOW,
    Pair,
    absent,
    facts_of,
    rule_by_median,
)
from clusterkit.preflight.expected_busbw import TWO_NODES
from clusterkit.preflight.probes.net.allreduce import AGAIN, PROBE, AllReduceFacts
from clusterkit.transport.probe import Probe

_WARN_SHARE = 0.7

_HINT = "NCCL_DEBUG=INFO shows adapters and path; look at link rates, ACS, GPUDirect RDMA"

ABOUT = About(
    what="Bus bandwidth of an all-reduce between two nodes, compared with the job's own median:"
    f" below {SLOW:g} of it is a warning, below {BAD:g} in both of two looks a failure. Published"
    f" figures for the same GPUs only lead to a warning, below {_WARN_SHARE:g} of them.",
    why="A pair that is slow makes every step of the job slow.",
    how="The largest of a few messages that ends in about half a second (at most 1 GiB with NCCL,"
    " 16 MiB with Gloo), the best of three; bytes times 2 (n - 1) / n over time. Slow pairs are"
    " measured again, and each of the two nodes with a good one.",
    fix="NCCL_DEBUG=INFO shows which adapters and which path it takes; look at link rates, ACS,"
    " GPUDirect RDMA.",
    source="two-pass pairing; figures as published by NVIDIA/deepops and dstack",
)


def judge(evidence: Evidence) -> Judgement:
    """Compare pairs with each other; with published figures only to warn."""
    yield from absent(evidence, PROBE)
    first, second = _rates(evidence, PROBE), _rates(evidence, AGAIN)
    rates = {pair: max(r.get(pair, 0.0) for r in (first, second)) for pair in {**first, **second}}
    again = _twice(first, second, rates)
    yield from rule_by_median(rates, again=again, what="all-reduce bandwidth", hint=_HINT)
    devices = Counter(
        (exercise.device, facts.ranks_per_node)
        for probe in (PROBE, AGAIN)
        for facts in facts_of(evidence, probe).values()
        for exercise in facts.exercises
        if exercise.device
    )
    for (device, per_node), _ in devices.most_common(1):
        wanted = next((one for one in TWO_NODES if one.gpu.search(device)), None)
        best = max(rates.values(), default=0.0) / 1e9
        if wanted and per_node == wanted.per_node and best < _WARN_SHARE * wanted.gbs:
            yield (
                None,
                Ruling(
                    verdict=Verdict.WARN,
                    summary="all-reduces are slower than published for these GPUs",
                    evidence=f"best pair {best:.0f} GB/s, "
                    f"published {wanted.gbs:.0f} GB/s ({device})",
                    hint=_HINT,
                ),
            )


def _rates(evidence: Evidence, probe: Probe[AllReduceFacts]) -> dict[Pair, float]:
    """Return the bus bandwidth of the pairs of one pass, by the first of the two names."""
    return {
        (node, exercise.peer): exercise.bus_bytes_per_s
        for node, facts in facts_of(evidence, probe).items()
        for exercise in facts.exercises
        if exercise.bus_bytes_per_s is not None and node < exercise.peer
    }


def _twice(
    first: Mapping[Pair, float], second: Mapping[Pair, float], rates: Mapping[Pair, float]
) -> set[Pair]:
    """Return the pairs that were looked at twice, and those of a node that was slow both times."""
    least = BAD * median(rates.values()) if rates else 0.0
    low = {pair for pair, rate in rates.items() if rate < least}
    slow = [{node for pair in low & seen.keys() for node in pair} for seen in (first, second)]
    return (first.keys() & second.keys()) | {pair for pair in low if slow[0] & slow[1] & {*pair}}


CHECK = Check(
    id="NET006",
    name="net-busbw",
    about=ABOUT,
    probes=(PROBE, AGAIN),
    judge=judge,
    tier=Tier.NETWORK,
)
