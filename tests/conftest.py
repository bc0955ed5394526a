"""What all tests share: the practice cluster, and how tests are spread over processes."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.desk import Desk
from tests.lab.lab import Lab

pytest_plugins = ("tests.lab.fixtures",)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep what runs on the practice cluster in one process: two cores are few for six ranks."""
    for item in items:
        if item.get_closest_marker("lab"):
            item.add_marker(pytest.mark.xdist_group("lab"))


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
