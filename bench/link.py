"""What `clusterkit bench allreduce` finds on a free link, beside iperf3.

The link joins two hosts of the practice cluster, and nothing limits it but the processors. Ranks of
an all-reduce send and receive at once, so that iperf3 is asked for both directions as well.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.cluster import practice_cluster
from bench.figures import BenchError, median_ratio
from tests.desk import Desk
from tests.lab.lab import Lab

ALLREDUCE, IPERF3 = "clusterkit bench allreduce", "iperf3 --bidir"
GOAL = 0.15
ROOT = Path("/tmp/ck-bench-link")
_SECONDS = 3
_MEASURE = (
    *("bench", "allreduce", "--json", "--cluster", "rack", "--backend", "gloo"),
    *("--nodes", "2", "--gpus-per-node", "1", "--sizes", "16M:64M", "--iters", "20"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What both found, one right after the other, Gbit/s in each direction."""

    allreduce: float
    iperf3: float


def measure(rounds: int) -> tuple[Round, ...]:
    """Measure the link between two hosts, after one round that does not count.

    Raises:
        BenchError: the lab did not start, or somebody could not measure.
    """
    if shutil.which("iperf3") is None:
        raise BenchError("nobody to compare with: apt-get install iperf3")
    with practice_cluster(ROOT, 2) as lab:
        desk = Desk.of(lab, "link")
        return tuple(_round(lab, desk) for _ in range(rounds + 1))[1:]


def link_table(rounds: Sequence[Round]) -> str:
    """Return the table: Gbit/s of both, and how far they are apart."""
    document = link_document(rounds)
    goal = f"{1 - GOAL:.2f} to {1 + GOAL:.2f} {'met' if document['met'] else 'MISSED'}"
    ratios = " ".join(f"{ratio:.2f}" for ratio in document["ratios"])
    return "\n".join(
        [
            "",
            f"{'free link, both directions':42}{'median Gbit/s':>14}",
            f"{ALLREDUCE:42}{document['allreduce_gbit_s']:14.2f}",
            f"{IPERF3:42}{document['iperf3_gbit_s']:14.2f}",
            f"{f'{ALLREDUCE} : {IPERF3}':50}{document['ratio']:6.2f}  goal {goal}",
            f"  ratios of the {len(rounds)} rounds: {ratios}",
        ]
    )


def link_document(rounds: Sequence[Round]) -> dict[str, Any]:
    """Return the figures for the JSON document."""
    ours, peer = [one.allreduce for one in rounds], [one.iperf3 for one in rounds]
    ratio = median_ratio(ours, peer)
    return {
        "goal": GOAL,
        "met": abs(ratio - 1) <= GOAL,
        "ratio": ratio,
        "ratios": [a / b for a, b in zip(ours, peer, strict=True)],
        "allreduce_gbit_s": median(ours),
        "iperf3_gbit_s": median(peer),
    }


def _round(lab: Lab, desk: Desk) -> Round:
    before = _iperf3(lab)
    done = desk.clusterkit(*_MEASURE)
    if done.returncode != 0:
        raise BenchError(f"{ALLREDUCE}: {done.stderr.strip()}")
    bus_bytes = json.loads(done.stdout)["best"]["all_reduce"]["busbw_gbs"]
    return Round(allreduce=bus_bytes * 8, iperf3=(before + _iperf3(lab)) / 2)


def _iperf3(lab: Lab) -> float:
    """Return what TCP carries each way while both ways are full, on the average, Gbit/s."""
    server, client = lab.nodes[:2]
    lab.run(server, ["iperf3", "--server", "--one-off", "--daemon"], check=True)
    address = lab.layout.address(server).split("/")[0]
    words = ["iperf3", "--client", address, "--bidir", "--time", str(_SECONDS), "--json"]
    end = json.loads(lab.run(client, words, check=True).stdout)["end"]
    ways = (end["sum_received"], end["sum_received_bidir_reverse"])
    return sum(float(way["bits_per_second"]) for way in ways) / len(ways) / 1e9
