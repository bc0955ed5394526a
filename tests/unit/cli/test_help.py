"""The help of every verb and of what is below it, as it stands on a terminal of 80 columns."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from clusterkit.cli.frame.main import VERBS, app


def _pages() -> Iterator[tuple[str, ...]]:
    verbs: Any = typer.main.get_command(app)
    for verb in VERBS:
        yield (verb,)
        below: dict[str, Any] = getattr(verbs.get_command(None, verb), "commands", {})
        yield from ((verb, name) for name in below)


@pytest.mark.parametrize("words", list(_pages()), ids=" ".join)
def test_every_help_is_whole(words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "clusterkit", *words, "--help"],
        check=False,
        capture_output=True,
        text=True,
        env={"COLUMNS": "80", "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    assert "Usage: " in done.stdout
    assert "--help" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
