"""What preflight is asked for and cannot be meant is refused before any node is asked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterkit.core.errors import UserError
from clusterkit.core.model import ClusterKind, ClusterSpec, ContainerRuntime
from clusterkit.preflight.request import PreflightOptions
from clusterkit.preflight.targets import aim
from tests.helpers.command_line import typed_in

_RACK = ClusterSpec(name="rack", kind=ClusterKind.SSH)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (PreflightOptions(gpus_per_node=0), "--gpus-per-node 0: must be at least 1"),
        (PreflightOptions(gpus_per_node=-1), "--gpus-per-node -1: must be at least 1"),
        (PreflightOptions(env={"A B": "c"}), "'A B' is not a name"),
        (PreflightOptions(env={"": "c"}), "'' is not a name"),
        (PreflightOptions(env={"1A": "c"}), "'1A' is not a name"),
        (PreflightOptions(path=("/data", "")), "--path names no folder"),
        (PreflightOptions(image=""), "--image names no image"),
        (PreflightOptions(image="train.sif"), "--image train.sif needs a container runtime"),
        (PreflightOptions(timeout=0), "--timeout 0: no time at all"),
        (PreflightOptions(framework="torch"), "unknown framework 'torch'"),
    ],
)
def test_what_cannot_be_meant_is_refused(wanted: PreflightOptions, said: str) -> None:
    with pytest.raises(UserError) as caught:
        aim(wanted, _RACK)
    (problem,) = caught.value.problems
    assert said in problem.message
    assert problem.hint


def test_all_of_it_is_told_at_once() -> None:
    with pytest.raises(UserError) as caught:
        aim(PreflightOptions(gpus_per_node=0, image="x", env={"A-B": ""}), _RACK)
    assert len(caught.value.problems) == 3


def test_an_image_is_looked_for_with_the_runtime_of_the_cluster() -> None:
    spec = ClusterSpec(
        name="rack", kind=ClusterKind.SSH, container_runtime=ContainerRuntime.APPTAINER
    )
    job = aim(PreflightOptions(hosts="n1", image="/i/a.sif"), spec).job
    assert (job.container_runtime, job.image) == ("apptainer", "/i/a.sif")


def test_compose_is_looked_for_as_docker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # this machine has no Docker
    spec = ClusterSpec(
        name="rack", kind=ClusterKind.SSH, container_runtime=ContainerRuntime.COMPOSE
    )
    job = aim(PreflightOptions(hosts="n1", image="torch:1"), spec).job
    assert (job.container_runtime, job.image_digest) == ("docker", None)
    client = tmp_path / "docker"
    client.write_text("#!/bin/sh\necho sha256:ab\n")
    client.chmod(0o755)
    assert aim(PreflightOptions(hosts="n1", image="torch:1"), spec).job.image_digest == "sha256:ab"


@pytest.mark.parametrize(
    ("framework", "cluster", "named"),
    [
        ("torchrun", {}, True),
        ("env", {}, False),  # needs no package
        (None, {}, False),
        ("deepspeed", {}, False),  # not installed here
        ("torchrun", {"python": sys.executable}, False),
        ("torchrun", {"shared_filesystem": False}, False),
        ("torchrun", {"run_dir": "/dev/shm"}, False),  # another file system
    ],
)
def test_the_interpreter_that_asks_is_named_where_nodes_see_it_too(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    framework: str | None,
    cluster: dict[str, Any],
    named: bool,
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name if name == "torch" else None)
    values = {"run_dir": str(tmp_path / "runs"), **cluster}
    spec = ClusterSpec(name="rack", kind=ClusterKind.SSH, **values)
    job = aim(PreflightOptions(hosts="n1", framework=framework), spec).job
    assert job.python_here == (sys.executable if named else None)


def test_folders_are_the_same_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    job = aim(PreflightOptions(hosts="n1", path=("data", "../up", "/abs/", "~/x")), _RACK).job
    up = str(tmp_path.parent / "up")
    assert job.paths[-4:] == (str(tmp_path / "data"), up, "/abs", "/home/me/x")


@pytest.mark.parametrize(
    "words",
    [
        ("--ignore", "SSH,HOST,GPU,TOPO,IB,NCCL,FS,SLURM,ENV"),
        ("--select", "GPU", "--ignore", "GPU"),
    ],
)
def test_no_node_is_usable_where_nothing_is_checked(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = _preflight(tmp_path, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no check is left" in done.stderr


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a GPU")
def test_gpus_that_were_asked_for_are_missed(tmp_path: Path) -> None:
    """Slots that the cluster has are not."""
    asked = _preflight(tmp_path, "--select", "GPU001,GPU002,GPU023", "-g", "8")
    assert asked.returncode == 1
    assert "no GPU, the job wants 8" in asked.stdout
    assert "no node is usable" in asked.stdout
    (tmp_path / "clusterkit.yaml").write_text("clusters: {local: {kind: local, gpus_per_node: 8}}")
    slots = _preflight(tmp_path, "--select", "GPU001,GPU002,GPU023")
    assert slots.returncode == 0, slots.stdout


def test_what_is_saved_holds_no_secret(tmp_path: Path) -> None:
    env = ("--env", "WANDB_API_KEY=s3cr3t", "--env", "NCCL_DEBUG=WARN")
    done = _preflight(tmp_path, "--select", "NCCL", *env, "--save", "kept")
    assert done.returncode == 0, done.stderr
    texts = {path.name: path.read_text() for path in (tmp_path / "kept").rglob("*.*")}
    assert "NCCL_DEBUG" in texts["manifest.json"]
    assert "s3cr3t" not in "".join(texts.values())


def _preflight(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return typed_in(folder, "preflight", "--via", "local", *words, HOME=str(folder))
