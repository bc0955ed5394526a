"""`clusterkit top`: what the nodes of a job, or of a cluster, are doing."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import explained
from clusterkit.cli.frame.job_args import JobOrNone, exit_code_of, note_owner, run_named, state_text
from clusterkit.cli.frame.main import EXIT_FINDINGS, EXIT_INTERRUPTED
from clusterkit.config.load import load_settings
from clusterkit.core.errors import UserError
from clusterkit.core.text import harmless
from clusterkit.jobs.state.load import load_job
from clusterkit.observe.prometheus import require_metrics, write_nodes

if TYPE_CHECKING:
    from clusterkit.jobs.nodes import Subject
    from clusterkit.observe.top.snapshot import Snapshot
    from clusterkit.observe.top.watch import Watcher

    Show = Callable[[Snapshot], None]

_EVERY_S = 2.0
_STEPS_EVERY_S = 5.0
"""Slurm keeps a record of each step, and a job may have only so many (40,000 by default)."""
_LEAST_S, _MOST_S = 0.5, 86_400.0


@explained
def top(
    job: JobOrNone = None,
    cluster: str | None = None,
    hosts: str | None = None,
    via: str | None = None,
    interval: float | None = None,
    once: bool = False,
    verbose: bool = False,
    prometheus: Path | None = None,
    json: bool = False,
) -> None:
    """Show what nodes are doing: GPUs, CPUs, memory, network, and how fast a job trains.

    Without JOB: the nodes of the cluster (on Slurm, those of your own jobs). Ctrl-C leaves.

    Exit code with --once: 0, or 1 where a node does not answer or is in trouble.
    """
    from clusterkit.observe.top.watch import Watcher

    if interval is not None and not interval >= _LEAST_S:  # also where it is not a number
        raise UserError(
            f"--interval {interval:g}: nodes are asked twice a second at most",
            hint=f"--interval {_LEAST_S:g}",
        )
    if interval is not None and interval > _MOST_S:  # threads cannot wait for ever
        raise UserError(
            f"--interval {interval:g}: nodes are asked once a day at least",
            hint=f"--interval {_MOST_S:.0f}",
        )
    if prometheus is not None:
        require_metrics(prometheus)

    def aim() -> Subject:
        return _job(job, hosts, via) if job is not None else _cluster(cluster, hosts, via)

    subject = aim()
    if subject.run is not None:
        note_owner(subject.run)
    else:
        for problem in load_settings().warnings_of(subject.cluster):
            console.warn(str(problem))
    with closing(Watcher(subject)) as watcher:
        if once or json:
            raise typer.Exit(_look_once(watcher, prometheus, as_json=json, verbose=verbose))
        every_s = interval or (_STEPS_EVERY_S if subject.steps else _EVERY_S)
        raise typer.Exit(
            _look_on(watcher.snapshots(every_s, aim), subject, prometheus, verbose=verbose)
        )


def _job(word: str, hosts: str | None, via: str | None) -> Subject:
    from clusterkit.jobs.nodes import of_job

    if hosts is not None:
        raise UserError("--hosts and JOB both say which nodes", hint=f"clusterkit top {word}")
    job = load_job(run_named(word))
    return of_job(job, load_settings().clusters.get(job.submission.cluster), via=via)


def _cluster(name: str | None, hosts: str | None, via: str | None) -> Subject:
    from clusterkit.jobs.nodes import of_cluster
    from clusterkit.preflight.request import PreflightOptions

    return of_cluster(load_settings().cluster(name), PreflightOptions(hosts=hosts, via=via))


def _look_once(watcher: Watcher, prometheus: Path | None, *, as_json: bool, verbose: bool) -> int:
    from clusterkit.core.findings import Verdict
    from clusterkit.observe.top.snapshot import document_of, warnings_of

    snapshot = watcher.refresh(timeout_s=None)
    _write(prometheus, snapshot)
    if as_json:
        console.json_document(document_of(snapshot))
    else:
        say(snapshot, verbose=verbose)
    bad = any(one.verdict is not Verdict.WARN for one in warnings_of(snapshot))
    return EXIT_FINDINGS if bad else 0


def _look_on(
    snapshots: Iterator[Snapshot], subject: Subject, prometheus: Path | None, *, verbose: bool
) -> int:
    """Look until the job ends, or Ctrl-C; return the exit code of the verb."""
    last: Snapshot | None = None
    on_screen = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    interrupted = False
    try:
        with (screen if on_screen else plain)(verbose=verbose) as show:
            for snapshot in snapshots:
                last = snapshot
                _write(prometheus, snapshot)
                show(snapshot)
    except KeyboardInterrupt:
        interrupted = True
    if on_screen and last is not None:
        say(last, verbose=verbose)  # the screen has gone, and the figures with it
    if interrupted or subject.run is None:
        return EXIT_INTERRUPTED
    job = load_job(subject.run)
    console.note(f"{job.submission.job_id or job.run.key} {state_text(job)}")
    return exit_code_of(job)


def _write(path: Path | None, snapshot: Snapshot) -> None:
    if path is not None:
        write_nodes(path, snapshot)


def say(snapshot: Snapshot, *, verbose: bool) -> None:
    """Print a snapshot, all of it."""
    from clusterkit.observe.top.table import lines_of

    width = shutil.get_terminal_size().columns
    for line in lines_of(snapshot, width=width, verbose=verbose):
        if line.style in {"bold", "dim", ""}:
            text = getattr(console, line.style)(line.text) if line.style else line.text
            console.say(text)
        else:
            console.say(console.coloured(line.text, line.style))


@contextmanager
def plain(*, verbose: bool) -> Iterator[Show]:
    """Print snapshot after snapshot, an empty line between them."""
    first = True

    def show(snapshot: Snapshot) -> None:
        nonlocal first
        if not first:
            console.say("")
        first = False
        say(snapshot, verbose=verbose)
        sys.stdout.flush()

    yield show


@contextmanager
def screen(*, verbose: bool) -> Iterator[Show]:
    """Draw each snapshot over the one before, on a screen that is gone afterwards."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from clusterkit.observe.top.table import lines_of

    terminal = Console(highlight=False)
    with Live(console=terminal, screen=True, auto_refresh=False) as live:
        live.update(Text("asking the nodes", style="dim"), refresh=True)

        def show(snapshot: Snapshot) -> None:
            width, height = terminal.size
            lines = lines_of(snapshot, width=width, height=height, verbose=verbose)
            texts = ((harmless(line.text), line.style) for line in lines[:height])
            drawn = (Text(text, style=style, no_wrap=True) for text, style in texts)
            live.update(Group(*drawn), refresh=True)

        yield show
