"""What `preflight` leaves behind: the report for people, a page, a hostfile, lines for scontrol."""

from __future__ import annotations

import itertools
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from clusterkit import files, hostlist
from clusterkit.cli import console

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterkit.preflight.bundle import Bundle
    from clusterkit.preflight.report import Report
    from clusterkit.transport.base import Reply

_COLOURS = {"pass": "green", "warn": "yellow", "fail": "red", "unknown": "magenta", "skip": "cyan"}


def show(
    report: Report, *, verbose: bool = False, say: Callable[[str], None] = console.say
) -> None:
    """Print a report for people."""
    from clusterkit.preflight.text import report_lines

    width = min(shutil.get_terminal_size().columns, 100)
    for verdict, line in report_lines(report, width=width, verbose=verbose):
        if verdict is None:
            say(line)
        else:
            say(line.replace(verdict, console.coloured(verdict, _COLOURS[verdict]), 1))


@contextmanager
def counting(total: int | None) -> Iterator[Callable[[Reply], None]]:
    """Count on a terminal how many nodes have answered."""
    live = sys.stderr.isatty()
    numbers = itertools.count(1)

    def heard(_: Reply) -> None:
        if live:
            of = f" of {total}" if total is not None else ""
            sys.stderr.write(f"\r{next(numbers)}{of} nodes have answered")
            sys.stderr.flush()

    try:
        yield heard
    finally:
        if live:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def write_page(path: Path, bundle: Bundle, report: Report) -> None:
    """Write the report as a page."""
    from clusterkit.preflight.html import page

    files.write_text(path, page(bundle, report))
    console.note(f"page         {path}")


def write_usable(path: Path, bundle: Bundle, report: Report) -> None:
    """Write the usable nodes as a hostfile: with slots where all are known, else the names."""
    from clusterkit.hostfile import Format, write
    from clusterkit.model import Host

    if not report.usable:
        console.warn("no node is usable, so there is no hostfile to write")
        return
    job = bundle.job
    slots = {name: job.slots.get(name) or job.gpus_per_node for name in report.usable}
    if None in slots.values():
        hosts, format_, more = [Host(name=name) for name in slots], Format.NAMES, " --slots N"
        if job.slots:
            console.warn(f"{path} holds names only: some of them have no slots that are known")
    else:
        hosts = [Host(name=name, slots=number) for name, number in slots.items()]
        format_, more = Format.DEEPSPEED, ""
    files.write_text(path, write(hosts, format_))
    other = f"clusterkit hostfile {path} --format ...{more}"
    console.note(f"hostfile     {path}  (other formats: {other})")


def print_drain_commands(report: Report, bundle: Bundle) -> None:
    """Print the lines that drain, and on stderr why there are none."""
    from clusterkit.preflight.drain import drain_commands

    lines = tuple(drain_commands(report, bundle))
    for line in lines:
        console.say(line)
    if not report.exclude:
        console.note("every node is usable: nothing to drain")
    elif not lines:
        unfit = hostlist.fold_set(report.exclude)
        console.note(f"nothing to drain: {unfit} is out of service already, or was not reached")
