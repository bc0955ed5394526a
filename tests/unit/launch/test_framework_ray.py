"""The framework `ray`: how its nodes gather, lose each other and end.

Ray itself is played by a program that says it has started: what is tested here is the launcher.
Ray's own part is in tests/frameworks/test_ray.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from ast import literal_eval
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterkit.core import peers
from clusterkit.core.data import PEERS, data_dir
from clusterkit.core.errors import UserError
from clusterkit.core.model import NodeCommand
from clusterkit.launch.frameworks import LaunchInputs, load_framework
from tests.helpers.loading import load
from tests.helpers.port_ranges import next_range

LAUNCH = data_dir("templates/frameworks/ray") / "ray_launch.py"
RANKS = data_dir("templates/programs/ranks")
PLAYED = """
import sys, time
print(sys.argv[1:], file=open("{folder}/started", "a"))
print("Next steps: ray stop")
print("Ray runtime started.", flush=True)
time.sleep(300)
"""


class Nodes:
    """The launchers of a job on this machine."""

    def __init__(
        self, folder: Path, *, count: int, least: int | None = None, slots: str = ""
    ) -> None:
        self.folder = folder
        self.count = count
        self.least = least or count
        self.slots = slots or " ".join("2" * count)
        self.port = next_range()[0]
        self.started: dict[int, subprocess.Popen[str]] = {}
        package = folder / "ray" / "scripts"
        package.mkdir(parents=True)
        shutil.copy(peers.__file__, folder / PEERS)
        (folder / "ray" / "__init__.py").touch()
        (folder / "ray" / "_private" / "authentication").mkdir(parents=True)
        (package / "__init__.py").touch()
        (folder / "grpc.py").touch()  # with it, Ray also has a server for clients
        (package / "scripts.py").write_text(PLAYED.format(folder=folder))

    def environment(self, rank: int) -> dict[str, str]:
        tmp = self.folder / f"tmp-{rank}"
        tmp.mkdir()
        names = [f"node-{number}" for number in range(self.count)]
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{self.folder}:{LAUNCH.parent}:{RANKS}",
            "CK_TOKEN": "the same on all nodes",
            "CK_NODES": " ".join(names),
            "CK_SLOTS": self.slots,
            "CK_NNODES": str(self.count),
            "CK_NODE_RANK": str(rank),
            "CK_NODE_NAME": names[rank],
            "CK_NODE_ADDR": f"127.0.0.{rank + 1}",
            "CK_HEAD_ADDR": "127.0.0.1",
            "CK_PORT": str(self.port),
            "CK_TMP": str(tmp),
            "CK_ROUNDS": str(self.folder / "rounds"),
            "CK_FAILURE": str(self.folder / "failure.json"),
            "RAY_ADDRESS": "10.9.9.9:6379",
        }

    def start(self, rank: int, code: str = "pass", *options: str) -> subprocess.Popen[str]:
        words = [sys.executable, str(LAUNCH), f"--min-nodes={self.least}", *options]
        self.started[rank] = subprocess.Popen(
            [*words, sys.executable, "-u", "-c", code],
            env=self.environment(rank),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return self.started[rank]

    def rays(self) -> list[str]:
        """Return with which words Ray was started."""
        path = self.folder / "started"
        return path.read_text().splitlines() if path.exists() else []

    def left(self) -> list[int]:
        """Return the processes that still know a folder of this job."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if str(self.folder).encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if str(tmp_path).encode() in (entry / "environ").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            continue


def test_the_driver_runs_once_when_all_are_there_and_its_end_is_that_of_all(folder: Path) -> None:
    nodes = Nodes(folder, count=3)
    code = "import os, sys; print('to', os.environ['RAY_ADDRESS'], flush=True); sys.exit(7)"
    first = [nodes.start(rank, code) for rank in (0, 2)]
    time.sleep(1)
    assert all(node.poll() is None for node in first)
    nodes.start(1, code)
    said = {rank: node.communicate(timeout=60)[0] for rank, node in nodes.started.items()}
    assert {rank: node.returncode for rank, node in nodes.started.items()} == {0: 7, 1: 0, 2: 0}
    assert said[0].splitlines() == [
        "clusterkit: Ray on 3 nodes: node-0 node-1 node-2",
        f"to 127.0.0.2:{nodes.port}",
    ]
    assert (said[1], said[2]) == ("", "")
    assert len(nodes.rays()) == 3
    folders = [re.search(r"--temp-dir=([^']*)", words) for words in nodes.rays()]
    assert not any(Path(match[1]).exists() for match in folders if match)
    assert nodes.left() == []


def test_each_node_has_as_many_cpus_as_slots_and_ray_counts_its_gpus(folder: Path) -> None:
    nodes = Nodes(folder, count=3, slots="3 1 2")
    for rank in range(3):
        nodes.start(rank)
    assert {node.wait(60) for node in nodes.started.values()} == {0}
    told = {}
    for words in nodes.rays():
        given = dict(word.split("=", 1) for word in literal_eval(words) if "=" in word)
        told[given["--node-name"]] = given["--num-cpus"]
        assert "--num-gpus" not in given
    assert told == {"node-0": "3", "node-1": "1", "node-2": "2"}


def test_two_jobs_on_a_machine_have_no_port_and_no_folder_in_common(folder: Path) -> None:
    told = []
    for name in ("a", "b"):
        (folder / name).mkdir()
        nodes = Nodes(folder / name, count=1)
        assert nodes.start(0).wait(60) == 0
        (words,) = nodes.rays()
        told.append({word for word in json.loads(words.replace("'", '"')) if "=" in word})
    same = {word for word in told[0] & told[1] if "port" in word or "dir" in word}
    assert same == {"--min-worker-port=0", "--max-worker-port=0"}
    ports = {word.partition("=")[2] for word in told[0] if "port=" in word} - {"0"}
    assert len(ports) == 8


def test_who_is_missing_is_named_when_the_time_is_up(folder: Path) -> None:
    nodes = Nodes(folder, count=3)
    nodes.start(2)
    nodes.start(0, "pass", "--start-timeout=20")  # in which the other one is heard
    said, _ = nodes.started[0].communicate(timeout=60)
    assert nodes.started[0].returncode == 1
    assert said == "clusterkit: after 20 s Ray lacks nodes: node-1 (nothing was heard of it)\n"
    assert nodes.started[2].wait(60) == 0
    assert nodes.left() == []


def kill_ray_of(nodes: Nodes, rank: int) -> None:
    """Kill the Ray of a node."""
    for pid in nodes.left():
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        if f"--node-name=node-{rank}" in words:
            os.kill(pid, signal.SIGKILL)


def await_line(node: subprocess.Popen[str], words: str) -> None:
    assert node.stdout is not None
    while words not in (line := node.stdout.readline()):
        assert line, f"{words} never came"


def test_a_node_whose_ray_dies_fails_and_the_first_one_waits_to_be_ended(folder: Path) -> None:
    nodes = Nodes(folder, count=2)
    head = nodes.start(0, "import time; print('driving', flush=True); time.sleep(300)")
    other = nodes.start(1)
    await_line(head, "driving")
    kill_ray_of(nodes, 1)
    said, _ = other.communicate(timeout=120)
    assert other.returncode == 1
    assert "clusterkit: Ray has ended on node-1:" in said
    await_line(head, "the job cannot go on without node-1")
    assert head.poll() is None
    head.terminate()
    assert head.wait(120) == 143
    assert nodes.left() == []


def test_an_elastic_job_goes_on_without_a_lost_node(folder: Path) -> None:
    nodes = Nodes(folder, count=3, least=2)
    code = (
        "import os, time\nprint('driving', flush=True)\n"
        f"while not os.path.exists('{folder}/go'): time.sleep(0.1)"
    )
    head, *_ = (nodes.start(rank, code) for rank in range(3))
    await_line(head, "driving")
    kill_ray_of(nodes, 2)
    await_line(head, "lost node-2")
    await_line(head, "Ray on 2 nodes: node-0 node-1")
    (folder / "go").touch()
    assert [nodes.started[rank].wait(30) for rank in range(3)] == [0, 0, 1]
    rounds = [json.loads(line)["nodes"] for line in (folder / "rounds").read_text().splitlines()]
    assert rounds == [["node-0", "node-1", "node-2"], ["node-0", "node-1"]]
    assert nodes.left() == []


def test_the_node_of_the_rank_that_failed_is_the_one_that_fails(folder: Path) -> None:
    nodes = Nodes(folder, count=3)
    told = json.dumps({"node": "node-2", "rank": 5, "exit_code": 1})
    code = f"import os; open(os.environ['CK_FAILURE'], 'w').write('{told}'); raise SystemExit(1)"
    for rank in range(3):
        nodes.start(rank, code)
    assert [nodes.started[rank].wait(60) for rank in range(3)] == [1, 0, 1]


def test_a_node_without_ray_says_how_to_install_it(tmp_path: Path) -> None:
    shutil.copy(peers.__file__, tmp_path / PEERS)
    found = f"{LAUNCH.parent}:{RANKS}:{tmp_path}"
    bare = {"PATH": os.environ["PATH"], "CK_NODE_NAME": "n3", "PYTHONPATH": found}
    words = [sys.executable, str(LAUNCH), "--min-nodes=1", "true"]
    done = subprocess.run(words, env=bare, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"no Ray on n3: {sys.executable} -m pip install 'ray[train]'" in done.stderr


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Give the part of the launcher that decides how Ray is started, on the only node of a job."""
    monkeypatch.syspath_prepend(RANKS)
    module = load(LAUNCH.with_name("clusterkit_ray.py"))
    environment = {
        "CK_NODES": "a", "CK_NNODES": "1", "CK_NODE_RANK": "0", "CK_NODE_NAME": "a",
        "CK_HEAD_ADDR": "localhost", "CK_PORT": "21000", "CK_TMP": str(tmp_path),
        "CK_TOKEN": "a secret of the job",
    }  # fmt: skip
    monkeypatch.delenv("SLURM_MEM_PER_NODE", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return module


@pytest.mark.parametrize(
    ("variables", "address"),
    [
        ({}, "127.0.0.2"),
        ({"CK_HEAD_ADDR": "10.77.0.1"}, "10.77.0.1"),
        ({"CK_NODE_ADDR": "127.0.0.3", "CK_NODE_RANK": "2"}, "127.0.0.4"),
    ],
)
def test_no_node_has_an_address_that_ray_would_replace(
    local: Any, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], address: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert local.own_address() == address


def test_a_small_shared_memory_is_not_filled(
    local: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    size = SimpleNamespace(f_bavail=64 << 8, f_frsize=4096)
    monkeypatch.setattr(local.os, "statvfs", lambda _: size)
    wanted = [f"--object-store-memory={256 << 20}", f"--plasma-directory={tmp_path}"]
    assert local.memory_words(tmp_path) == wanted
    assert "/dev/shm of a has room for 51 MiB" in capsys.readouterr().out


def test_objects_take_a_share_of_the_memory_that_slurm_gave(
    local: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        local.os, "statvfs", lambda _: SimpleNamespace(f_bavail=1 << 30, f_frsize=4096)
    )
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "2000")
    assert local.memory_words(tmp_path) == [f"--object-store-memory={int(0.3 * (2000 << 20))}"]
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "100")
    assert local.memory_words(tmp_path) == [f"--object-store-memory={256 << 20}"]


@pytest.mark.parametrize(
    ("cgroup", "limit"),
    [
        ("0::/system.slice/n1_slurmstepd.scope{task}", "{job}/memory.max"),
        ("4:memory:/slurm/uid_0{task}", "memory{job}/memory.limit_in_bytes"),
    ],
)
def test_slurm_limits_the_memory_of_a_job_above_its_tasks(
    local: Any, tmp_path: Path, cgroup: str, limit: str
) -> None:
    """The groups of task/cgroup in Slurm 22.05 and later, version 1 and 2 (cgroups.html)."""
    within = cgroup.rpartition(":")[2].replace("{task}", "/job_5")
    files = {
        "proc/meminfo": "MemAvailable: 4000 kB\n",
        "proc/self/cgroup": cgroup.format(task="/job_5/step_0/user/task_0") + "\n",
        f"sys/fs/cgroup/{limit.format(job=within).lstrip('/')}": "1000000\n",
        f"sys/fs/cgroup{within}/step_0/user/task_0/memory.max": "max\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert local.memory_bytes(tmp_path) == 1_000_000


SLOW = """
import clusterkit_ray

clusterkit_ray.HASTY_S = 0
ray = clusterkit_ray.Ray([])
ray.process.wait(30)
said = ray.last_lines[0]
print(said, ray.ended(), ray.up.wait(30), flush=True)
ray.process.kill()
ray.process.wait(30)
print(ray.ended(), flush=True)
ray.end()
"""


def test_a_ray_that_was_too_slow_to_start_is_started_again(folder: Path) -> None:
    nodes = Nodes(folder, count=1)
    player = folder / "ray" / "scripts" / "scripts.py"
    first = f"import os, sys\nif not os.path.exists('{folder}/started'):\n"
    fails = f"    open('{folder}/started', 'w').close(); sys.exit('no agent')\n"
    player.write_text(first + fails + player.read_text())
    words = [sys.executable, "-c", SLOW]
    environment = nodes.environment(0)
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [
        "clusterkit: Ray is slow to start on node-0",
        "no agent False True",
        "True",
    ]
    assert nodes.left() == []


def test_ray_has_a_token_that_does_not_tell_that_of_the_job(
    local: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = local.variables()
    assert found["RAY_AUTH_MODE"] == "token"
    assert len(found["RAY_AUTH_TOKEN"]) == 64
    assert "secret" not in found["RAY_AUTH_TOKEN"]
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert "RAY_AUTH_TOKEN" not in local.variables()


def test_a_ray_without_tokens_is_not_passed_over_in_silence(folder: Path) -> None:
    nodes = Nodes(folder, count=1)
    (folder / "ray" / "_private" / "authentication").rmdir()
    said, _ = nodes.start(0).communicate(timeout=60)
    assert f"this Ray knows no tokens: whoever reaches its ports (from {nodes.port} on" in said


def command(**changes: object) -> NodeCommand:
    values = {"script": "x.py", "nodes": 2, "slots": (2, 1), "processes": 3, **changes}
    return load_framework("ray").command(LaunchInputs(**values))


def test_options_reach_ray_itself() -> None:
    argv = command(options={"num-cpus": "16", "start-timeout": "60"}).argv
    assert {"--ray=--num-cpus=16", "--start-timeout=60", "--min-nodes=2"} <= set(argv)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"options": {"num-cpu": "1"}}, "ray.num-cpu is not an option of a job"),
        ({"options": {"port": "6379"}}, "ray.port is not an option of a job"),
        ({"options": {"start-timeout": "5m"}}, "'5m' is not a number of seconds"),
        ({"processes": 2}, "the script itself says how many processes"),
    ],
)
def test_what_it_refuses(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        command(**changes)
