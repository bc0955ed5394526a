"""The example of a layout: tensor parallel ranks on each node, FSDP2 across them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.desk import ROOT

pytestmark = pytest.mark.train

EXAMPLES = ROOT / "examples"
SMALL = ("--steps", "12", "--width", "32", "--layers", "1", "--log-every", "4")


def clusterkit(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "clusterkit", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses(log: str) -> list[tuple[str, str]]:
    return re.findall(r"step (\d+) loss ([\d.]+)", log)


def test_two_nodes_of_two_ranks_learn_what_two_ranks_of_fsdp_learn(tmp_path: Path) -> None:
    (tmp_path / "clusterkit.yaml").write_text(
        f"clusters:\n  here: {{kind: local, run_dir: {tmp_path}/runs}}\n"
    )
    layout = ("--tp", "2", "--nodes", "2", "--gpus-per-node", "2")
    said = json.loads(clusterkit(tmp_path, "layout", *layout, "--json", "--export", "env"))
    sizes = [line.removeprefix("export ") for line in said["export"].splitlines()]
    assert "TP_SIZE=2" in sizes
    assert said["dimensions"]["tp"]["reach"] == "island"

    words = ("submit", "--cluster", "here", "--wait", "--json", "--framework", "torchrun")
    environment = [word for size in sizes for word in ("--env", size)]
    script = (str(EXAMPLES / "train_tp_fsdp.py"), *SMALL)
    job = clusterkit(tmp_path, *words, *layout[2:], *environment, *script)
    log = clusterkit(tmp_path, "logs", json.loads(job)["job_id"])
    assert "world size 4" in log

    script = (str(EXAMPLES / "train_fsdp.py"), *SMALL)
    job = clusterkit(tmp_path, *words, "--nodes", "1", "--gpus-per-node", "2", *script)
    plain = clusterkit(tmp_path, "logs", json.loads(job)["job_id"])
    assert [step for step, _ in losses(log)] == ["1", "4", "8", "12"]
    for (_, ours), (_, theirs) in zip(losses(log), losses(plain), strict=True):
        assert float(ours) == pytest.approx(float(theirs), abs=2e-3)
    assert float(losses(log)[-1][1]) < float(losses(log)[0][1])
