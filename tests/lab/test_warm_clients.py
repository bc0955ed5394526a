"""A client that is forked is the same as one that is executed (tests/helpers/warm_clients.py)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from clusterkit.core import timing
from tests.helpers.lab_jobs import await_true
from tests.helpers.paths import ROOT
from tests.lab import Lab, LabError
from tests.lab.lab import UNSCALED

pytestmark = pytest.mark.lab
MIRROR = [sys.executable, "-m", "tests.helpers.mirror"]


@pytest.fixture(params=[False, True], ids=["executed", "forked"])
def either(lab: Lab, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setattr(lab, "warm", request.param)
    return lab


@pytest.mark.parametrize("end", ["0", "3", "a last word", "error", "SIGTERM", "SIGKILL", "SIGINT"])
def test_it_gets_and_gives_the_same(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, end: str
) -> None:
    folder = ROOT if end == "3" else tmp_path
    env = {"OF_ITS_OWN": "an ä", **({"PYTHONPATH": str(ROOT)} if folder == tmp_path else {})}
    seen = []
    for warm in (False, True):
        monkeypatch.setattr(lab, "warm", warm)
        done = lab.run("head", [*MIRROR, end, "ä b"], env=env, cwd=folder)
        given = json.loads(done.stdout)
        seen.append({**given, "code": done.returncode, "errors": _last(done.stderr)})
    assert seen[1] == seen[0]
    assert seen[0]["folder"] == str(folder)
    assert bool(seen[0]["code"]) == (end != "0")


def _last(errors: str) -> list[str]:
    """Return all but the frames of a traceback: some are of Python itself, or of the server."""
    return [line for line in errors.splitlines() if not re.match(r"  |\s*\^", line)]


def test_where_success_is_asked_for_a_failure_tells_what_was_printed(either: Lab) -> None:
    with pytest.raises(LabError, match=r"exit 3\n(?s:.+)a word"):
        either.run("head", [*MIRROR, "3"], cwd=ROOT, check=True)


def test_with_its_time_it_goes_and_what_it_started(either: Lab) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        either.run("head", [*MIRROR, "sleep"], cwd=ROOT, timeout_s=3)
    await_true(lambda: not either.processes("head", "^sleep 300"))


def test_who_would_notice_is_executed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these was read before a client is forked."""
    monkeypatch.setattr(lab, "warm", True)
    clients = lab._warm_clients()
    env = lab.env()
    assert clients.takes([*MIRROR, "0"], env)
    assert timing.VARIABLE in env
    other = ({"PYTHONPATH": "/tmp"}, {"PYTHONUTF8": "1"}, {"LC_ALL": "C"}, {"TZ": "UTC"})
    for more in (*other, {"HOME": "/tmp"}, {"TYPER_USE_RICH": "0"}, UNSCALED):
        assert not clients.takes([*MIRROR, "0"], {**env, **more}), more
    for argv in (["/usr/bin/python3", *MIRROR[1:]], [sys.executable, "-c", "pass"]):
        assert not clients.takes(argv, env)
