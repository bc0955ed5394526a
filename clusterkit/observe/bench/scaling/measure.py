"""Run a job at one size after the other, look on for long enough, and end it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from clusterkit.core.errors import ClusterkitError
from clusterkit.core.model import JobState, LaunchPlan
from clusterkit.core.throughput import LINE
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.jobs.document import failure_of
from clusterkit.jobs.state.load import Job
from clusterkit.jobs.submit.preflight import SubmitCallbacks
from clusterkit.jobs.submit.submit import Prepared, in_foreground
from clusterkit.jobs.watch import RESULTS_EVERY_S, Watch, cancel
from clusterkit.observe.bench.scaling.evidence import NodeEvidence, NodeWatch
from clusterkit.observe.bench.scaling.rates import (
    Bounds,
    Counted,
    ThroughputLog,
    counted,
    enough,
    rates,
    stalled,
)
from clusterkit.observe.bench.scaling.result import By, Ladder, Row, Size, in_words

_SILENT = "it printed no line that tells its throughput"
_WELL = frozenset({JobState.SUCCEEDED, JobState.CANCELLED, JobState.TIMEOUT, JobState.PREEMPTED})
"""How a run may have ended whose lines count."""
_CUT_OFF = frozenset({JobState.CANCELLED, JobState.TIMEOUT})
"""How a run may have ended that hung."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOptions:
    """How runs are measured."""

    bounds: Bounds
    timeout_s: float
    """A run that prints no throughput for so long is given up, however much it told before."""
    global_batch: bool
    """Whether one batch is divided among the slots, however many there are."""
    command_line: tuple[str, ...] = ()


@dataclass(slots=True)
class _Look:
    """What was seen of one run."""

    log: ThroughputLog
    job: Job
    evidence: tuple[NodeEvidence, ...] = field(default=())
    over: bool = False
    """The job ended by itself, or at the hands of somebody else."""
    given_up: bool = False
    silent_s: float = 0.0
    """Since the last line that tells its throughput."""
    skip: int = 0
    """Lines that were printed until the microbenchmark was done, which takes CPUs."""


def measure(
    ladder: Ladder,
    options: MeasureOptions,
    *,
    callbacks: SubmitCallbacks,
    started: Callable[[Size, RunFolder], None],
) -> Iterator[Row]:
    """Yield what came of each size, smallest first; a run that continues is ended before the next.

    Once a script is known to print no throughput, larger sizes are not tried. When the caller is
    interrupted, the job that runs is ended.
    """
    silent = False
    for size, prepared in ladder.jobs.items():
        if silent:
            why = "the smaller run told no throughput"
            slots = prepared.plan.processes
            row = Row(size=size, slots=slots, state="not tried", problem=why)
        else:
            row = _measured(ladder.by, size, prepared, options, callbacks, started)
        yield row
        silent = silent or row.problem == _SILENT


def _measured(
    by: By,
    size: Size,
    prepared: Prepared,
    options: MeasureOptions,
    callbacks: SubmitCallbacks,
    started: Callable[[Size, RunFolder], None],
) -> Row:
    with ExitStack() as held:
        job = in_foreground(prepared, callbacks=callbacks, command_line=options.command_line)
        try:
            plan, run, submission = held.enter_context(job)
        except ClusterkitError as error:
            slots = prepared.plan.processes
            return Row(size=size, slots=slots, state="refused", problem=str(error))
        try:
            started(size, run)
            text = in_words(by, size.count)
            show = partial(_show, callbacks.show, text, time.monotonic())
            look = _look(plan, run, submission.job_id, options, show)
        finally:
            # Whatever goes wrong, also Ctrl-C: nothing of ours is left running.
            ended = cancel(run)
    look.job = ended if not look.job.status.state.final else look.job
    return _row(size, prepared.plan, run, look, options)


def _show(show: Callable[[str], None], size: str, began: float, look: _Look) -> None:
    """Tell how far a run is."""
    state, seconds = look.job.status.state.value, time.monotonic() - began
    told = f", {_last_message(look)}" if look.log.readings else ""
    show(f"{size}: {state}{told}, {seconds:.0f} s")


def _look(
    plan: LaunchPlan,
    run: RunFolder,
    job_id: str | None,
    options: MeasureOptions,
    show: Callable[[_Look], None],
) -> _Look:
    """Look at a run until enough of it was seen, it is over, or it stays silent for too long."""
    watch = Watch(run, starts=True)
    watch.look()
    look = _Look(log=ThroughputLog(run), job=watch.job)
    with closing(NodeWatch(plan, job_id)) as nodes:
        _look_on(look, watch, nodes, options, show)
        look.evidence = nodes.evidence()
    return look


def _look_on(
    look: _Look,
    watch: Watch,
    nodes: NodeWatch,
    options: MeasureOptions,
    show: Callable[[_Look], None],
) -> None:
    last_output_at = time.monotonic()
    while True:
        watch.look()
        look.job, look.over = watch.job, watch.over
        now = time.monotonic()
        before = len(look.log.readings)
        look.log.read(now, over=look.over)
        if len(look.log.readings) > before or look.job.status.state is JobState.PENDING:
            last_output_at = now
        look.silent_s = now - last_output_at
        show(look)
        if look.over:
            break
        if look.log.readings and nodes.sample():
            look.log.read(time.monotonic())
            look.skip = len(look.log.readings)
        if enough(look.log.readings, options.bounds, now, skip=look.skip):
            nodes.finish()
            break
        if look.silent_s > options.timeout_s:
            look.given_up = True
            break
        time.sleep(RESULTS_EVERY_S)


def _row(size: Size, plan: LaunchPlan, run: RunFolder, look: _Look, options: MeasureOptions) -> Row:
    readings, warmup = look.log.readings, options.bounds.warmup
    seen = counted(readings, warmup, skip=look.skip)
    if not seen.readings:  # the run was short
        seen = counted(readings, warmup)
    found = rates(seen, slots=plan.processes, global_batch=options.global_batch)
    problem = _mistake(look, seen, run, options, measured=bool(found))
    return Row(
        size=size,
        slots=plan.processes,
        job_id=look.job.submission.job_id,
        run_dir=str(run.path),
        state=look.job.status.state.value,
        rates={} if problem else found,
        steps=seen.steps,
        step_s=seen.step_s,
        evidence=look.evidence,
        **problem,
    )


def _mistake(
    look: _Look, seen: Counted, run: RunFolder, options: MeasureOptions, *, measured: bool
) -> dict[str, Any]:
    """Return why a run has no rate, and what to do, as fields of `Row`; nothing where it has."""
    status, logs = look.job.status, f"its output: {run.logs}"
    ended_badly = look.over and status.state is not JobState.SUCCEEDED and not measured
    if status.state not in _WELL or ended_badly:
        name = look.job.submission.job_id or run.key
        return {
            "problem": _how_it_failed(look.job),
            "hint": f"clusterkit diagnose {name}",
            "failed": status.state.final,
        }
    cut_off = look.over and status.state in _CUT_OFF
    if look.log.readings and (look.given_up or (cut_off and stalled(seen, look.silent_s))):
        return {
            "problem": f"it was silent for {look.silent_s:.0f} s after {_last_message(look)}",
            "hint": "where its ranks stand while it hangs: clusterkit diagnose --stacks JOB\n"
            f"if it prints that seldom, --patience SECONDS waits for longer\n{logs}",
            "failed": True,
        }
    if measured:
        return {}
    if not look.log.readings:
        line = f"print one such as `{LINE}`, or `tokens/s N`, of the whole job"
        longer = "; --patience SECONDS waits for longer" if look.given_up else ""
        return {"problem": _SILENT, "hint": f"{line}{longer}\n{logs}"}
    return {
        "problem": f"no throughput line came after the warm-up of {options.bounds.warmup} steps",
        "hint": f"a smaller --warmup, or a run that is longer\n{logs}",
    }


def _last_message(look: _Look) -> str:
    readings = look.log.readings
    last_steps = (one.throughput.step for one in reversed(readings))
    step = next((step for step in last_steps if step is not None), None)
    lines = "1 line" if len(readings) == 1 else f"{len(readings)} lines"
    return f"{lines} of its throughput" if step is None else f"step {step}"


def _how_it_failed(job: Job) -> str:
    status, failure = job.status, failure_of(job)
    code = f" (exit {status.exit_code})" if status.exit_code else ""
    how = "failed" if status.state is JobState.FAILED else f"ended as {status.state.value}"
    text = f"the job {how}{code}" + (f": {status.reason}" if status.reason else "")
    lines = (failure.message or "", *reversed(failure.tail)) if failure else ()
    last = next((line.strip() for line in lines if line.strip()), "")
    return f"{text}\n{last}" if last else text
