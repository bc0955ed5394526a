"""What `preflight` leaves behind: the report for people, a page, a hostfile, lines for scontrol."""

from __future__ import annotations

import itertools
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clusterkit.cli.frame import console
from clusterkit.core import files
from clusterkit.core.errors import Problem, UserError
from clusterkit.core.hosts import hostlist

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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

    def on_reply(_: Reply) -> None:
        if live:
            of = f" of {total}" if total is not None else ""
            sys.stderr.write(f"\r{next(numbers)}{of} nodes have answered")
            sys.stderr.flush()

    try:
        yield on_reply
    finally:
        if live:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where files are to be written; None where there are to be none."""

    bundle: Path | None = None
    page: Path | None = None
    hostfile: Path | None = None
    excluded: Path | None = None
    metrics: Path | None = None

    def require(self) -> None:
        """Check them before nodes are asked, which may take long; makes the folder of the bundle.

        Raises:
            UserError: one of them cannot be written.
        """
        from clusterkit.observe.prometheus import require_metrics
        from clusterkit.preflight.bundle import prepare_folder

        if self.metrics is not None:
            require_metrics(self.metrics)
        for flag, what, path, check in (
            ("--html", "file", self.page, files.require_place),
            ("--write-hostfile", "file", self.hostfile, files.require_place),
            ("--write-excluded", "file", self.excluded, files.require_place),
            ("--save", "new folder", self.bundle, prepare_folder),
        ):
            if path is None:
                continue
            try:
                check(path)
            except UserError as error:
                hint = f"name a {what} in a place where you may write: {flag} PATH"
                raise UserError(error.problems[0].message, hint=hint) from error

    def fill(self, bundle: Bundle, report: Report) -> tuple[Problem, ...]:
        """Write them all, and return what could not be written: the report is still to be shown."""
        problems: list[Problem] = []
        for write, path in (
            (_write_bundle, self.bundle),
            (_write_page, self.page),
            (_write_usable, self.hostfile),
            (_write_excluded, self.excluded),
            (_write_metrics, self.metrics),
        ):
            if path is None:
                continue
            try:
                write(path, bundle, report)
            except UserError as error:
                problems += error.problems
        return tuple(problems)


def _write_bundle(folder: Path, bundle: Bundle, _: Report) -> None:
    from clusterkit.preflight.bundle import write_bundle

    write_bundle(folder, bundle)
    console.note(f"bundle       {folder}  (judge it again: clusterkit preflight --replay {folder})")


def _write_page(path: Path, bundle: Bundle, report: Report) -> None:
    from clusterkit.preflight.html import page

    files.write_text(path, page(bundle, report), mode=files.output())
    console.note(f"page         {path}")


def _write_metrics(path: Path, _: Bundle, report: Report) -> None:
    from clusterkit.observe.prometheus import write_preflight

    write_preflight(path, report, now=time.time())
    console.note(f"metrics      {path}")


def _write_usable(path: Path, bundle: Bundle, report: Report) -> None:
    if report.usable:
        _write_hostfile(path, bundle, report.usable)
    else:
        console.warn("no node is usable, so there is no hostfile to write")


def _write_excluded(path: Path, bundle: Bundle, report: Report) -> None:
    if report.exclude:
        _write_hostfile(path, bundle, report.exclude)
    else:
        files.write_text(
            path, "", mode=files.output()
        )  # what an earlier run left out may be healthy by now
        console.note(f"hostfile     {path}  (empty: no node is to be left out)")


def _write_hostfile(path: Path, bundle: Bundle, names: Sequence[str]) -> None:
    """Write nodes with their slots where all are known, else the names."""
    from clusterkit.core.hosts.hostfile import Format, write
    from clusterkit.core.model import Host

    job = bundle.job
    slots = {name: job.slots.get(name) or job.gpus_per_node for name in names}
    if None in slots.values():
        hosts, format_, more = [Host(name=name) for name in slots], Format.NAMES, " --slots N"
        if job.slots:
            console.warn(f"{path} holds names only: some of them have no slots that are known")
    else:
        hosts = [Host(name=name, slots=number) for name, number in slots.items()]
        format_, more = Format.DEEPSPEED, ""
    files.write_text(path, write(hosts, format_), mode=files.output())
    other = f"clusterkit hostfile {path} --format ...{more}"
    console.note(f"hostfile     {path}  (other formats: {other})")


def print_drain_commands(report: Report, bundle: Bundle) -> None:
    """Print the lines that drain, and on stderr why there are none."""
    from clusterkit.preflight.text import drain_commands

    lines = tuple(drain_commands(report, bundle))
    console.say(*lines)
    if not report.exclude:
        console.note("every node is usable: nothing to drain")
    elif not lines:
        left_out = hostlist.fold_set(report.exclude)
        console.note(f"nothing to drain: {left_out} is out of service already, or was not reached")
