"""What is printed and stored of the measurements."""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import shlex
import subprocess
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.figures import Figures, against, in_words, median_difference, median_ratio
from bench.race import BY_HAND, CLUSTERKIT, UNASKED, Round
from bench.stages import STAGES, Milestones, stages
from bench.startup import Startup
from clusterkit import __version__

SCHEMA = 1
RACE_GOAL = 1.2


def frame(argv: Sequence[str]) -> dict[str, Any]:
    """Return the document before any measurement: what was run, when, on what."""
    return {
        "schema": SCHEMA,
        "began": datetime.now(tz=UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", "bench", *argv[1:]]),
        "clusterkit": __version__,
        "commit": _commit(),
        "machine": f"{_processor()}, {len(os.sched_getaffinity(0))} cores",
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
    }


def finish(document: dict[str, Any]) -> None:
    """Add what is known at the end only."""
    document["load_after"] = os.getloadavg()[0]


def heading(document: dict[str, Any]) -> str:
    """Return the lines above the tables."""
    return (
        f"{document['command']}\n"
        f"{document['began']}, clusterkit {document['clusterkit']} at {document['commit']}\n"
        f"Python {document['python']}, {document['machine']}"
    )


def closing(document: dict[str, Any]) -> str:
    """Return the lines below the tables."""
    before, after = document["load_before"], document["load_after"]
    text = f"\nload average {before:.1f} before, {after:.1f} after"
    if before > len(os.sched_getaffinity(0)):
        text += "\nthe machine was busy: ratios and processor time say more than the clock"
    return text


def startup_table(found: Sequence[Startup]) -> str:
    """Return the table of the start-up times, in milliseconds."""
    head = f"{'start-up, ms':30}{'median':>8}{'p90':>8}{'least':>8}{'cpu':>8}{'x bare':>8}  goal"
    rows = [
        f"{one.title:30}{_ms(one.wall.median_s)}{_ms(one.wall.p90_s)}{_ms(one.wall.least_s)}"
        f"{_ms(one.cpu.median_s)}{one.yardsticks:8.1f}  {_startup_goal(one)}".rstrip()
        for one in found
    ]
    return "\n".join(["", head, *rows])


def startup_document(found: Sequence[Startup]) -> list[dict[str, Any]]:
    """Return the start-up times for the JSON document."""
    return [{**dataclasses.asdict(one), "met": _met(one)} for one in found]


def race_table(rounds: Sequence[Round]) -> str:
    """Return the table of the races, in seconds: the whole, then where the difference went."""
    document = race_document(rounds)
    lines = [
        "",
        f"{'submit to first line, s':30}{'by hand':>9}{'clusterkit':>12}{'ratio':>8}  goal",
    ]
    titles = {
        "all": "every rank",
        "unasked": "every rank, --preflight off",
        "first": "first rank",
        "unqueued": "every rank, without slurm",
    }
    for key, title in titles.items():
        row = document[key]
        goal = "" if row["met"] is None else against(f"  {RACE_GOAL}", met=row["met"])
        lines.append(
            f"{title:30}{row['by_hand']['median_s']:9.2f}{row['clusterkit']['median_s']:12.2f}"
            f"{row['ratio']:8.2f}{goal}"
        )
    row = document["all"]
    lines += [
        f"{'every rank (p90)':30}{row['by_hand']['p90_s']:9.2f}{row['clusterkit']['p90_s']:12.2f}",
        f"  ratios of the {len(rounds)} rounds: {in_words(row['ratios'])}",
        f"  with --preflight off: {in_words(document['unasked']['ratios'])}",
        "",
        f"{'where it goes (medians), s':30}{'by hand':>9}{'clusterkit':>12}{'more':>8}",
    ]
    for stage in document["stages"]:
        lines.append(
            f"{stage['stage']:30}{stage['by_hand_s']:9.2f}{stage['clusterkit_s']:12.2f}"
            f"{stage['more_s']:+8.2f}"
        )
    lines.append(f"  of the client's, asking the nodes (preflight): {document['preflight_s']:.2f}")
    return "\n".join(lines)


def race_document(rounds: Sequence[Round]) -> dict[str, Any]:
    """Return the races for the JSON document."""
    by_hand = [one.by_hand for one in rounds]
    clusterkit = [one.clusterkit for one in rounds]
    unasked = [one.unasked for one in rounds]
    return {
        "contenders": [BY_HAND, CLUSTERKIT, UNASKED],
        "goal": RACE_GOAL,
        "all": _pair(by_hand, clusterkit, _to_all_lines, goal=RACE_GOAL),
        "unasked": _pair(by_hand, unasked, _to_all_lines, goal=RACE_GOAL),
        "first": _pair(by_hand, clusterkit, _to_first_line),
        "unqueued": _pair(by_hand, clusterkit, _to_all_lines_unqueued),
        "stages": [_stage(rounds, stage, meaning) for stage, meaning in STAGES.items()],
        "preflight_s": median_difference(
            [stages(one)["client"] for one in clusterkit],
            [stages(one)["client"] for one in unasked],
        ),
        "rounds": [
            {
                "by_hand": _since(one.by_hand),
                "clusterkit": _since(one.clusterkit),
                "unasked": _since(one.unasked),
            }
            for one in rounds
        ],
    }


def _pair(
    by_hand: Sequence[Milestones],
    clusterkit: Sequence[Milestones],
    seconds: Callable[[Milestones], float],
    *,
    goal: float | None = None,
) -> dict[str, Any]:
    less, more = [seconds(one) for one in by_hand], [seconds(one) for one in clusterkit]
    ratio = median_ratio(more, less)
    return {
        "by_hand": dataclasses.asdict(Figures.of(less)),
        "clusterkit": dataclasses.asdict(Figures.of(more)),
        "ratio": ratio,
        "ratios": [one / other for one, other in zip(more, less, strict=True)],
        "met": None if goal is None else ratio <= goal,
    }


def _to_all_lines(of: Milestones) -> float:
    return of.all_lines - of.typed


def _to_first_line(of: Milestones) -> float:
    return of.first_line - of.typed


def _to_all_lines_unqueued(of: Milestones) -> float:
    """Return the time without Slurm's own, which is up to a second by chance."""
    return _to_all_lines(of) - stages(of)["slurm"]


def _stage(rounds: Sequence[Round], stage: str, meaning: str) -> dict[str, Any]:
    by_hand = [stages(one.by_hand)[stage] for one in rounds]
    clusterkit = [stages(one.clusterkit)[stage] for one in rounds]
    return {
        "stage": stage,
        "meaning": meaning,
        "by_hand_s": Figures.of(by_hand).median_s,
        "clusterkit_s": Figures.of(clusterkit).median_s,
        "more_s": median_difference(clusterkit, by_hand),
    }


def _since(of: Milestones) -> dict[str, float]:
    """Return the milestones in seconds since the command was typed."""
    moments = dataclasses.asdict(of)
    return {name: at - of.typed for name, at in moments.items() if at is not None}


def _met(one: Startup) -> bool | None:
    if one.goal_s is None:
        return None
    busy = one.goal_cpu_s is not None and one.cpu.median_s > one.goal_cpu_s
    return one.wall.median_s <= one.goal_s and not busy


def _startup_goal(one: Startup) -> str:
    if one.goal_s is None:
        return ""
    cpu = "" if one.goal_cpu_s is None else f", cpu {one.goal_cpu_s * 1000:.0f}"
    return against(f"{one.goal_s * 1000:.0f}{cpu}", met=bool(_met(one)))


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:8.0f}"


def _commit() -> str:
    argv = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def _processor() -> str:
    match = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return match[1].strip() if match else platform.machine()
