"""`clusterkit report`: what jobs have cost, and how much of it trained."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import JsonFlag, explained
from clusterkit.cli.jobs.choose import chosen_runs, seconds_of
from clusterkit.config.load import load_settings
from clusterkit.core.model import ClusterSpec
from clusterkit.core.text import in_words, table
from clusterkit.jobs.state.load import Job, load_jobs
from clusterkit.observe import prometheus as metrics
from clusterkit.observe.account import Total, Usage, total_of, usage_of


@explained
def report(
    since: str = "7d",
    cluster: str | None = None,
    prometheus: Path | None = None,
    json: JsonFlag = False,
) -> None:
    """Tell what jobs have cost: GPU-hours, and time that trained against time that was lost.

    A GPU is a slot, also where that is a CPU process. Lost is the time in
    which a job waited for its first start and for the next ones, and
    computed steps again.
    """
    if prometheus is not None:
        metrics.require_metrics(prometheus)
    now = time.time()
    began = now - seconds_of("--since", since)
    clusters = load_settings().clusters
    jobs = load_jobs(chosen_runs(cluster=cluster, since=since))
    of_each: dict[str, list[Usage]] = {}
    for job in jobs:
        of_each.setdefault(job.submission.cluster, []).append(_usage(job, clusters))
    totals = [total_of(name, of_each[name]) for name in sorted(of_each)]
    every = total_of("all", [one for usages in of_each.values() for one in usages])
    if prometheus is not None:
        metrics.write_account(prometheus, totals, since=began, now=now)
    if json:
        rows = [_document(total) for total in totals]
        console.json_document({"since": began, "clusters": rows, "all": _document(every)})
    elif not jobs:
        console.note(f"no jobs were submitted in the last {since}")
    else:
        _print(totals if len(totals) == 1 else [*totals, every])


def usage_here(job: Job) -> Usage:
    """Return what a job has cost, by the prices of the configuration here."""
    return _usage(job, load_settings().clusters)


def usage_lines(usage: Usage) -> list[str]:
    """Return what a job has cost, as `status JOB --usage` tells it."""
    if not usage.attempts:
        return ["  usage      nothing yet: no attempt has ended"]
    busy = "" if usage.busy is None else f", {usage.busy:.0%} busy"
    price = "" if usage.cost is None else f", {usage.cost:.2f} at {usage.price:g} an hour"
    again = sum(one.recomputed for one in usage.attempts)
    lost = f"queue {in_words(usage.queue_s)}, restarts {in_words(usage.restart_s)}"
    lines = [
        f"  usage      {usage.gpu_hours:.2f} GPU-hours{busy}{price}",
        f"  training   {in_words(usage.training_s)}{_percent(usage.goodput)}",
        f"  lost       {lost}, {again} steps repeated {in_words(usage.recomputed_s)}",
    ]
    several = len(usage.attempts) > 1
    for one in usage.attempts if several else ():
        steps = "" if one.first_step is None else f", steps {one.first_step}-{one.last_step}"
        gpus = f"{one.slots} GPU" + "s" * (one.slots != 1)
        times = f"ran {in_words(one.elapsed_s)} after {in_words(one.before_s)} waiting"
        lines.append(f"    attempt {one.attempt + 1}: {gpus}, {times}{steps}")
    return lines


def _percent(part: float | None) -> str:
    return "" if part is None else f", {part:.0%} of all time"


def _usage(job: Job, clusters: Mapping[str, ClusterSpec]) -> Usage:
    return usage_of(job, clusters.get(job.submission.cluster))


def _document(total: Total) -> dict[str, object]:
    return {**dataclasses.asdict(total), "goodput": total.goodput}


def _print(totals: Sequence[Total]) -> None:
    head = ("CLUSTER", "JOBS", "GPU-H", "TRAINING", "QUEUE", "RESTARTS", "AGAIN", "GOODPUT")
    priced = any(total.cost is not None for total in totals)
    rows = [
        (
            total.name,
            total.jobs,
            f"{total.gpu_hours:,.1f}",
            *map(in_words, (total.training_s, total.queue_s, total.restart_s, total.recomputed_s)),
            "-" if total.goodput is None else f"{total.goodput:.0%}",
            *([_cost(total)] if priced else ()),
        )
        for total in totals
    ]
    lines = table([(*head, *(["COST"] if priced else ())), *rows], "<>>>>>>>>")
    console.say(console.bold(lines[0]), *lines[1:])
    unpriced = totals[-1].unpriced
    if priced and unpriced:
        console.note(f"of {unpriced} jobs no price is known: set `price` of their cluster")


def _cost(total: Total) -> str:
    return "-" if total.cost is None else f"{total.cost:,.2f}"
