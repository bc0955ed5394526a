"""What all tests share: the practice cluster, and how tests are spread over processes."""

from __future__ import annotations

import gc
import hashlib
import os
import re
import signal
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from clusterkit.core.data import read_table
from tests.helpers import time_left
from tests.helpers.desk import Desk
from tests.helpers.needs import require
from tests.lab.lab import Lab
from tests.lab.layout import default_root

pytest_plugins = ("tests.docker.fixtures", "tests.lab.fixtures")

# Hypothesis: a busy machine must not fail what is right, and CI tries the same examples each time.
_ANY_MACHINE = {"deadline": None, "suppress_health_check": (HealthCheck.too_slow,)}
settings.register_profile("ci", max_examples=100, derandomize=True, **_ANY_MACHINE)
settings.register_profile("developer", max_examples=50, **_ANY_MACHINE)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "developer")

TOGETHER = {
    "agents": re.compile(r"tests/attacks/test_hostile_agents"),
    "docker": re.compile(r"tests/docker/"),
    "site": re.compile(r"tests/unit/docs/test_docs_site"),
    "torch": re.compile(
        r"tests/unit/(core/test_hostfile|estimate/test_estimate_(launch|memory_torch|peers)"
        r"|launch/test_(framework_accelerate|layout\.|script_joining)"
        r"|observe/test_(compute_program|diagnose_scripts))"
    ),
    "wheel": re.compile(r"tests/unit/transport/test_wheel"),
}
"""Tests that run one after the other in one process, on a Docker engine, or on what is built or
imported once. Who waits for the site, builds one more wheel, hears the same agents again, or
imports torch and deepspeed in one more process, tests nothing."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let clients on the practice cluster be forked (tests/helpers/warm_clients.py)."""
    words = "fork clients on the practice cluster where that is the same as to execute them"
    parser.addoption("--warm-clients", action="store_true", help=words)


def pytest_configure() -> None:
    """Let the commands under test be interrupted also where the tests run in the background.

    A shell without job control starts background jobs with SIGINT ignored, nohup with SIGHUP, and
    whatever they start inherits that. And give each process of xdist a practice cluster of its own.
    Thousands of tests that stay are no garbage: look for that less often than Python does.
    """
    gc.set_threshold(20000, 20, 20)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _outlive)  # what is started has no handler, and does not
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    if worker:
        os.environ["CLUSTERKIT_LAB"] = f"{default_root()}{worker}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of `mechanisms.tsv` that `make test` runs.

    Raises:
        pytest.UsageError: one of them is missing, where all tests of its file are.
    """
    rows = list(read_table(__file__, "mechanisms.tsv"))
    named = {f"tests/{row['test']}" for row in rows if row["test"] != "-"}
    smoke = {f"tests/{row['test']}" for row in rows if row["run"] == "test"}
    again = {"test", "other"}
    slurm = {
        f"tests/{row['test']}" for row in rows if row["where"] == "slurm" and row["run"] in again
    }
    for item in items:
        if item.nodeid in smoke:
            item.add_marker("smoke")
        if item.nodeid in slurm:
            item.add_marker("slurm")
    some = any("::" in argument for argument in config.args)
    files = {item.nodeid.partition("::")[0] for item in items}
    gone = {test for test in named if test.partition("::")[0] in files}
    gone -= {item.nodeid for item in items}
    if gone and not some:
        raise pytest.UsageError("tests/mechanisms.tsv names tests that are gone", *sorted(gone))


def pytest_collection_finish() -> None:
    """Leave the tests themselves out of what is looked through for garbage."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that comes too late, and before its fixtures one whose mark `needs` is not met.

    In CI the second is a failure.
    """
    if not time_left.may_begin(item.nodeid):
        pytest.skip(time_left.OVER)
    for mark in item.iter_markers("needs"):
        require(*mark.args)


def _outlive(_number: int, _frame: object) -> None:
    """Do nothing about a signal."""


_LAB = "tests/lab/"
_ALONE = re.compile(r"tests/lab/test_(training|elastic|again|faults)\.py")
"""Many tests of the practice cluster of up to 100 s, which have nothing in common but that: as one
piece, nine of them begun late keep one process busy when the others have no more to do."""
_CLUSTERS = 3
"""As many as two cores take; with more, jobs wait for processors, and miss times."""


class ByFileOrTest(LoadScopeScheduling):
    """Hand each process that is free the next file of the practice cluster, then single tests.

    Files with many tests go first, or on a slow day of CI in the order of the commit. Three
    processes have a cluster each; others use the processors meanwhile. The first one begins with
    tests that are handed out alone, and with those that train: so they are not all that is left at
    the end, when three at once have two processors. (The groups of xdist 3.8 do not work with
    pytest 9.)
    """

    _sorted = False

    def _assign_work_unit(self, node: Any) -> None:
        if not self._sorted:
            here = [name for name in self.workqueue if name.startswith(_LAB)]
            for scope in sorted(here, key=_turn)[::-1]:
                self.workqueue.move_to_end(scope, last=False)
            self._sorted = True
        number = int(node.gateway.id.removeprefix("gw"))
        wanted = None
        if number >= _CLUSTERS:
            wanted = next((name for name in self.workqueue if not name.startswith(_LAB)), None)
            if wanted is None:
                node.shutdown()
                return
        elif number == 0:
            first = takewhile(lambda name: name.startswith(_LAB), self.workqueue)
            wanted = next(filter(_ALONE.match, first), None)
        if wanted is not None:
            self.workqueue.move_to_end(wanted, last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(_LAB):
            return nodeid if _ALONE.match(nodeid) else nodeid.partition("::")[0]
        found = (scope for scope, files in TOGETHER.items() if files.match(nodeid))
        return next(found, nodeid)


def _turn(scope: str) -> tuple[int, str]:
    """Return where a scope of the practice cluster stands: files, then tests that train, others."""
    if alone := _ALONE.match(scope):
        return ("training", "elastic", "again", "faults").index(alone[1]) + 1, ""
    order = os.environ.get(time_left.ORDER)
    return 0, hashlib.sha256(f"{order} {scope}".encode()).hexdigest() if order else ""


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFileOrTest:
    """Give xdist our scheduler."""
    return ByFileOrTest(config, log)


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the user's own configuration and CLUSTERKIT_* variables out of the tests."""
    for name in os.environ:
        if name.startswith("CLUSTERKIT_") and name not in {
            "CLUSTERKIT_LAB",
            "CLUSTERKIT_WHEELS",
            "CLUSTERKIT_FIXTURES",
            "CLUSTERKIT_GOLDEN",
            time_left.UNTIL,
            time_left.WITHOUT,
        }:
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-config"))
    monkeypatch.setenv("CLUSTERKIT_MACHINE_ROOT", str(tmp_path / "no-machine"))


@pytest.fixture
def desk(lab: Lab, request: pytest.FixtureRequest) -> Desk:
    """Give a desk of this test's own on the practice cluster."""
    return Desk.of(lab, re.sub(r"\W+", "-", request.node.nodeid))
