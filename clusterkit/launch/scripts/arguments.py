"""Flags of clusterkit that stand behind the script, which gets them instead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from clusterkit.core.errors import Problem
from clusterkit.core.model import LaunchPlan

_FLAGS = frozenset(
    {"--cluster", "--dry-run", "--follow", "--framework", "--gpus-per-node", "--nodes", "--wait"}
)
"""Those that few scripts have, and that change much where they are missed."""


def strayed_flags(plan: LaunchPlan) -> tuple[Problem, ...]:
    """Return the arguments of the script that look like ours, and of which it says nothing."""
    return tuple(_strayed(plan))


def _strayed(plan: LaunchPlan) -> Iterator[Problem]:
    flags = [word.partition("=")[0] for word in plan.args]
    if _FLAGS.isdisjoint(flags):
        return
    try:
        text = Path(plan.workdir, plan.script).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for flag in flags:
        if flag in _FLAGS and flag[2:] not in text and flag[2:].replace("-", "_") not in text:
            yield Problem(
                message=f"{flag} stands after {plan.script}, and so is for that script",
                hint=f"put it before {plan.script}, if it is for clusterkit",
            )
