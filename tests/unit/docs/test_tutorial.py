"""The tutorial: its commands are typed in as they stand there, and print what is shown."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs.generate.documents import JOB
from tests.helpers.doc_blocks import ROOT
from tests.helpers.doc_sessions import Step, differences, script, steps
from tests.helpers.needs import require

PAGE = ROOT / "docs" / "tutorial" / "first-run.md"


@pytest.mark.train
def test_the_first_run(tmp_path: Path) -> None:
    require("torch")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "COLUMNS": "80",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }

    def run(text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash"],
            input=text,
            cwd=tmp_path,
            env=environment,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=550,
        )

    assert differences(PAGE, run) == []
    # What the reference says of the document of a job.
    said = run("clusterkit status latest --json").stdout
    job = json.loads(said)
    assert set(job) == {"schema", *JOB}
    assert job["state"] == "failed"
    assert set(job["failure"]) == {"node", "rank", "exit_code", "message", "tail"}


def test_a_page_is_read_as_commands_and_what_they_print(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ false\n$ echo $?; \\\n  echo b 7\n1\n...\nb 12\n```\n")
    assert steps(page) == (
        Step(command="false", shown=()),
        Step(command="echo $?; \\\n  echo b 7", shown=("1", "...", "b 12")),
    )

    def run(text: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["bash", "-c", text], check=False, capture_output=True, text=True)

    assert differences(page, run) == []
    page.write_text("```console\n$ echo a\nb\n```\n")
    (wrong,) = differences(page, run)
    assert wrong.startswith("$ echo a\nb\nis not in:")
    assert script(page).endswith("exit 0")
