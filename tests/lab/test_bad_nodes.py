"""Jobs on nodes that are not what they were: another key, another Python, no folder."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

import pytest

import clusterkit
from clusterkit.core import version
from tests.helpers.lab_faults import mounted, sshd_changed
from tests.helpers.lab_jobs import Cluster, await_true, is_soon, started
from tests.lab import Lab

pytestmark = pytest.mark.lab


@pytest.fixture
def cluster(lab: Lab, tmp_path: Path) -> Cluster:
    return Cluster(lab, tmp_path, kind="ssh")


def refusal(cluster: Cluster, **options: object) -> str:
    """Submit a job that must be refused; return why, with no node agent left anywhere."""
    refused = cluster.client("true", **options)
    assert refused.returncode != 0
    for node in cluster.lab.nodes:
        await_true(lambda node=node: not cluster.lab.processes(node, "ssh[.]agent"))
    return refused.stderr


def test_a_host_whose_key_has_changed_gets_no_job(cluster: Cluster, tmp_path: Path) -> None:
    with sshd_changed(cluster.lab, "n2", tmp_path, key=True):
        said = refusal(cluster)
    assert "n2: " in said
    assert "is not the one in" in said
    assert "n1: " not in said


def test_a_node_without_python_is_named(cluster: Cluster, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with mounted(cluster.lab, "n2", "--bind", str(empty), sys.prefix):
        said = refusal(cluster)
    assert f"n2: {sys.executable} cannot be run there" in said
    assert "n1: " not in said


def test_a_node_whose_python_is_another_is_named(cluster: Cluster, tmp_path: Path) -> None:
    other = tmp_path / "python"
    real = str(Path(sys.executable).resolve())
    shutil.copy(real, tmp_path / "bare")  # ours may be /usr/bin/python3, which the mount hides
    other.write_text(f'#!/bin/sh\nexec {tmp_path}/bare -I "$@"\n')
    other.chmod(0o755)
    with mounted(cluster.lab, "n2", "--bind", str(other), real):
        said = refusal(cluster)
    assert "n2: " in said
    assert "No module named" in said
    assert "n1: " not in said


def test_a_node_with_another_clusterkit_is_named(cluster: Cluster, tmp_path: Path) -> None:
    ours = Path(str(version.__file__))
    other = tmp_path / "version.py"
    other.write_text(ours.read_text().replace(clusterkit.__version__, "0.0.9"))
    with mounted(cluster.lab, "n2", "--bind", str(other), str(ours)):
        said = refusal(cluster)
    assert f"n2: clusterkit 0.0.9 is there, and {clusterkit.__version__} here" in said
    assert "n1: " not in said


def test_one_host_under_two_names_is_told(cluster: Cluster) -> None:
    again = cluster.lab.layout.address("n1")
    said = refusal(cluster, hosts=["n1", again], nodes=2)
    assert "this job has slots there already, under another name of the same machine" in said


@pytest.mark.parametrize("kind", ["slurm", "ssh"])
def test_a_run_folder_that_is_removed_ends_the_job_on_all_nodes(
    lab: Lab, tmp_path: Path, kind: str
) -> None:
    cluster = Cluster(lab, tmp_path, kind)
    run = cluster.submit("echo on; sleep 300")
    await_true(started(run))
    began = time.monotonic()
    shutil.rmtree(run.path)
    await_true(lambda: not cluster.left(run))  # their commands take longer
    assert is_soon(lab, time.monotonic() - began)
    code, _ = cluster.ck("status", run.run_id)
    assert code == 2
    listed = json.loads(cluster.ck("status", "--json", "--limit", "0")[1])["jobs"]
    assert str(run.path) not in {job["run_dir"] for job in listed}
    if kind == "ssh":
        cluster.ck("wait", cluster.submit("true").run_id)
