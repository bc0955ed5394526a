"""The help of every verb and of what is below it, as it stands on a terminal of 80 columns."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from clusterkit.cli.frame import console
from clusterkit.cli.frame.main import PANELS, VERBS, app
from clusterkit.launch.frameworks import builtin_names
from tests.helpers.command_line import typed_in


def _pages() -> Iterator[tuple[str, ...]]:
    verbs: Any = typer.main.get_command(app)
    for verb in VERBS:
        yield (verb,)
        below: dict[str, Any] = getattr(verbs.get_command(None, verb), "commands", {})
        yield from ((verb, name) for name, one in below.items() if not one.hidden)


@pytest.mark.parametrize("words", list(_pages()), ids=" ".join)
def test_every_help_is_whole(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = typed_in(tmp_path, *words, "--help")
    assert done.returncode == 0, done.stderr
    assert "Usage: " in done.stdout
    assert "--help" in done.stdout
    assert "[default: (" not in done.stdout
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


def _example(words: tuple[str, ...]) -> tuple[Any, list[str]]:
    """Return the command of which an example stands below the help of a verb, and its arguments."""
    command: Any = typer.main.get_command(app)
    for word in words:
        command = command.get_command(None, word)
    said, *typed = shlex.split(command.epilog.partition("Example: ")[2])
    assert (said, *typed[: len(words)]) == ("clusterkit", *words)
    typed = typed[len(words) :]
    if hasattr(command, "commands"):
        command = command.get_command(None, typed.pop(0))
    return command, typed


@pytest.mark.parametrize("words", list(_pages()), ids=" ".join)
def test_its_example_can_be_typed(words: tuple[str, ...]) -> None:
    command, arguments = _example(words)
    with command.make_context(words[-1], arguments):
        pass  # it refuses none of them


def test_verbs_stand_in_panels_by_what_one_is_about_to_do(tmp_path: Path) -> None:
    shown = typed_in(tmp_path, "--help").stdout
    named = [line.strip("╭─╮ ") for line in shown.splitlines() if line.startswith("╭─")]
    assert named == ["Options", *dict.fromkeys(PANELS.values())]
    assert "Commands" not in named
    assert PANELS.keys() == VERBS.keys()
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("words", list(_pages()), ids=" ".join)
def test_no_verb_shows_progress_beside_a_document(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command, arguments = _example(words)
    if not any("--json" in param.opts for param in command.params):
        assert words[0] in {"shell", "forward", "rerun"}, "of rerun it is a flag of submit"
        return
    monkeypatch.setattr(console, "_PLAIN_EVERY_S", 0.0)

    def shown(*more: str) -> str:
        with command.make_context(words[-1], [*more, *arguments]), console.counting(2) as counted:
            counted(None)
            console.progress_note("one line that stays")
        return capsys.readouterr().err

    assert shown("--json") == ""
    assert shown() == "1 of 2 nodes have answered\none line that stays\n"


def test_what_an_interrupt_leaves_open_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt("job 7 may have been accepted")

    monkeypatch.setattr("clusterkit.cli.nodes.topo.topo", interrupted)
    done = CliRunner().invoke(app, ["topo"])
    assert done.exit_code == 130
    assert "job 7 may have been accepted" in done.stderr


@pytest.mark.parametrize(
    ("module", "lacks", "told"),
    [
        ("nodes.gone", None, "clusterkit has a bug: ModuleNotFoundError: No module named"),
        ("nodes.topo", "yaml_.h", "this Python has no module yaml_, which clusterkit needs"),
    ],
)
def test_a_verb_that_cannot_be_loaded_says_why_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, lacks: str | None, told: str
) -> None:
    def fails(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {lacks or name!r}", name=lacks or name)

    monkeypatch.setitem(VERBS, "topo", module)
    monkeypatch.delitem(sys.modules, "clusterkit.cli.nodes.topo", raising=False)
    monkeypatch.setattr("importlib.import_module", fails)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    done = typed_in(tmp_path, "topo", "--json")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {told}")
    assert "Traceback" not in done.stderr
    (log,) = tmp_path.glob("clusterkit-crash-*.log")
    assert f"the traceback is in {log}; please report it" in done.stderr
    # The name of a module may be another's on an index of packages.
    assert ("hint: install clusterkit anew" in done.stderr) is bool(lacks)
    assert "pip install" not in done.stderr
    assert "No module named" in json.loads(done.stdout)["error"]["message"]


def test_one_verb_that_cannot_be_loaded_leaves_the_help_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("nodes.gone", "nodes.topo"):
        monkeypatch.setitem(VERBS, "topo", module)
        shown = typed_in(tmp_path, "--help")
        assert shown.returncode == 0
        words = " ".join(shown.stdout.split())
        assert "explain" in words
        assert ("topo Cannot be loaded: No module named" in words) is (module == "nodes.gone")


def test_the_help_of_submit_names_all_frameworks(tmp_path: Path) -> None:
    shown = typed_in(tmp_path, "submit", "--help").stdout
    assert not [name for name in builtin_names() if name not in shown]
