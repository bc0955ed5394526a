"""Jobs in images without any engine: what is planned, refused, rendered, and said of drivers."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from clusterkit.core.data import data_dir
from clusterkit.core.errors import UserError
from clusterkit.core.model import ContainerPlan, ContainerRuntime, LaunchPlan
from clusterkit.launch.plan import make_plan
from clusterkit.launch.render import render
from tests.helpers.embedded import as_reviewed, golden_of
from tests.helpers.paths import ROOT, TESTS
from tests.helpers.render_cases import LOCAL, PLAIN, RACK, WORKDIR, cluster, job

GOLDEN = TESTS / "golden" / "compose-hosts"
COMPOSE = {"image": "team/torch:2", "container": ContainerRuntime.COMPOSE}


def plan_of_compose() -> LaunchPlan:
    wanted = job(**COMPOSE, env={"A": "b $c"}, secrets=("WANDB_API_KEY",), mounts=("/d:/data:ro",))
    return make_plan(wanted, RACK, workdir=WORKDIR)


def test_compose_files_of_hosts_are_as_reviewed() -> None:
    files = render(plan_of_compose(), only=("compose",))
    reviewed = as_reviewed({file.name: file.text for file in files})
    assert reviewed == golden_of(GOLDEN, reviewed)
    assert {file.name for file in files} == {
        "compose-n3.yaml",
        "compose-n1.yaml",
        "compose-node.sh",
    }
    second = next(file.text for file in files if file.name == "compose-n1.yaml")
    service = yaml.safe_load(second)["services"]["train"]
    assert service["network_mode"] == "host"
    assert service["environment"]["CK_NODE_RANK"] == "1"
    assert service["environment"]["A"] == "b $$c"
    assert service["environment"]["WANDB_API_KEY"] is None


def test_hosts_that_no_cluster_names_are_placeholders_and_called_so() -> None:
    for where, names_none in ((LOCAL, True), (RACK, False)):
        files = render(make_plan(job(**COMPOSE), where, workdir=WORKDIR), only=("compose",))
        (first, *_) = [file.text for file in files if file.name.endswith(".yaml")]
        assert ("names no hosts: by hand, write yours into CK_NODES" in first) is names_none


def test_shell_texts_of_containers_are_clean(tmp_path: Path) -> None:
    node = next(file for file in render(plan_of_compose()) if file.name == "compose-node.sh")
    (tmp_path / node.name).write_text(node.text)
    texts = [*(ROOT / "templates/scripts/container").glob("*.sh"), tmp_path / node.name]
    checked = subprocess.run(["shellcheck", *texts], capture_output=True, text=True, check=False)
    assert checked.stdout == ""


@pytest.mark.parametrize(
    ("wanted", "where", "words"),
    [
        ({"mounts": ("/a:/b",)}, LOCAL, ("--mount /a:/b", "no image", "--image")),
        ({**COMPOSE, "mounts": ("/a",)}, LOCAL, ("--mount /a", "SOURCE:TARGET")),
        ({**COMPOSE, "mounts": ("/a:b",)}, LOCAL, ("TARGET an absolute path",)),
        (COMPOSE, PLAIN, ("without Slurm", "--container docker")),
    ],
)
def test_what_cannot_be_is_refused(wanted: dict[str, Any], where: Any, words: Any) -> None:
    with pytest.raises(UserError) as refusal:
        make_plan(job(**wanted), where, workdir=WORKDIR)
    for word in words:
        assert word in str(refusal.value)


def test_mounts_of_the_job_come_after_those_of_the_cluster() -> None:
    wanted = job(image="x", container=ContainerRuntime.DOCKER, mounts=("/b:/b",))
    plan = make_plan(
        wanted, cluster(PLAIN, mounts=("/a:/a:ro",), python="/site/python"), workdir="/"
    )
    assert plan.container == ContainerPlan(
        runtime=ContainerRuntime.DOCKER, image="x", mounts=("/a:/a:ro", "/b:/b")
    )
    assert plan.command.argv[0] == "python3"


def run_node_script(
    tmp_path: Path, container: ContainerPlan, body: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the node script of a job in an image, with the programs of `tmp_path` first."""
    plan = make_plan(
        job(nodes=1, image=container.image, container=container.runtime), PLAIN, workdir="/tmp"
    )
    command = dataclasses.replace(plan.command, argv=("bash", "-c", body))
    plan = dataclasses.replace(plan, command=command, container=container)
    script = next(file.text for file in render(plan) if file.name == "node.sh")
    return subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


_SAY_OPTIONS = 'while [[ $1 == --* ]]; do echo "$1"; shift; done'
_SAY_IMAGE = 'echo "image $1"; shift; exec "$@"'
PRETENDERS = {
    ContainerRuntime.APPTAINER: ("apptainer", f"shift; {_SAY_OPTIONS}; {_SAY_IMAGE}"),
    ContainerRuntime.ENROOT: ("enroot", f"shift; {_SAY_OPTIONS}; {_SAY_IMAGE}"),
    ContainerRuntime.PYXIS: (
        "srun",
        f'[[ $1 != --help ]] || {{ echo --container-image; exit; }}; {_SAY_OPTIONS}; exec "$@"',
    ),
}


def pretend(tmp_path: Path, runtime: ContainerRuntime) -> None:
    """Put a program in `tmp_path` that says its options and runs the command outside any image."""
    name, body = PRETENDERS[runtime]
    (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
    (tmp_path / name).chmod(0o755)


@pytest.mark.parametrize("runtime", PRETENDERS)
def test_exit_code_and_mounts_of_runtimes_that_are_not_here(
    tmp_path: Path, runtime: ContainerRuntime
) -> None:
    pretend(tmp_path, runtime)
    image = tmp_path / "image.sqsh"
    image.touch()
    container = ContainerPlan(runtime=runtime, image=str(image), mounts=(f"{tmp_path}:/data:ro",))
    done = run_node_script(tmp_path, container, "pwd; exit 7", SLURMD_NODENAME="localhost")
    assert done.returncode == 7, done.stderr
    assert f"{tmp_path}:/data:ro" in done.stdout
    assert str(image) in done.stdout
    assert done.stdout.endswith("/tmp\n")


def test_what_trackers_know_the_run_by_goes_into_the_image(tmp_path: Path) -> None:
    pretend(tmp_path, ContainerRuntime.ENROOT)
    (tmp_path / "image.sqsh").touch()
    container = ContainerPlan(
        runtime=ContainerRuntime.ENROOT, image=str(tmp_path / "image.sqsh"), mounts=()
    )
    run = {"CK_RUN": "train-20261129-011500-d03f56", "CK_RESULTS": str(tmp_path)}
    shell = {"WANDB_NAME": "mine", "WANDB_API_KEY": "hush"}
    done = run_node_script(tmp_path, container, "true", **run, **shell)
    assert done.returncode == 0, done.stderr
    named = done.stdout.splitlines()
    for name in ("WANDB_NAME", "WANDB_RUN_ID", "MLFLOW_RUN_CONTEXT", "TENSORBOARD_LOGGING_DIR"):
        assert named.count(f"--env={name}") == 1
    assert "--env=WANDB_API_KEY" not in named, "of the shell alone: --secret hands it on"


@pytest.mark.parametrize("runtime", PRETENDERS)
def test_a_mount_that_is_not_there_is_refused(tmp_path: Path, runtime: ContainerRuntime) -> None:
    pretend(tmp_path, runtime)
    container = ContainerPlan(runtime=runtime, image="docker://x", mounts=("/not/there:/data",))
    container = (
        container
        if runtime != ContainerRuntime.ENROOT
        else dataclasses.replace(container, image="unpacked")
    )
    done = run_node_script(tmp_path, container, "true")
    assert done.returncode == 125
    assert "localhost: /not/there is missing, and is to be mounted at /data" in done.stderr
    assert "--mount" in done.stderr


@pytest.mark.parametrize(
    ("runtime", "image", "said"),
    [
        (ContainerRuntime.APPTAINER, "/not/there.sif", "no image /not/there.sif"),
        (ContainerRuntime.ENROOT, "/not/there.sqsh", "no image /not/there.sqsh"),
    ],
)
def test_an_image_file_that_is_not_there_is_refused(
    tmp_path: Path, runtime: ContainerRuntime, image: str, said: str
) -> None:
    pretend(tmp_path, runtime)
    done = run_node_script(tmp_path, ContainerPlan(runtime=runtime, image=image), "true")
    assert (done.returncode, said in done.stderr) == (125, True)


LOOK = ROOT / "templates/scripts/container" / "look.py"


@pytest.mark.parametrize(
    ("version", "words", "said"),
    [
        ("__version__ = '2.9+cpu'\ncuda = None", ("nvidia", "570.1"), "is no CUDA build"),
        ("__version__ = '2.9'\ncuda = '12.8'", ("amd", ""), "is no ROCm build"),
        ("__version__ = '2.9'\ncuda: str = '12.8'", ("nvidia", "570.1"), "got no /dev/nvidiactl"),
    ],
)
def test_a_torch_that_will_not_see_the_gpus_is_named(
    tmp_path: Path, version: str, words: tuple[str, ...], said: str
) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has GPUs")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemError('it was imported')")
    (tmp_path / "torch" / "version.py").write_text(version)
    done = subprocess.run(
        [sys.executable, LOOK, *words],
        env={"PYTHONPATH": str(tmp_path), "CK_NODE_NAME": "n1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said in done.stderr
    assert done.stderr.startswith("clusterkit: warning: n1: ")


@pytest.mark.parametrize(
    ("listed", "devices"),
    [
        ("GPU 0: NVIDIA H100 (UUID: GPU-a1)\nGPU 1: NVIDIA H100 (UUID: GPU-b2)", "GPU-a1,GPU-b2"),
        (
            "GPU 0: H100 (UUID: GPU-a1)\n  MIG (UUID: MIG-c3)\n  MIG (UUID: MIG-d4)",
            "MIG-c3,MIG-d4",
        ),
        ("", ""),
    ],
)
def test_docker_is_given_the_gpus_that_the_job_sees(
    tmp_path: Path, listed: str, devices: str
) -> None:
    """By UUID: its daemon is outside of the job's cgroup, where the numbers are others."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\n[ \"$*\" = -L ] && printf '%s\\n' '{listed}'\n")
    smi.chmod(0o755)
    text = data_dir("templates/scripts").joinpath("container", "docker.sh").read_text()
    done = subprocess.run(
        ["bash", "-euc", f'{text}\nck_find_devices; printf %s "$ck_devices"'],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == devices
