"""Real jobs on a machine on which somebody else does what once ran code as their user."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from clusterkit.core.model import ClusterSpec, ContainerRuntime
from clusterkit.launch.plan import make_plan
from clusterkit.launch.render import render
from tests.helpers.render_cases import PLAIN, RACK, job
from tests.unit.launch.test_framework_mpi import MPIRUN

STRANGER = Path(__file__).with_name("peers_stranger.py")
STRANGERS_UID = 12345
PORTS = (23000, 23049)
CONFIG = f"""
clusters:
  here: {{kind: local, port_range: {PORTS[0]}-{PORTS[1]}}}
"""
IN_A_NETWORK_OF_ITS_OWN = """
set -u
ip link set lo up
umask 000
cd "$1"
stranger=(setpriv --reuid={uid} --regid={uid} --clear-groups -- /usr/bin/python3)
"${{stranger[@]}}" - {mark} {low} {high} <"$2" >stranger.log 2>&1 &
stranger=$!
shift 2
# A job that is there before the stranger has the ports that it squats, and is not attacked.
until grep -q squats stranger.log; do kill -0 "$stranger" || exit 1; sleep 0.1; done
"$@" && code=0 || code=$?
kill "$stranger"
exit "$code"
"""
NOTHING = """
import pathlib, time
until = time.monotonic() + 40
while pathlib.Path("stranger.log").read_text().count('"to"') <= 10 and time.monotonic() < until:
    time.sleep(0.1)
time.sleep(2)
"""
"""Waits for the stranger, which a busy machine starts late."""
HOROVOD = """
import time, torch, horovod.torch as hvd
hvd.init()
began = time.monotonic()
while time.monotonic() - began < 3:
    assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [hvd.size()] * 3
"""
needs_root = pytest.mark.needs("root")


class Attacked:
    """A job that has ended, beside a stranger."""

    def __init__(self, folder: Path, script: str, *words: str) -> None:
        self.folder = folder
        self.mark = folder / "mark"
        (folder / "clusterkit.yaml").write_text(CONFIG)
        (folder / "train.py").write_text(script)
        (folder / "bin").mkdir()
        mpirun = folder / "bin" / "mpirun"
        mpirun.write_text(MPIRUN)
        mpirun.chmod(0o755)
        around = IN_A_NETWORK_OF_ITS_OWN.format(
            uid=STRANGERS_UID, mark=self.mark, low=PORTS[0], high=PORTS[1]
        )
        command = [
            sys.executable,
            "-m",
            "clusterkit",
            "submit",
            "--cluster",
            "here",
            "--nodes",
            "2",
            "--json",
            "--wait",
            *words,
            "train.py",
        ]
        done = subprocess.run(
            [
                "unshare",
                "--net",
                "bash",
                "-c",
                around,
                "around",
                str(folder),
                str(STRANGER),
                *command,
            ],
            env={
                "PATH": f"{folder}/bin:{os.environ['PATH']}",
                "HOME": str(folder),
                "MPI_SEEN": str(folder / "seen"),
                **{name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ},
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        self.output = done.stdout + done.stderr
        self.document: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}
        log = (folder / "stranger.log").read_text()
        self.did = [json.loads(line) for line in log.splitlines() if line.startswith("{")]

    def check(self) -> None:
        """Say that the job has trained on, and that nothing else was run."""
        assert not self.mark.exists(), self.mark.read_text()
        assert self.document.get("state") == "succeeded", self.output
        attacked = [one["answer"] for one in self.did if "to" in one]
        assert len(attacked) > 10
        assert not [answer for answer in attacked if "200 OK" in answer]
        assert not [one for one in self.did if "socket" in one]


@needs_root
def test_mpi_on_one_machine_runs_no_strangers_command(tmp_path: Path) -> None:
    Attacked(tmp_path, NOTHING, "--framework", "mpi").check()


@needs_root
@pytest.mark.train
def test_horovod_on_one_machine_unpickles_nothing_of_a_stranger(tmp_path: Path) -> None:
    Attacked(tmp_path, HOROVOD, "--framework", "horovod", "--nodes", "1:2").check()


# By hand, without clusterkit on the nodes


def rendered(cluster: ClusterSpec, folder: Path, **changes: Any) -> Path:
    plan = make_plan(job(framework="mpi", **changes), cluster, workdir=str(folder))
    for file in render(plan):
        (folder / file.name).write_text(file.text)
    return folder


@pytest.mark.parametrize("token", ["", "short"])
def test_a_node_script_by_hand_asks_for_a_token_and_says_what_to_type(
    tmp_path: Path, token: str
) -> None:
    done = subprocess.run(
        ["bash", rendered(RACK, tmp_path) / "node.sh"],
        env={"PATH": os.environ["PATH"], "CK_NODES": "n1 n2", "CK_TOKEN": token},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert 'export CK_TOKEN="$(openssl rand -hex 16)"' in done.stderr


def test_one_node_by_hand_needs_no_token(tmp_path: Path) -> None:
    (tmp_path / "mpirun").write_text(MPIRUN)
    (tmp_path / "mpirun").chmod(0o755)
    (tmp_path / "train.py").write_text("print('trained')")
    done = subprocess.run(
        ["bash", rendered(PLAIN, tmp_path, script="train.py", nodes=1, args=()) / "node.sh"],
        env={
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "CK_NODES": "localhost",
            "CK_SLOTS": "1",
            "MPI_SEEN": str(tmp_path / "seen"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("trained\n", 0), done.stderr


def test_compose_files_of_several_hosts_ask_for_a_token(tmp_path: Path) -> None:
    image = {"image": "team/mpi:2", "container": ContainerRuntime.COMPOSE}
    folder = rendered(RACK, tmp_path, **image)
    for path in folder.glob("compose-*.yaml"):
        environment = yaml.safe_load(path.read_text())["services"]["train"]["environment"]
        assert environment["CK_TOKEN"].startswith("${CK_TOKEN:?")
    assert list(folder.glob("compose-*.yaml"))


SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
for SLURM_NODEID in 0 1; do
  export SLURM_NODEID
  env >"$SEEN/env-$SLURM_NODEID"
  cat /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n' >"$SEEN/ps-$SLURM_NODEID"
done
"""


def test_a_batch_script_makes_a_token_that_only_the_environment_of_its_nodes_has(
    tmp_path: Path,
) -> None:
    for name, text in (("srun", SRUN), ("scontrol", "#!/bin/sh\necho localhost\necho n2\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    script = rendered(PLAIN, tmp_path) / "job.sbatch"
    tokens = set()
    for attempt in range(2):
        done = subprocess.run(
            ["bash", script],
            env={
                "PATH": f"{tmp_path}:{os.environ['PATH']}",
                "SLURM_JOB_ID": "7",
                "SLURM_RESTART_COUNT": str(attempt),
                "SLURM_JOB_NODELIST": "x",
                "SLURM_JOB_NUM_NODES": "2",
                "SEEN": str(tmp_path),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        told = [(tmp_path / f"env-{node}").read_text().splitlines() for node in range(2)]
        first, second = ([line for line in env if line.startswith("CK_TOKEN=")] for env in told)
        assert first == second
        token = first[0].removeprefix("CK_TOKEN=")
        assert re.fullmatch("[0-9a-f]{32}", token)
        seen = [done.stdout, done.stderr, *(path.read_text() for path in tmp_path.glob("ps-*"))]
        assert not any(token in text for text in (*seen, script.read_text()))
        tokens.add(token)
    assert len(tokens) == 2


LOOK = """
import os, pathlib
token = os.environ["CK_TOKEN"].encode()
assert len(token) == 32
for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
        assert token not in path.read_bytes(), path
    except OSError:
        pass
for folder in (os.environ["RUNS"], os.environ["CK_TMP"]):
    for path in pathlib.Path(folder).rglob("*"):
        assert not path.is_file() or token not in path.read_bytes(), path
assert os.stat(os.environ["CK_TMP"]).st_mode & 0o777 == 0o700
print("looked everywhere")
"""


def test_the_token_of_a_local_job_is_in_no_file_and_no_command_line(tmp_path: Path) -> None:
    (tmp_path / "clusterkit.yaml").write_text(CONFIG)
    (tmp_path / "look.py").write_text(LOOK)
    words = ["submit", "--cluster", "here", "--nodes", "2", "--framework", "env", "--follow"]
    done = subprocess.run(
        [sys.executable, "-m", "clusterkit", *words, "look.py"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "RUNS": str(tmp_path)},
        umask=0,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("looked everywhere") == 2
