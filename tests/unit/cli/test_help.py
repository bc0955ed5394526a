"""The help of every verb and of what is below it, as it stands on a terminal of 80 columns."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from clusterkit.cli.frame.main import VERBS, app
from tests.helpers.command_line import typed_in


def _pages() -> Iterator[tuple[str, ...]]:
    verbs: Any = typer.main.get_command(app)
    for verb in VERBS:
        yield (verb,)
        below: dict[str, Any] = getattr(verbs.get_command(None, verb), "commands", {})
        yield from ((verb, name) for name in below)


@pytest.mark.parametrize("words", list(_pages()), ids=" ".join)
def test_every_help_is_whole(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = typed_in(tmp_path, *words, "--help")
    assert done.returncode == 0, done.stderr
    assert "Usage: " in done.stdout
    assert "--help" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    about = map(str.strip, done.stdout.partition("╭")[0].splitlines())
    lone = [one for one, after in pairwise(about) if one and after and len(one) < 40]
    assert not lone, "a line of the source is longer than the terminal"


@pytest.mark.parametrize("words", list(_pages()), ids=" ".join)
def test_every_flag_is_explained_and_reads_a_variable_of_ours(words: tuple[str, ...]) -> None:
    command: Any = typer.main.get_command(app)
    for word in words:
        command = command.get_command(None, word)
    for param in command.params:
        assert getattr(param, "help", None), param.name
        assert (param.envvar or "CLUSTERKIT_").startswith("CLUSTERKIT_"), param.name


def test_a_reader_of_help_who_has_seen_enough_is_no_failure() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    command = (sys.executable, "-m", "clusterkit", "--help")
    done = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, text=True, check=False)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("verb", VERBS)
def test_its_example_can_be_typed(verb: str) -> None:
    commands: Any = typer.main.get_command(app)
    command = commands.get_command(None, verb)
    said, *words = shlex.split(command.epilog.partition("Example: ")[2])
    assert (said, words.pop(0)) == ("clusterkit", verb)
    if hasattr(command, "commands"):
        command = command.get_command(None, words.pop(0))
    with command.make_context(verb, words):
        pass  # it refuses none of them


def test_what_an_interrupt_leaves_open_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt("job 7 may have been accepted")

    monkeypatch.setattr("clusterkit.cli.nodes.topo.topo", interrupted)
    done = CliRunner().invoke(app, ["topo"])
    assert done.exit_code == 130
    assert "job 7 may have been accepted" in done.stderr
