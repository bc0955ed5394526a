"""The compose files, brought up: jobs train in them, and accounting and monitoring know of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.docker.engine import Engine
from tests.docker.fixtures import MARK, Images
from tests.helpers.paths import ROOT

pytestmark = pytest.mark.docker

TRAIN = ("--framework", "torchrun", "--nodes", "3")


@dataclass
class Cluster:
    """A cluster of `compose/`, up; its machines are its services."""

    engine: Engine
    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    def compose(self, *words: str, timeout_s: float = 600) -> str:
        return self.engine.run(
            "compose", *words, cwd=self.folder, env=self.env, timeout_s=timeout_s
        )

    def ask(self, command: str, *, host: str = "login", user: str = "train") -> str:
        return self.compose("exec", "-T", "--user", user, host, "bash", "-c", command)

    def until(self, command: str, wanted: str, *, host: str = "login") -> str:
        deadline = time.monotonic() + 60
        while wanted not in (said := self.ask(command, host=host)) and time.monotonic() < deadline:
            time.sleep(1)
        return said

    def is_quiet(self, node: str) -> bool:
        """Tell whether a node soon has no process of a job."""
        count = "echo $(pgrep --count --full '[c]lusterkit.executors.node|[t]rain_ddp') left"
        return self.until(count, "0 left", host=node) == "0 left\n"


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.fixture(scope="module")
def bring_up(engine: Engine, images: Images) -> Iterator[Callable[..., Cluster]]:
    """Return a function that brings up a cluster of `compose/`; at the end all of them go."""
    lent = {"CA_FILE": "--ca", "PIP_FILE": "--pip-conf", "APT_FILE": "--apt-sources"}
    secrets = {name: str(images.lent[flag]) for name, flag in lent.items() if flag in images.lent}
    clusters: list[Cluster] = []

    def up(name: str, *services: str, **env: str) -> Cluster:
        env = {"BUILD_NETWORK": "host", "SSH_PORT": str(free_port()), **secrets, **env}
        cluster = Cluster(engine, ROOT / "compose" / name, env)
        clusters.append(cluster)
        cluster.compose("build", "--quiet")
        cluster.compose("up", "--detach", "--wait", "--wait-timeout", "120", *services)
        return cluster

    yield up
    for cluster in clusters:
        cluster.compose("down", "--volumes", "--timeout", "2")


@pytest.fixture(scope="module")
def slurm(bring_up: Callable[..., Cluster], images: Images) -> Cluster:
    images.build("torch")
    return bring_up("slurm")


def test_the_quickstart_trains_on_slurm_and_sacct_knows_it(slurm: Cluster) -> None:
    words = " ".join(TRAIN)
    said = slurm.ask(f"clusterkit submit {words} --wait --json examples/train_ddp.py --steps 5")
    job = json.loads(said)
    assert job["state"] == "succeeded"
    assert "world size 3" in slurm.ask(f"clusterkit logs {job['job_id']}")
    columns = "--noheader --parsable2 --allocations --format state,user,account,nodelist,alloctres"
    known = slurm.until(f"sacct --jobs {job['job_id']} {columns}", "COMPLETED")
    state, user, account, nodes, resources = known.strip().split("|")
    assert (state, user, account, nodes) == ("COMPLETED", "train", "research", "n[1-3]")
    assert "gres/gpu=3" in resources


def test_a_cancelled_job_leaves_no_process_on_slurm(slurm: Cluster) -> None:
    words = " ".join(TRAIN)
    job = json.loads(slurm.ask(f"clusterkit submit {words} --json examples/train_ddp.py"))["job_id"]
    slurm.until(f"squeue --noheader --format %T --jobs {job}", "RUNNING")
    slurm.ask(f"clusterkit cancel {job}")
    assert "CANCELLED" in slurm.until(f"sacct -nXP --jobs {job} --format state", "CANCELLED")
    assert [slurm.is_quiet(node) for node in ("n1", "n2", "n3")] == [True] * 3


def test_slurm_knows_its_jobs_after_a_restart(slurm: Cluster) -> None:
    before = slurm.ask("sacct --noheader --parsable2 --allocations --format jobid").split()
    slurm.compose("up", "--detach", "--wait", "--force-recreate", "--timeout", "2")
    after = slurm.ask("sacct --noheader --parsable2 --allocations --format jobid").split()
    assert before
    assert set(before) <= set(after)
    assert "3 idle" in slurm.until("sinfo --noheader --partition gpu --format '%D %t'", "3 idle")


def test_nothing_lent_to_the_build_stays_in_the_image(slurm: Cluster) -> None:
    assert MARK in Path(slurm.env["CA_FILE"]).read_text()
    found = "grep -rlF --exclude-dir={proc,sys,dev,cluster} MARK / 2>/dev/null || true"
    assert slurm.ask(found.replace("MARK", MARK), user="root") == ""


def test_the_rack_trains_over_ssh(bring_up: Callable[..., Cluster], images: Images) -> None:
    images.build("torch")
    rack = bring_up("rack")
    words = " ".join(TRAIN)
    said = rack.ask(f"clusterkit submit {words} --wait --json examples/train_ddp.py --steps 5")
    job = json.loads(said)
    assert job["state"] == "succeeded"
    assert "world size 6" in rack.ask(f"clusterkit logs {job['job_id']}")
    assert [rack.is_quiet(node) for node in ("n1", "n2", "n3")] == [True] * 3


@pytest.mark.parametrize(
    ("framework", "image", "script"),
    [
        ("torchrun", "torch", "train_ddp.py"),
        ("deepspeed", "deepspeed", "train_deepspeed.py"),
        ("horovod", "horovod", "train_horovod.py"),
    ],
)
def test_the_compose_file_of_a_job_trains(
    engine: Engine, images: Images, tmp_path: Path, framework: str, image: str, script: str
) -> None:
    images.build(image)
    for path in (ROOT / "examples").glob("*.*"):
        shutil.copy(path, tmp_path)
    words = (
        "render", "--cluster", "local", "--framework", framework, "--nodes", "1",
        "--gpus-per-node", "2", "--image", f"clusterkit/{image}:cpu", "--container", "docker",
        "--env", "DS_ACCELERATOR=cpu", "--output", "job", script, "--steps", "5",
        "--checkpoint-dir", "saved", "--checkpoint-every", "5",
    )  # fmt: skip
    argv = [sys.executable, "-m", "clusterkit", *words]
    rendered = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert rendered.returncode == 0, rendered.stderr
    compose = ("compose", "--file", "job/compose.yaml")
    env = {"CK_USER": f"{os.getuid()}:{os.getgid()}"}
    try:
        done = engine.call(
            *compose, "up", "--no-color", "--exit-code-from", "cpu", "cpu", cwd=tmp_path, env=env
        )
    finally:
        engine.run(*compose, "--profile", "cpu", "down", cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "world size 2" in done.stdout
    assert next((tmp_path / "saved").iterdir()).stat().st_uid == os.getuid()


@pytest.fixture(scope="module")
def monitoring(
    bring_up: Callable[..., Cluster], engine: Engine, tmp_path_factory: pytest.TempPathFactory
) -> Cluster:
    folder = tmp_path_factory.mktemp("textfile")
    folder.chmod(0o755)
    argv = [sys.executable, "-m", "clusterkit", "preflight", "--cluster", "local"]
    argv += ["--select", "HOST", "--prometheus", str(folder / "preflight.prom")]
    subprocess.run(argv, check=False, capture_output=True)
    return bring_up(
        "monitoring", "prometheus", "node-exporter",
        PARENT=engine.base_image(),
        PROMETHEUS_PORT=str(free_port()),
        TEXTFILE_DIR=str(folder),
        ROOT_MOUNT="ro",
    )  # fmt: skip


def query(monitoring: Cluster, expression: str) -> list[dict[str, Any]]:
    port = monitoring.env["PROMETHEUS_PORT"]
    words = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{words}") as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return found


def test_prometheus_has_what_clusterkit_wrote(monitoring: Cluster) -> None:
    deadline = time.monotonic() + 60
    wanted = 'clusterkit_preflight_node_usable{node="localhost"}'
    while not (found := query(monitoring, wanted)) and time.monotonic() < deadline:
        time.sleep(1)
    assert [row["metric"]["instance"] for row in found] == ["127.0.0.1"]
    assert query(monitoring, "node_network_transmit_bytes_total")
    assert query(monitoring, 'node_filesystem_size_bytes{mountpoint="/"}')


def test_only_the_cluster_and_nobody_without_a_password_is_served(monitoring: Cluster) -> None:
    """The admin API is off, exporters answer where they are asked, Grafana's password is made."""
    port = monitoring.env["PROMETHEUS_PORT"]
    for path in ("api/v1/admin/tsdb/snapshot", "-/reload", "-/quit"):
        request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", method="POST")
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(request)
    listed = subprocess.run(["ss", "-Htln"], capture_output=True, text=True, check=True).stdout
    here = {line.split()[3] for line in listed.splitlines()}
    assert {one for one in here if one.endswith((":9100", f":{port}"))} == {
        "127.0.0.1:9100",
        f"127.0.0.1:{port}",
    }
    look = "run", "--rm", "--no-deps", "-T", "grafana-password"
    monitoring.compose(*look)
    first = monitoring.compose(*look, "bash", "-c", "cd /secret; stat -c '%a %u' admin; cat admin")
    assert re.fullmatch(r"600 472\n[A-Za-z0-9+/=]{32}\n", first)
    monitoring.compose(*look)
    assert monitoring.compose(*look, "cat", "/secret/admin") == first.partition("\n")[2], "once"


def test_the_rules_of_prometheus_do_what_their_tests_say(monitoring: Cluster) -> None:
    check = "promtool check config prometheus.yml && promtool test rules rules_test.yml"
    inside = f"cd /etc/prometheus && {check}"
    said = monitoring.compose("exec", "-T", "prometheus", "bash", "-c", inside)
    assert "SUCCESS" in said
    receivers = "amtool", "check-config", "/etc/alertmanager/alertmanager.yml"
    assert "4 receivers" in monitoring.compose("exec", "-T", "prometheus", *receivers)
