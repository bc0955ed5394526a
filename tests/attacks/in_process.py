"""Run the command line in this process: a fuzzer has no time for another."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterkit.cli.frame.main import main

Cli = Callable[..., tuple[int, str, str]]


def run(*words: str) -> tuple[int, str, str]:
    """Return the exit code of a command line, and what it printed to both streams."""
    out, err = io.StringIO(), io.StringIO()
    before = sys.argv
    sys.argv = ["clusterkit", *words]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as ended:
        code = ended.code
    finally:
        sys.argv = before
    return (code if isinstance(code, int) else 0), out.getvalue(), err.getvalue()


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    """Run command lines in an empty folder of a user without a configuration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in tuple(os.environ):
        if name.startswith(("CLUSTERKIT_", "XDG_CONFIG")):
            monkeypatch.delenv(name)
    return run
