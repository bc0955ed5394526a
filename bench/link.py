"""What `clusterkit bench collectives` finds on a free link, beside iperf3.

The link joins two hosts of the practice cluster, and nothing limits it but the processors. Once it
carries frames of its MTU, as a wire does; once as much at once as a virtual network card hands
over, which is faster than two processors can add up (see `tests/lab/traffic.py`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.cluster import practice_cluster
from bench.figures import BenchError, against, in_words, median_ratio
from tests.helpers.desk import Desk
from tests.lab.lab import Lab
from tests.lab.traffic import framed, iperf3

GOAL = 0.15
WIRE, MEMORY = "frames of 1500 bytes", "64 KiB at once"
"""How the link passes on what TCP gives it; the goal is for the first."""
ROOT = Path("/tmp/ck-bench-link")
_LINKS: dict[str, Callable[[Lab], AbstractContextManager[object]]] = {
    WIRE: framed,
    MEMORY: nullcontext,
}
_SECONDS = 3
_MEASURE = (
    *("bench", "collectives", "--json", "--cluster", "rack", "--backend", "gloo"),
    *("--nodes", "2", "--gpus-per-node", "1", "--sizes", "16M:64M", "--iters", "20"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What both found, one right after the other, Gbit/s in each direction."""

    allreduce: float
    iperf3: float


def measure(rounds: int) -> dict[str, tuple[Round, ...]]:
    """Measure both links between two hosts, each after one round that does not count.

    Raises:
        BenchError: the lab did not start, or somebody could not measure.
    """
    if shutil.which("iperf3") is None:
        raise BenchError("nobody to compare with: apt-get install iperf3")
    found = {}
    with practice_cluster(ROOT, 2) as lab:
        desk = Desk.of(lab, "link")
        for name, link in _LINKS.items():
            with link(lab):
                found[name] = tuple(_round(lab, desk) for _ in range(rounds + 1))[1:]
    return found


def link_table(links: dict[str, tuple[Round, ...]]) -> str:
    """Return the table: Gbit/s of both, and how far they are apart."""
    columns = f"{'all-reduce':>12}{'iperf3':>8}{'ratio':>7}  goal"
    lines = ["", f"{'free link, Gbit/s each way':32}{columns}"]
    for name, told in link_document(links).items():
        rates = f"{told['allreduce_gbit_s']:12.2f}{told['iperf3_gbit_s']:8.2f}"
        lines.append(f"{name:32}{rates}{told['ratio']:7.2f}  {_judged(told)}")
        lines.append(f"  ratios of the rounds: {in_words(told['ratios'])}")
    return "\n".join(lines)


def link_document(links: dict[str, tuple[Round, ...]]) -> dict[str, dict[str, Any]]:
    """Return the figures for the JSON document."""
    return {name: _summary(name, rounds) for name, rounds in links.items()}


def _summary(name: str, rounds: Sequence[Round]) -> dict[str, Any]:
    ours, peer = [one.allreduce for one in rounds], [one.iperf3 for one in rounds]
    ratio = median_ratio(ours, peer)
    return {
        "goal": GOAL if name == WIRE else None,
        "met": abs(ratio - 1) <= GOAL if name == WIRE else None,
        "ratio": ratio,
        "ratios": [a / b for a, b in zip(ours, peer, strict=True)],
        "allreduce_gbit_s": median(ours),
        "iperf3_gbit_s": median(peer),
    }


def _judged(told: dict[str, Any]) -> str:
    if told["goal"] is None:
        return "none"
    return against(f"{1 - GOAL:.2f} to {1 + GOAL:.2f}", met=told["met"])


def _round(lab: Lab, desk: Desk) -> Round:
    before = iperf3(lab, seconds=_SECONDS)
    done = desk.clusterkit(*_MEASURE)
    if done.returncode != 0:
        raise BenchError(f"clusterkit bench collectives: {done.stderr.strip()}")
    bus_bytes = json.loads(done.stdout)["best"]["all_reduce"]["busbw_gbs"]
    return Round(allreduce=bus_bytes * 8, iperf3=(before + iperf3(lab, seconds=_SECONDS)) / 2)
