"""What all tests share: the practice cluster, and how tests are spread over processes."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.desk import Desk
from tests.lab.lab import Lab
from tests.lab.layout import default_root

pytest_plugins = ("tests.lab.fixtures",)


WAITING = re.compile(r"test_lab_(again|elastic|faults|ssh|ssh_jobs|sweeps|unshared|worker)")
"""Tests of the practice cluster that mostly wait: for a time limit, for a node that has gone."""


def pytest_configure() -> None:
    """Let the commands under test be interrupted also where the tests run in the background.

    A shell without job control starts background jobs with SIGINT ignored, and whatever they start
    inherits that. And give each process of xdist a practice cluster of its own.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    if worker:
        os.environ["CLUSTERKIT_LAB"] = f"{default_root()}{worker}"


class TwoProcessesForTheLab(LoadScopeScheduling):  # type: ignore[misc]
    """Spread tests over processes, but keep those of the practice cluster in two.

    Six ranks are many for two cores: those that train are in one, and those that mostly wait in
    the other. (The groups of xdist 3.8 do not work with pytest 9.)
    """

    def _split_scope(self, nodeid: str) -> str:
        file = Path(nodeid.split("::", maxsplit=1)[0])
        if not file.name.startswith("test_lab"):
            return nodeid
        return "waiting lab" if WAITING.fullmatch(file.stem) else "lab"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> TwoProcessesForTheLab:
    """Give xdist our scheduler."""
    return TwoProcessesForTheLab(config, log)


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the user's own configuration and CLUSTERKIT_* variables out of the tests."""
    for name in os.environ:
        if name.startswith("CLUSTERKIT_") and name not in {
            "CLUSTERKIT_LAB",
            "CLUSTERKIT_WHEELS",
            "CLUSTERKIT_FIXTURES",
            "CLUSTERKIT_GOLDEN",
        }:
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-config"))


@pytest.fixture
def desk(lab: Lab, request: pytest.FixtureRequest) -> Desk:
    """Give a desk of this test's own on the practice cluster."""
    return Desk.of(lab, re.sub(r"\W+", "-", request.node.nodeid))
