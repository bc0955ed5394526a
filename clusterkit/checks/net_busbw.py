"""NET006: whether all-reduces between nodes are about as fast, and as fast as the adapters."""

from __future__ import annotations

from collections import Counter

from clusterkit.checks.base import About, Check, Evidence, Judgement, Ruling, Tier
from clusterkit.checks.net_evidence import BAD, SLOW, Pair, absent, facts_of, rule_by_median
from clusterkit.findings import Verdict
from clusterkit.probes.net_allreduce import AGAIN, PROBE, AllReduceFacts

_EXPECTED = {"A100": 191.0, "H100": 468.0}
"""GB/s of bus bandwidth between two nodes of eight, large messages: 2x DGX A100 with 8x HDR
(NVIDIA/deepops, docs/slurm-cluster/slurm-perf-cluster.md), 2x 8xH100 with 8x 400G (dstack)."""
_WARN_SHARE = 0.7
_NODE = 8

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
    rates: dict[Pair, float] = {}
    again: set[Pair] = set()
    devices: Counter[tuple[str, int]] = Counter()
    for probe in (PROBE, AGAIN):
        for node, facts in facts_of(evidence, probe).items():
            for exercise in facts.exercises:
                rate = exercise.bus_bytes_per_s
                if rate is not None and node < exercise.peer:
                    pair = (node, exercise.peer)
                    rates[pair] = max(rate, rates.get(pair, 0.0))
                    again |= {pair} if probe is AGAIN else set()
            devices.update(_devices(facts))
    yield from rule_by_median(rates, again=again, what="all-reduce bandwidth", hint=_HINT)
    for (device, per_node), _ in devices.most_common(1):
        wanted = next((w for name, w in _EXPECTED.items() if name in device), None)
        best = max(rates.values(), default=0.0) / 1e9
        if wanted and per_node == _NODE and best < _WARN_SHARE * wanted:
            yield (
                None,
                Ruling(
                    verdict=Verdict.WARN,
                    summary="all-reduces are slower than published for these GPUs",
                    evidence=f"best pair {best:.0f} GB/s, published {wanted:.0f} GB/s ({device})",
                    hint=_HINT,
                ),
            )


def _devices(facts: AllReduceFacts) -> list[tuple[str, int]]:
    return [(e.device, facts.ranks_per_node) for e in facts.exercises if e.device]


CHECK = Check(
    id="NET006",
    name="net-busbw",
    about=ABOUT,
    probes=(PROBE, AGAIN),
    judge=judge,
    tier=Tier.NETWORK,
)
