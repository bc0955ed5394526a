"""A wheel holds all files that clusterkit reads, and works far from a checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.accuracy.truth_table import COLUMNS
from tests.helpers.needs import require
from tests.helpers.paths import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the wheel, as pip would."""
    require("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    argv = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


@pytest.fixture
def installed(site: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs the unpacked clusterkit, far from the checkout."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(site), "XDG_CONFIG_HOME": str(tmp_path)}
        argv = [sys.executable, "-m", "clusterkit", *words]
        return subprocess.run(
            argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    return run


def tracked(folder: str) -> list[str]:
    require("git")
    listed = subprocess.run(
        ["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return listed.stdout.splitlines()


def test_every_file_is_in_the_wheel(site: Path) -> None:
    wanted = [*tracked("clusterkit"), *(f"clusterkit/_data/{f}" for f in tracked("templates"))]
    wanted += [f"clusterkit/_data/{f}" for f in tracked("images")]
    wanted += [f"clusterkit/_data/{f}" for f in tracked("bench/accuracy")]
    assert "clusterkit/_data/templates/pages/preflight.html.j2" in wanted
    assert "clusterkit/preflight/env_lint/rules.tsv" in wanted
    assert "clusterkit/preflight/env_lint/variables.tsv" in wanted
    assert [name for name in wanted if not (site / name).is_file()] == []


def test_preflight_runs_from_the_wheel(
    installed: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    words = ("--cluster", "local", "--network", "--html", "page.html", "--json")
    done = installed("preflight", *words)
    assert json.loads(done.stdout)["nodes"] == ["localhost"], done.stderr
    assert "<style>" in (tmp_path / "page.html").read_text()
    (tmp_path / "job.env").write_text("NCCL_DEBG=INFO\n")
    assert "NCCL_DEBUG" in installed("lint-env", "job.env").stdout


def test_the_estimator_is_scored_from_the_wheel(
    installed: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    header, row = "\t".join(COLUMNS), dict.fromkeys(COLUMNS, "")
    row |= {"id": "a-1", "model": "llama-3.1-8b", "gpu": "h100", "n_gpus": "8", "value": "41.2"}
    row |= {"strategy": "FSDP2", "seq": "8192", "micro_batch": "1", "act_ckpt": "full"}
    row |= {"quantity": "mem_per_gpu", "unit": "GB", "basis": "max reserved", "kind": "measured"}
    (tmp_path / "table.tsv").write_text(f"{header}\n" + "\t".join(row.values()) + "\n")
    scored = json.loads(installed("estimate", "--score", "table.tsv", "--json").stdout)
    assert scored["memory"]["reserved"]["rows"] == 1
    assert "1 published figures, 1 of them" in installed("estimate", "--score", "table.tsv").stdout
