"""The ``lab`` fixture: a running practice cluster, shared by all tests and workers.

``accounting_lab`` is a second one, with slurmdbd; ``cloud_lab`` one with nodes to power up.

Use it with ``pytest_plugins = ("tests.lab.fixtures",)`` in the top conftest or test file.
A lab that was up before the tests stays up; one that they started is stopped by the last
pytest process that used it. A test that kills a host of it brings it back with
``lab.up()``; one that breaks more takes ``own_lab``.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from tests.helpers.needs import lack
from tests.lab import folder
from tests.lab.lab import Lab
from tests.lab.layout import MissingToolsError, default_root, require_tools

if TYPE_CHECKING:
    from collections.abc import Iterator


TIME_SCALE = "0.2"
"""Of what clusterkit waits for on the hosts (`clusterkit/core/timing.py`)."""


@pytest.fixture(scope="session")
def lab(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """Give a running practice cluster."""
    yield from _shared(Lab(), pytestconfig)


@pytest.fixture(scope="session")
def accounting_lab(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """Give a running practice cluster with slurmdbd, which soon forgets jobs that have ended.

    It has two nodes, and runs beside the shared one.
    """
    root = default_root()
    accounted = Lab(root.with_name(f"{root.name}-accounting"))
    yield from _shared(accounted, pytestconfig, nodes=2, accounting=True)


@pytest.fixture(scope="session")
def cloud_lab(pytestconfig: pytest.Config) -> Iterator[Lab]:
    """Give a running practice cluster with two nodes that are up, and four cloud nodes.

    The nodes of its partition `cloud` are powered down until Slurm has them resumed.
    """
    root = default_root()
    yield from _shared(Lab(root.with_name(f"{root.name}-cloud")), pytestconfig, nodes=6, cloud=4)


@pytest.fixture
def own_lab() -> Iterator[Lab]:
    """Give a lab that is not up yet and may be broken: it runs beside the shared one."""
    try:
        require_tools()
    except MissingToolsError as error:
        give_up(error)
    # Not tmp_path: Slurm puts sockets below, and their paths must stay under 108 bytes.
    base = Path(tempfile.mkdtemp(prefix="lab-", dir="/tmp"))
    cluster = Lab(base / "x")
    cluster.time_scale = TIME_SCALE
    try:
        yield cluster
    finally:
        cluster.down()
        shutil.rmtree(base)


def _shared(
    cluster: Lab,
    config: pytest.Config,
    *,
    nodes: int | None = None,
    accounting: bool | None = None,
    cloud: int | None = None,
) -> Iterator[Lab]:
    """Use a lab together with other test processes."""
    cluster.time_scale = TIME_SCALE
    cluster.warm = config.getoption("warm_clients")
    try:
        acquire(cluster, nodes=nodes, accounting=accounting, cloud=cloud)
    except MissingToolsError as error:
        give_up(error)
    try:
        yield cluster
    finally:
        cluster.end_clients()
        release(cluster)


def give_up(error: MissingToolsError) -> NoReturn:
    """Skip where a lab cannot run; fail in CI, where it must."""
    lack(f"practice cluster: {error}")


def acquire(
    cluster: Lab,
    *,
    nodes: int | None = None,
    accounting: bool | None = None,
    cloud: int | None = None,
) -> None:
    """Start or heal the lab and note this process as a user of it."""
    with folder.locked(cluster.root, name=folder.USERS_LOCK):
        ours = not cluster.is_up()
        cluster.up(nodes, accounting=accounting, cloud=cloud)
        started, users = _read(cluster.root)
        _write(cluster.root, started or (ours and not users), users | {os.getpid()})


def release(cluster: Lab) -> None:
    """Stop the lab if tests started it and no other process uses it."""
    with folder.locked(cluster.root, name=folder.USERS_LOCK):
        started, users = _read(cluster.root)
        users -= {os.getpid()}
        if started and not users:
            cluster.down()
        else:
            _write(cluster.root, started, users)


def _read(root: Path) -> tuple[bool, set[int]]:
    """Return whether tests started the lab, and the living processes that use it."""
    try:
        noted = json.loads((root / folder.USERS).read_text())
    except FileNotFoundError:
        return False, set()
    return noted["started"], {pid for pid in noted["users"] if Path(f"/proc/{pid}").exists()}


def _write(root: Path, started: bool, users: set[int]) -> None:
    """Note the users of the lab."""
    (root / folder.USERS).write_text(json.dumps({"started": started, "users": sorted(users)}))
