"""What `preflight` leaves behind: the report for people, a page, a hostfile, lines for scontrol."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from clusterkit.cli.frame import console
from clusterkit.core import files
from clusterkit.core.errors import Problem, UserError
from clusterkit.core.findings import Verdict
from clusterkit.core.hosts import hostlist
from clusterkit.preflight.bundle import Bundle, prepare_folder, write_bundle
from clusterkit.preflight.report import Report
from clusterkit.preflight.text import drain_commands, drain_reason, report_lines

_COLOURS = {"pass": "green", "warn": "yellow", "fail": "red", "unknown": "magenta", "skip": "cyan"}


def show(
    report: Report,
    *,
    verbose: bool = False,
    concluded: bool = True,
    say: Callable[[str], None] = console.say,
) -> None:
    """Print a report for people, as `report_lines` has it."""
    width = min(shutil.get_terminal_size().columns, 100)
    lines = report_lines(report, width=width, verbose=verbose, concluded=concluded)
    for verdict, line in lines:
        if verdict is None:
            say(line)
        else:
            say(line.replace(verdict, console.coloured(verdict, _COLOURS[verdict]), 1))


def require(places: Mapping[str, Path]) -> None:
    """Check what is to be written, by flag, before nodes are asked; makes the folder of the bundle.

    Raises:
        UserError: one of them cannot be written.
    """
    for flag, path in places.items():
        if flag == "--prometheus":
            from clusterkit.observe.prometheus import require_metrics

            require_metrics(path)
            continue
        what = "new folder" if flag == "--save" else "file"
        try:
            (prepare_folder if flag == "--save" else files.require_place)(path)
        except UserError as error:
            hint = f"name a {what} in a place where you may write: {flag} PATH"
            raise UserError(error.problems[0].message, hint=hint) from error


def fill(places: Mapping[str, Path], bundle: Bundle, report: Report) -> tuple[Problem, ...]:
    """Write them all, and return what could not be written: the report is still to be shown."""
    problems: list[Problem] = []
    for flag, path in places.items():
        try:
            _write(flag, path, bundle, report)
        except UserError as error:
            problems += error.problems
    return tuple(problems)


def _write(flag: str, path: Path, bundle: Bundle, report: Report) -> None:
    match flag:
        case "--save":
            write_bundle(path, bundle)
            again = f"clusterkit preflight --replay {path}"
            console.note(f"bundle       {path}  (evaluate it again: {again})")
        case "--html":
            from clusterkit.preflight.html.page import page

            files.write_text(path, page(bundle, report), mode=files.output())
            console.note(f"page         {path}")
        case "--prometheus":
            from clusterkit.observe.prometheus import write_preflight

            write_preflight(path, report, now=time.time())
            console.note(f"metrics      {path}")
        case "--spool":
            files.write_json(path, report.document(), mode=files.output())
        case "--write-hostfile" if report.usable:
            _write_hostfile(path, bundle, report.usable)
        case "--write-hostfile":
            console.warn("no node is usable, so there is no hostfile to write")
        case _ if report.exclude:
            _write_hostfile(path, bundle, report.exclude)
        case _:  # what an earlier run left out may be healthy by now
            files.write_text(path, "", mode=files.output())
            console.note(f"hostfile     {path}  (empty: no node is to be left out)")


def _write_hostfile(path: Path, bundle: Bundle, names: Sequence[str]) -> None:
    """Write nodes with their slots where all are known, else the names."""
    from clusterkit.core.hosts.hostfile import Format
    from clusterkit.core.hosts.hostfile_writer import write
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


def print_reason(report: Report) -> None:
    """Print what is wrong with the one node of a report in one line; on stderr what is unknown."""
    if report.bad:
        console.say(drain_reason(report.bad))
    for finding in report.findings:
        if finding.verdict is Verdict.UNKNOWN:
            console.warn(f"{finding.id} {finding.summary}")


def print_drain_commands(report: Report, bundle: Bundle) -> None:
    """Print the lines that drain, and on stderr why there are none."""
    lines = tuple(drain_commands(report, bundle))
    console.say(*lines)
    if not report.exclude:
        console.note("every node is usable: nothing to drain")
    elif not lines:
        left_out = hostlist.fold_set(report.exclude)
        console.note(f"nothing to drain: {left_out} is out of service already, or was not reached")
