"""The launcher of the framework `horovod`, with processes that train nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clusterkit.core import peers
from clusterkit.core.data import PEERS, data_dir
from clusterkit.core.ports import hold_port

pytestmark = pytest.mark.needs("horovod")
TEMPLATES = data_dir("templates")


def start(folder: Path, port: int, node_rank: int, code: str) -> subprocess.Popen[str]:
    shutil.copy(peers.__file__, folder / PEERS)
    launch = TEMPLATES / "frameworks/horovod/horovod_launch.py"
    return subprocess.Popen(
        [sys.executable, str(launch), "--processes=2", sys.executable, "-c", code],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{TEMPLATES / 'programs/ranks'}:{folder}",
            "CK_TOKEN": "the same on all nodes",
            "CK_NODES": "n0 n1",
            "CK_SLOTS": "1 1",
            "CK_NODE_RANK": str(node_rank),
            "CK_NODE_NAME": f"n{node_rank}",
            "CK_HEAD_ADDR": "127.0.0.1",
            "CK_PORT": str(port),
            "CK_TMP": str(folder),
        },
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def port(tmp_path: Path) -> int:
    return hold_port(20000, 29999, seed=str(tmp_path)).number


def test_a_node_that_begins_after_the_first_has_trained_finds_its_rendezvous(
    tmp_path: Path, port: int
) -> None:
    first = start(tmp_path, port, 0, f"open({str(tmp_path / 'trained')!r}, 'w')")
    while not (tmp_path / "trained").exists():
        time.sleep(0.02)
    with pytest.raises(subprocess.TimeoutExpired):
        first.wait(2)
    second = start(tmp_path, port, 1, "")
    assert [node.communicate(timeout=60)[1] for node in (second, first)] == ["", ""]
    assert (first.returncode, second.returncode) == (0, 0)


def test_a_first_node_that_fails_waits_for_nobody(tmp_path: Path, port: int) -> None:
    first = start(tmp_path, port, 0, "raise SystemExit(3)")
    first.communicate(timeout=60)
    assert first.returncode == 3
