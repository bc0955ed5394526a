"""`clusterkit doctor`: what this machine can and cannot do, with the fix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import JsonFlag
from clusterkit.core.commands import MISSING, Answer
from clusterkit.core.errors import Problem, UserError
from clusterkit.core.text import wrapped

if TYPE_CHECKING:
    from clusterkit.config.doctor import Item
    from clusterkit.config.init import Run
    from clusterkit.config.settings import Settings

_COLOURS = {"ok": "green", "warn": "yellow", "missing": "red", "fail": "red"}


def doctor(
    json: JsonFlag = False,
) -> None:
    """Say what this machine can and cannot do, with the fix to type."""
    from clusterkit.config.doctor import Machine, examine
    from clusterkit.config.init import run_command

    settings, problems = _settings()
    machine = Machine(settings=settings, run=run_command, login=_asking, problems=problems)
    items = [*examine(machine)]
    findings = sum(item.finding for item in items)
    if json:
        console.json_document({"items": items, "findings": findings})
    else:
        _print(items, findings)
    if findings:
        raise typer.Exit(1)


def _asking(place: str) -> Run:
    """Return what runs a command on a login node, for so long at most as one here."""
    from clusterkit.config.init import TIMEOUT_S
    from clusterkit.transport.login import LoginNode

    node = LoginNode(place)

    def asked(argv: Sequence[str]) -> Answer:
        answer = node.answer(argv, timeout_s=TIMEOUT_S)
        return replace(answer, ran=answer.code != MISSING)  # its shell says so, not the system

    return asked


def _settings() -> tuple[Settings, tuple[Problem, ...]]:
    """Return the settings; where they have errors, the built-in ones and the errors."""
    from clusterkit.config.load import builtin_settings, load_settings

    try:
        return load_settings(), ()
    except UserError as error:
        return builtin_settings(), error.problems


def _print(items: list[Item], findings: int) -> None:
    width = max((len(item.name) for item in items if len(item.name) <= 12), default=0)
    for item in items:
        console.say(*_lines(item, width))
    counts = Counter(item.condition for item in items)
    listed = ", ".join(f"{count} {condition}" for condition, count in counts.items())
    end = f"; {findings} in the way" if findings else "; nothing in the way"
    console.say(f"\n{listed}{end}")


def _lines(item: Item, width: int) -> Iterator[str]:
    condition = console.coloured(f"{item.condition:<7}", _COLOURS[item.condition])
    start, indent = f"{item.name:<{width}}  ", " " * (7 + 2 + width + 2)
    summary = item.summary if item.node is None else f"{item.node}: {item.summary}"
    first, *more = wrapped(summary, width=80 - len(indent)) or [""]
    yield f"{condition}  {start}{first}"
    yield from (indent + line for line in more)
    if item.fix is not None:  # never wrapped: it is there to be copied
        yield f"{indent}fix: {item.fix}"
