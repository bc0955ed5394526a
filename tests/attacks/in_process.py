"""Run the command line in this process: a fuzzer has no time for another."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.command_line import outcome as run

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    """Run command lines in an empty folder of a user without a configuration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in tuple(os.environ):
        if name.startswith(("CLUSTERKIT_", "XDG_CONFIG")):
            monkeypatch.delenv(name)
    return run
