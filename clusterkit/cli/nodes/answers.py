"""What a command has printed on many nodes: alike on some of them, it is told once."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.main import EXIT_FINDINGS
from clusterkit.core.errors import UserError
from clusterkit.core.hosts.hostlist import fold_set
from clusterkit.core.text import harmless

if TYPE_CHECKING:
    from clusterkit.jobs.inside import Said

TIMEOUT_S = 60.0
_LONGEST_S = 86_400.0


def require_words(command: Sequence[str]) -> None:
    """Refuse a line for a shell that is given as one word: no program is called so.

    Raises:
        UserError: it is.
    """
    line, *more = command
    if not more and len(line.split()) > 1 and "/" not in line.split()[0]:
        raise UserError(
            f"no program is called {line!r}", hint=f"for a shell: -- sh -c {shlex.quote(line)}"
        )


def require_time(timeout_s: float) -> None:
    """Refuse a `--timeout` within which nothing can end.

    Raises:
        UserError: it is not between 0 and a day.
    """
    if not 0 < timeout_s <= _LONGEST_S:
        raise UserError(f"--timeout {timeout_s:g}: seconds, a day at most", hint="--timeout 60")


def report(command: Sequence[str], said: Sequence[Said], *, as_json: bool) -> None:
    """Print what came from the nodes.

    Raises:
        typer.Exit: with 1 where the command failed on a node, or one did not run it.
    """
    if as_json:
        console.json_document({"command": list(command), "nodes": said})
    else:
        _print(said)
    if any(one.exit_code != 0 for one in said):
        raise typer.Exit(EXIT_FINDINGS)


def _print(said: Sequence[Said]) -> None:
    alike: dict[tuple[str, int | None, str], list[str]] = {}
    for one in said:
        alike.setdefault((one.output, one.exit_code, one.problem), []).append(one.node)
    for (output, exit_code, problem), nodes in alike.items():
        console.say(console.bold(fold_set(nodes)) + (f"  exit {exit_code}" if exit_code else ""))
        console.say(*(f"  {line}" for line in harmless(output).splitlines()))
        if problem:
            console.error(f"{fold_set(nodes)}: {problem}")
