"""Where the time of one submission went, from the notes of every bash and Python that started.

A milestone is reached when the last node has reached it: all agents wait for the last one, so
the stages between milestones add up to the whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from bench.figures import BenchError

HEAD = "head"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A process that started: when, on which host, and its command line in short."""

    at: float
    host: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Milestones:
    """Moments of one submission, in seconds since the epoch."""

    typed: float
    sbatch: float
    job: float
    task: float
    agent: float
    first_line: float
    """Of the first rank that got there."""
    all_lines: float
    worker: float | None = None
    """clusterkit's own process on the nodes."""
    node_script: float | None = None


STAGES = {
    "client": "until sbatch starts",
    "slurm": "sbatch, queue, start of the batch script",
    "batch script": "until srun has started on every node",
    "worker": "clusterkit's process on the node",
    "node script": "until torchrun starts",
    "torchrun": "import torch, rendezvous, start the script",
}
"""The stages in their order, and what happens in them."""


def read_trace(path: Path) -> tuple[Start, ...]:
    """Read the notes, earliest first; a line is TIME, HOST and WORDS between tabs."""
    rows = [line.split("\t", 2) for line in path.read_text().splitlines() if line.count("\t") >= 2]
    starts = [Start(at=float(at), host=host, words=words) for at, host, words in rows]
    return tuple(sorted(starts, key=lambda start: start.at))


def milestones(typed: float, trace: tuple[Start, ...], ranks: Mapping[str, float]) -> Milestones:
    """Find the milestones of one submission.

    Raises:
        BenchError: a milestone that every submission passes is not in the trace.
    """
    return Milestones(
        typed=typed,
        sbatch=_required("sbatch", _last(trace, "bash sbatch", on_head=True)),
        job=_required("the batch script", _last(trace, "bash slurm_script")),
        task=_required("srun's task", _last(trace, "bash rank")),
        agent=_required("torchrun", _last(trace, "agent.py ", "torchrun ")),
        worker=_last(trace, "-m clusterkit.executors.node"),
        node_script=_last(trace, "bash node.sh"),
        first_line=min(ranks.values()),
        all_lines=max(ranks.values()),
    )


def stages(of: Milestones) -> dict[str, float]:
    """Return the seconds of each stage; a contender without clusterkit's worker has none of it."""
    node_script = of.node_script if of.node_script is not None else of.task
    marks = (of.typed, of.sbatch, of.job, of.task, node_script, of.agent, of.all_lines)
    return dict(zip(STAGES, (later - earlier for earlier, later in pairwise(marks)), strict=True))


def _last(trace: tuple[Start, ...], *marks: str, on_head: bool = False) -> float | None:
    """Return when the last host first started something whose words hold one of the marks."""
    first: dict[str, float] = {}
    for start in trace:
        if (start.host == HEAD) == on_head and any(mark in start.words for mark in marks):
            first.setdefault(start.host, start.at)
    return max(first.values(), default=None)


def _required(what: str, at: float | None) -> float:
    if at is None:
        raise BenchError(f"the start of {what} was not noted")
    return at
