"""Another user of the machine at the ports by which the nodes of a torchrun job find each other."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clusterkit.core.errors import UserError
from clusterkit.core.model import ClusterKind, ClusterSpec
from clusterkit.launch.options import JobSpec
from clusterkit.launch.plan import make_plan
from clusterkit.launch.render import render
from tests.helpers.port_ranges import next_range

as_root = pytest.mark.needs("root")

TRAIN = """
import time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 1))
for step in range(15):
    model(torch.ones(1, 4)).sum().backward()
    time.sleep(0.1)
print("trained on", dist.get_world_size(), flush=True)
"""

STRANGER = """
import os, pickle, sys, time
from base64 import b64encode
from datetime import timedelta
from torch.distributed import TCPStore

canary, port = sys.argv[1], int(sys.argv[2])
os.setgroups([]); os.setgid(64001); os.setuid(64001)

class Canary:
    def __reduce__(self):
        return os.system, (f"id -u >>{canary}",)

POISON = b64encode(pickle.dumps(Canary())).decode()
guesses = [f"torch.rendezvous.{job}-{attempt}" for job in ("0", "none") for attempt in range(3)]
print("here", flush=True)
while True:
    try:
        store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=1),
                         wait_for_workers=False)
        print("in", flush=True)
        while True:
            keys = [key for key in store.list_keys() if "torch.rendezvous" in key]
            for key in (*guesses, *keys):
                store.set(key, POISON)
            time.sleep(0.2)
    except Exception:
        time.sleep(0.05)
"""


class Job:
    """A job on this machine, in a folder and with ports of its own."""

    def __init__(self, folder: Path, nodes: str, ports: tuple[int, int]) -> None:
        first = ports[0]
        group = f"{first}-{first + 9}"  # one alone, so that the job has these
        cluster = f"{{kind: local, run_dir: runs, port_range: {group}}}"
        (folder / "clusterkit.yaml").write_text(f"clusters: {{here: {cluster}}}\n")
        (folder / "train.py").write_text(TRAIN)
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "clusterkit", "submit", "--cluster", "here"),
                *("--framework", "torchrun", "--nodes", nodes, "--preflight", "off", "--follow"),
                "train.py",
            ],
            cwd=folder,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def end(self) -> str:
        try:
            return self.process.communicate(timeout=120)[0]
        finally:
            self.process.kill()


@contextmanager
def stranger(canary: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", STRANGER, str(canary), str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        yield process
    finally:
        process.kill()


def listens_at(port: int) -> set[str]:
    """Return the addresses, as the kernel writes them, at which somebody listens on this port."""
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path("/proc/net", name).read_text().splitlines()[1:]
    ]
    locals_ = (words[1].split(":") for words in lines if words[3] == "0A")
    return {address for address, number in locals_ if int(number, 16) == port}


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Path]:
    """Where a stranger's program can write, if the victim runs it."""
    path = Path("/tmp", f"ck-canary-{os.getpid()}-{tmp_path.name}")
    yield path
    path.unlink(missing_ok=True)


@as_root
@pytest.mark.train
def test_what_a_stranger_writes_for_an_elastic_job_is_never_loaded(
    tmp_path: Path, canary: Path
) -> None:
    """torch's own rendezvous loads a pickle from a store to which anybody may write."""
    port, _ = ports = next_range()
    with stranger(canary, port) as process:
        job = Job(tmp_path, "2:3", ports)
        output = job.end()
        process.kill()
        assert process.communicate()[0] == ""  # it was never let in
    assert job.process.returncode == 0, output
    assert "trained on 2" in output
    assert not canary.exists()


@as_root
@pytest.mark.train
def test_a_store_that_cannot_be_closed_listens_on_one_address_and_nothing_of_it_is_loaded(
    tmp_path: Path, canary: Path
) -> None:
    port, _ = ports = next_range()
    with stranger(canary, port) as process:
        job = Job(tmp_path, "2", ports)
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        assert listens_at(port) == {"0100007F"}  # 127.0.0.1
        output = job.end()
    assert job.process.returncode == 0, output
    assert "trained on 2" in output
    assert not canary.exists()


SLURM = ClusterSpec(name="a100", kind=ClusterKind.SLURM, gpus_per_node=2)


@pytest.mark.parametrize(
    ("framework", "option"),
    [
        ("torchrun", "rdzv-backend"),
        ("torchrun", "rdzv_backend"),
        ("torchrun", "standalone"),
        ("accelerate", "rdzv_backend"),
        ("deepspeed", "elastic_training"),
    ],
)
def test_torchs_own_elastic_rendezvous_is_refused(framework: str, option: str) -> None:
    job = JobSpec(framework=framework, script="train.py", nodes=2, launcher_options={option: ""})
    with pytest.raises(UserError, match=f"{framework}.{option} is decided"):
        make_plan(job, SLURM, workdir="/w")


def test_by_hand_an_elastic_job_asks_for_a_token(tmp_path: Path) -> None:
    job = JobSpec(framework="torchrun", script="train.py", nodes=2, max_nodes=3)
    files = {file.name: file.text for file in render(make_plan(job, SLURM, workdir="/tmp"))}
    (tmp_path / "node.sh").write_text(files["node.sh"])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CK_")}
    done = subprocess.run(
        ["bash", str(tmp_path / "node.sh")],
        env={**environment, "CK_NODES": "127.0.0.1 127.0.0.2", "CK_NODE_RANK": "0"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "CK_TOKEN is not set" in done.stderr
