"""A job of this machine's own nodes, in the image that the catalogue has for its framework."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docker.engine import Engine
from tests.docker.fixtures import Images
from tests.helpers.desk import ROOT
from tests.helpers.lab_jobs import await_true
from tests.helpers.needs import require

pytestmark = pytest.mark.docker


@pytest.fixture
def clusterkit(engine: Engine, tmp_path: Path) -> Callable[..., str]:
    """Run clusterkit on this machine with this engine, and return what it prints."""
    environment = {**os.environ, **engine.environment, "PYTHONPATH": str(ROOT)}

    def run(*words: str) -> str:
        argv = [sys.executable, "-m", "clusterkit", *words]
        return subprocess.run(
            argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        ).stdout

    return run


def test_two_nodes_train_in_an_image(
    engine: Engine, images: Images, clusterkit: Callable[..., str]
) -> None:
    images.build("torch")
    script = ROOT / "examples" / "train_ddp.py"
    words = (
        *("submit", "--cluster", "local", "--wait", "--json", "--framework", "torchrun"),
        *("--nodes", "2", "--gpus-per-node", "2", "--container", "docker"),
        *("--image", "clusterkit/torch:cpu", "--mount", f"{script.parent}:{script.parent}:ro"),
        *(str(script), "--steps", "20"),
    )
    document = json.loads(clusterkit(*words))
    output = clusterkit("logs", document["job_id"])
    assert document["state"] == "succeeded", output
    assert "world size 4" in output
    assert engine.run("ps", "--all", "--quiet") == ""


HANGS = """\
import os, time

def late():
    print("ready", flush=True)
    time.sleep(300)

def waits():
    print("ready", flush=True)
    time.sleep(300)

late() if os.environ["RANK"] == "1" else waits()
"""


def test_where_ranks_in_containers_stand_is_seen(
    engine: Engine, tmp_path: Path, clusterkit: Callable[..., str]
) -> None:
    require("py-spy")
    script = tmp_path / "hangs.py"
    script.write_text(HANGS)
    words = (
        *("submit", "--cluster", "local", "--json", "--framework", "env", "--preflight", "off"),
        *("--nodes", "2", "--gpus-per-node", "1", "--container", "docker"),
        *("--image", engine.base_image(), "--mount", f"{tmp_path}:{tmp_path}:ro"),
        # The image has no Python, and ours needs no more than what is in its folder.
        *("--mount", f"{sys.base_prefix}:/usr/local:ro"),
        *("--env", f"LD_LIBRARY_PATH=/usr/local/lib:/usr/local/lib/{os.uname().machine}-linux-gnu"),
        str(script),
    )
    job = json.loads(clusterkit(*words))["job_id"]
    try:
        await_true(lambda: clusterkit("logs", job).count("ready") == 2, 120.0)
        found = json.loads(clusterkit("diagnose", "--stacks", job, "--json"))
        says = "echo $CK_NODE_RANK in $PWD; ls -d /.dockerenv; command -v docker || echo no docker"
        inside = clusterkit("exec", job, "--node", "1", "--", "sh", "-c", says)
    finally:
        clusterkit("cancel", job)
    assert inside.splitlines() == [f"1 in {tmp_path}", "/.dockerenv", "no docker"]
    assert found["troubles"] == []
    stand = {tuple(group["ranks"]): group["frames"][0] for group in found["stacks"]}
    assert [stand[rank,].partition(" ")[0] for rank in (0, 1)] == ["waits", "late"]
    assert engine.run("ps", "--all", "--quiet") == ""
