"""A job of this machine's own nodes, in the image that the catalogue has for its framework."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.desk import CHECKOUT
from tests.docker.engine import Engine
from tests.docker.fixtures import Images

pytestmark = pytest.mark.docker


def test_two_nodes_train_in_an_image(engine: Engine, images: Images, tmp_path: Path) -> None:
    images.build("torch")
    script = CHECKOUT / "examples" / "train_ddp.py"
    words = (
        *("submit", "--cluster", "local", "--wait", "--json", "--framework", "torchrun"),
        *("--nodes", "2", "--gpus-per-node", "2", "--container", "docker"),
        *("--image", "clusterkit/torch:cpu", "--mount", f"{script.parent}:{script.parent}:ro"),
        *(str(script), "--steps", "20"),
    )
    environment = {**os.environ, **engine.environment, "PYTHONPATH": str(CHECKOUT)}

    def clusterkit(*words: str) -> str:
        argv = [sys.executable, "-m", "clusterkit", *words]
        return subprocess.run(
            argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        ).stdout

    document = json.loads(clusterkit(*words))
    output = clusterkit("logs", document["job_id"])
    assert document["state"] == "succeeded", output
    assert "world size 4" in output
    assert engine.run("ps", "--all", "--quiet") == ""
