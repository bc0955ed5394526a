"""The configuration, and whether this machine can do what it says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from clusterkit.config.doctor.machine import Condition, Item, Machine, bad, good


def configuration(machine: Machine) -> Iterator[Item]:
    """Yield the files that are read, what is wrong with them, and odd variables."""
    settings = machine.settings
    yield from (good("config", str(file)) for file in settings.files)
    if machine.problems:
        first, *more = machine.problems
        only = first.hint if not more and first.position is None else None
        summary = first.message if only else f"{first.message} ({1 + len(more)} in all)"
        fix = only or "clusterkit config show (it prints them all)"
        yield bad("config", Condition.FAIL, summary, fix, needed=True)
    elif not settings.files:
        summary = "no file; only the cluster `local`"
        yield bad("config", Condition.WARN, summary, "clusterkit init")
    for problem in settings.warnings:
        yield bad("variable", Condition.WARN, problem.message, problem.hint)
    for name in settings.clusters:
        for problem in settings.warnings_of(name):
            summary = f"cluster {name}: {problem.message}"
            yield bad("hostfile", Condition.WARN, summary, problem.hint)


def ports(machine: Machine) -> Iterator[Item]:
    """Yield whether the ports of jobs keep clear of those that the kernel hands out."""
    try:
        low, high = map(int, machine.local_ports.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return  # no Linux, or a sandbox without /proc: nothing to compare with
    for first, last in dict.fromkeys(s.port_range for s in machine.settings.clusters.values()):
        if last < low or first > high:
            yield good("ports", f"{first}-{last} outside the kernel's {low}-{high}")
        else:
            summary = f"{first}-{last} overlaps the kernel's {low}-{high}"
            yield bad("ports", Condition.WARN, summary, _ports_fix(low, high))


def _ports_fix(low: int, high: int) -> str:
    if low - 1024 >= 1000:
        return f"port_range: {max(1024, low - 10000)}-{low - 1}"
    if 65535 - high >= 1000:
        return f"port_range: {high + 1}-65535"
    return "sysctl -w net.ipv4.ip_local_port_range='32768 60999'"


def run_dirs(machine: Machine) -> Iterator[Item]:
    """Yield whether the run folders can be written."""
    for text in dict.fromkeys(spec.run_dir for spec in machine.settings.clusters.values()):
        try:
            path = Path(text).expanduser()
        except RuntimeError:  # ~ without a home folder
            path = Path(text)
        existing = next((p for p in (path, *path.absolute().parents) if p.exists()), Path("/"))
        if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
            yield good("run_dir", text, needed=True)
        else:
            summary = f"{text}: you may not write in {existing}"
            fix = "set run_dir: to a folder of your own"
            yield bad("run_dir", Condition.FAIL, summary, fix, needed=True)
