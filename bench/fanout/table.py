"""What is printed and stored of the fan-out."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

from bench.fanout import HOSTS, OTHERS, OURS, Round
from bench.figures import Figures, against, in_words, median_ratio

GOAL = 1.1
"""Times the faster of the others."""


def fanout_table(rounds: Sequence[Round]) -> str:
    """Return the table: seconds on the clock, and processor time of the client's side."""
    document = fanout_document(rounds)
    lines = ["", f"{f'ssh to {HOSTS} addresses':30}{'median s':>9}{'p90 s':>8}{'cpu ms/host':>13}"]
    for name in (OURS, *OTHERS):
        row = document["contenders"][name]
        wall = row["wall"]
        lines.append(
            f"{name:30}{wall['median_s']:9.2f}{wall['p90_s']:8.2f}{row['cpu_ms_per_host']:13.1f}"
        )
    goal = against(f"{GOAL}", met=document["met"])
    return "\n".join(
        [
            *lines,
            f"{'against the faster':30}{document['ratio']:9.2f}  goal {goal}",
            f"  ratios of the {len(rounds)} rounds: {in_words(document['ratios'])}",
            f"  {OURS}: {document['ask_s']:.2f} s without start-up, {document['peak_mib']:.0f} MiB",
        ]
    )


def fanout_document(rounds: Sequence[Round]) -> dict[str, Any]:
    """Return the figures for the JSON document."""
    ours = [one[OURS].wall_s for one in rounds]
    faster = [min(one[name].wall_s for name in OTHERS) for one in rounds]
    ratio = median_ratio(ours, faster)
    return {
        "hosts": HOSTS,
        "goal": GOAL,
        "met": ratio <= GOAL,
        "ratio": ratio,
        "ratios": [a / b for a, b in zip(ours, faster, strict=True)],
        "ask_s": statistics.median(one[OURS].ask_s or 0.0 for one in rounds),
        "peak_mib": max(one[OURS].peak_mib or 0.0 for one in rounds),
        "contenders": {name: _contender(rounds, name) for name in (OURS, *OTHERS)},
    }


def _contender(rounds: Sequence[Round], name: str) -> dict[str, Any]:
    runs = [one[name] for one in rounds]
    return {
        "wall": dataclasses.asdict(Figures.of([run.wall_s for run in runs])),
        "cpu_ms_per_host": statistics.median(run.cpu_s for run in runs) / HOSTS * 1000,
    }
