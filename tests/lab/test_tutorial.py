"""The tutorial of several nodes: its commands are typed in on the practice cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.desk import Desk
from tests.helpers.doc_blocks import ROOT
from tests.helpers.doc_sessions import differences

pytestmark = [pytest.mark.lab, pytest.mark.train]


def test_the_first_job_on_several_nodes(desk: Desk) -> None:
    (desk.folder / "clusterkit.yaml").unlink()
    shutil.copytree(ROOT / "examples", desk.folder / "examples", dirs_exist_ok=True)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    def run(text: str) -> subprocess.CompletedProcess[str]:
        return desk.lab.run(
            "head",
            ["bash", "-c", f"exec 2>&1\n{text}"],
            cwd=desk.folder,
            env=desk.environment(HOME=str(desk.folder), PATH=path, COLUMNS="80"),
            timeout_s=400,
        )

    page = ROOT / "docs" / "tutorial" / "first-multi-node-job.md"
    assert differences(page, run) == []
