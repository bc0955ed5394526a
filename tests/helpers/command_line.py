"""Run the command line in this process; another one takes half a second of a processor to begin."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import pytest

from clusterkit.cli.frame.main import main


def typed(*words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Return how `clusterkit` has ended with these arguments, and what it printed."""
    out, err = io.StringIO(), io.StringIO()
    given = sys.stdin if stdin is None else io.TextIOWrapper(io.BytesIO(stdin.encode()))
    with (
        mock.patch.object(sys, "argv", ["clusterkit", *words]),
        mock.patch.object(sys, "stdin", given),
        mock.patch.dict(os.environ),  # --config-file and --debug are passed on by it
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    code = ended.value.code or 0
    assert isinstance(code, int), code
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def outcome(*words: str, stdin: str | None = None) -> tuple[int, str, str]:
    """Return the exit code of the same, and what it printed to both streams."""
    done = typed(*words, stdin=stdin)
    return done.returncode, done.stdout, done.stderr


def typed_in(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Return the same of a terminal of 80 columns without colours in `folder`, under `env`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, value in {"COLUMNS": "80", "NO_COLOR": "1", **env}.items():
            patch.setenv(name, value)
        return typed(*words)
