"""The configuration, and whether this machine can do what it says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from clusterkit.config.doctor.machine import Condition, Item, Patient


def configuration(patient: Patient) -> Iterator[Item]:
    """Yield the files that are read, what is wrong with them, and odd variables."""
    for file in patient.settings.files:
        yield Item(name="config", condition=Condition.OK, summary=str(file))
    if patient.problems:
        first, *more = patient.problems
        only = first.hint if not more and first.position is None else None
        yield Item(
            name="config",
            condition=Condition.FAIL,
            summary=first.message if only else f"{first.message} ({1 + len(more)} in all)",
            fix=only or "clusterkit config show (it prints them all)",
            needed=True,
        )
    elif not patient.settings.files:
        yield Item(
            name="config",
            condition=Condition.WARN,
            summary="no file; only the cluster `local`",
            fix="clusterkit init",
        )
    for problem in patient.settings.warnings:
        yield Item(
            name="variable", condition=Condition.WARN, summary=problem.message, fix=problem.hint
        )
    for name in patient.settings.clusters:
        for problem in patient.settings.warnings_of(name):
            yield Item(
                name="hostfile",
                condition=Condition.WARN,
                summary=f"cluster {name}: {problem.message}",
                fix=problem.hint,
            )


def ports(patient: Patient) -> Iterator[Item]:
    """Yield whether the ports of jobs keep clear of those that the kernel hands out."""
    try:
        low, high = map(int, patient.local_ports.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return  # no Linux, or a sandbox without /proc: nothing to compare with
    for first, last in dict.fromkeys(s.port_range for s in patient.settings.clusters.values()):
        free = last < low or first > high
        yield Item(
            name="ports",
            condition=Condition.OK if free else Condition.WARN,
            summary=f"{first}-{last} {'outside' if free else 'overlaps'} the kernel's {low}-{high}",
            fix=None if free else _ports_fix(low, high),
        )


def _ports_fix(low: int, high: int) -> str:
    if low - 1024 >= 1000:
        return f"port_range: {max(1024, low - 10000)}-{low - 1}"
    if 65535 - high >= 1000:
        return f"port_range: {high + 1}-65535"
    return "sysctl -w net.ipv4.ip_local_port_range='32768 60999'"


def run_dirs(patient: Patient) -> Iterator[Item]:
    """Yield whether the run folders can be written."""
    specs = patient.settings.clusters.values()
    for text in dict.fromkeys(spec.run_dir for spec in specs):
        try:
            path = Path(text).expanduser()
        except RuntimeError:  # ~ without a home folder
            path = Path(text)
        existing = next((p for p in (path, *path.absolute().parents) if p.exists()), Path("/"))
        good = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
        yield Item(
            name="run_dir",
            condition=Condition.OK if good else Condition.FAIL,
            summary=text if good else f"{text}: you may not write in {existing}",
            fix=None if good else "set run_dir: to a folder of your own",
            needed=True,
        )
