"""What is printed and stored of judging."""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any

from bench.figures import Figures, against, in_words, median_ratio
from bench.judge import CONTENDERS, NODES, REPLAY, YARDSTICK, Judged

GOAL_S = 5.0
GOAL_MIB = 1024.0


def judge_table(judged: Judged) -> str:
    """Return the table: seconds and peak memory of each process."""
    document = judge_document(judged)
    head = f"{f'judging {NODES} nodes':30}{'median s':>9}{'p90 s':>8}{'cpu s':>8}{'MiB':>7}"
    lines = ["", f"{head}  goal"]
    for name in CONTENDERS:
        row = document["contenders"][name]
        wall = row["wall"]
        lines.append(
            f"{name:30}{wall['median_s']:9.2f}{wall['p90_s']:8.2f}{row['cpu_s']:8.2f}"
            f"{row['peak_mib']:7.0f}  {_verdict(row)}".rstrip()
        )
    size = f"{judged.files} files, {judged.mib:.0f} MiB of text"
    return "\n".join(
        [
            *lines,
            f"{f'{REPLAY} : {YARDSTICK}':38}{document['ratio']:.2f}",
            f"  ratios of the {len(judged.rounds)} rounds: {in_words(document['ratios'])}",
            f"  {size}; exactly the {judged.unfit} unhealthy nodes were named each time",
        ]
    )


def judge_document(judged: Judged) -> dict[str, Any]:
    """Return the figures for the JSON document."""
    replays = [one[REPLAY].wall_s for one in judged.rounds]
    splits = [one[YARDSTICK].wall_s for one in judged.rounds]
    return {
        "nodes": NODES,
        "files": judged.files,
        "mib": judged.mib,
        "unfit": judged.unfit,
        "goal_s": GOAL_S,
        "goal_mib": GOAL_MIB,
        "ratio": median_ratio(replays, splits),
        "ratios": [a / b for a, b in zip(replays, splits, strict=True)],
        "contenders": {name: _contender(judged, name) for name in CONTENDERS},
    }


def _contender(judged: Judged, name: str) -> dict[str, Any]:
    runs = [one[name] for one in judged.rounds]
    wall = Figures.of([run.wall_s for run in runs])
    peak_mib = max(run.peak_mib for run in runs)
    met = None if name == YARDSTICK else wall.median_s <= GOAL_S and peak_mib <= GOAL_MIB
    return {
        "wall": dataclasses.asdict(wall),
        "cpu_s": statistics.median(run.cpu_s for run in runs),
        "peak_mib": peak_mib,
        "met": met,
    }


def _verdict(row: dict[str, Any]) -> str:
    if row["met"] is None:
        return ""
    return against(f"{GOAL_S:.0f} s, {GOAL_MIB:.0f} MiB", met=row["met"])
