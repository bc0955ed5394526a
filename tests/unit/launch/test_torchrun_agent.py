"""What torchrun, as the nodes of a job start it, leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterkit.core import peers
from clusterkit.core.data import data_dir
from tests.helpers.command_line import typed_in
from tests.helpers.loading import load

pytestmark = pytest.mark.train


@pytest.mark.parametrize(
    ("framework", "wish", "left"),
    [
        ("torchrun", (), []),
        ("torchrun", ("--env", "PET_TEE=3"), ["stderr.log", "stdout.log"]),
        ("torchrun", ("--env", "PET_STANDALONE=1"), []),
        ("accelerate", (), []),
    ],
)
def test_a_job_leaves_only_what_is_asked_for(
    tmp_path: Path, framework: str, wish: tuple[str, ...], left: list[str]
) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "clusterkit.yaml").write_text("clusters: {here: {kind: local, run_dir: runs}}\n")
    (tmp_path / "train.py").write_text("print('hello')\n")
    words = ("submit", "--cluster", "here", "--framework", framework, "--wait", *wish, "train.py")
    done = typed_in(tmp_path, *words, TMPDIR=str(tmp_path / "tmp"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.name for path in (tmp_path / "tmp").rglob("*.log")) == left
    (log,) = tmp_path.glob("runs/*/logs/node-0.log")
    gives_way = "PET_STANDALONE gives way to the job's own rendezvous"
    assert ("PET_STANDALONE=1" in wish) == (gives_way in log.read_text())
    assert left or not list((tmp_path / "tmp").iterdir())


ENDS = """
import os, pathlib, sys, time
if os.environ["RANK"] == "1":
    pathlib.Path("pid.new").write_text(str(os.getpid()))
    sys.exit(os.rename("pid.new", "pid"))
while not os.path.exists("pid"):
    time.sleep(0.1)
while os.path.exists(f"/proc/{pathlib.Path('pid').read_text()}"):
    time.sleep(0.1)  # until its launcher has noticed
time.sleep(2)  # in which the launcher says so
sys.exit(1)
"""


@pytest.mark.parametrize("framework", ["env", "torchrun", "accelerate", "mpi", "deepspeed"])
def test_a_rank_that_ended_well_before_the_one_that_failed_is_named(
    tmp_path: Path, framework: str
) -> None:
    (tmp_path / "clusterkit.yaml").write_text("clusters: {here: {kind: local, run_dir: runs}}\n")
    (tmp_path / "train.py").write_text(ENDS)
    words = ("--framework", framework, "--gpus-per-node", "2", "--wait", "train.py")
    done = typed_in(tmp_path, "submit", "--cluster", "here", *words)
    told = "rank 0 exited with 1; before it, rank 1 on node-0 had ended with exit code 0"
    assert done.returncode == 1, done.stderr
    assert told in done.stdout + done.stderr


HANGS = """
import os, time
from datetime import timedelta
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

rank, other = int(os.environ["RANK"]), 1 - int(os.environ["RANK"])

def wait(name):
    while not os.path.exists(name):
        time.sleep(0.1)

open(f"imported-{rank}", "w").close()
wait(f"imported-{other}")
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
dist.distributed_c10d._set_pg_timeout(timedelta(seconds=3))  # they have met
try:
    wait("dumped-0") if rank else dist.all_reduce(torch.ones(2, 3))
finally:
    with open(f"{os.environ['TORCH_FR_DUMP_TEMP_FILE']}{rank}", "wb") as file:
        file.write(_dump_fr_trace())
    open(f"dumped-{rank}", "w").close()
    wait(f"dumped-{other}")  # torchrun ends the other with the first that fails
time.sleep(300)
"""


def test_of_a_job_that_hung_the_rank_that_stayed_away_is_named(tmp_path: Path) -> None:
    (tmp_path / "clusterkit.yaml").write_text("clusters: {here: {kind: local, run_dir: runs}}\n")
    (tmp_path / "train.py").write_text(HANGS)
    words = ("--framework", "torchrun", "--gpus-per-node", "2", "--wait", "train.py")
    done = typed_in(tmp_path, "submit", "--cluster", "here", *words)
    assert done.returncode == 1, done.stderr
    found = json.loads(typed_in(tmp_path, "diagnose", "latest", "--json").stdout)
    assert found["cause"]["title"] == "rank 1 did not come to a collective (all_reduce)"
    assert f"rank 0 waits at {tmp_path}/train.py:" in found["cause"]["says"]


def test_recorders_before_torch_2_8_are_asked_by_their_old_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(data_dir("templates/programs/ranks"))
    agent = load(data_dir("templates/frameworks/torchrun") / "agent.py")
    monkeypatch.setattr(os, "environ", {"TORCH_FR_BUFFER_SIZE": "9"})
    agent.ask_older_recorders()
    assert list(os.environ) == ["TORCH_FR_BUFFER_SIZE"]
    monkeypatch.setattr(agent.torch, "__version__", type(agent.torch.__version__)("2.7.1+cu126"))
    agent.ask_older_recorders()
    assert os.environ["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "9"
    assert "TORCH_NCCL_DEBUG_INFO_TEMP_FILE" not in os.environ


IMPORTS = """
import gc, sys
from contextlib import suppress
from importlib.machinery import ModuleSpec
from unittest.mock import MagicMock

class Torch:
    looks = []
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] == "torch" else None
    def create_module(self, spec):
        self.looks.append(gc.isenabled())
        return MagicMock(__path__=[])
    def exec_module(self, module):
        pass

sys.meta_path.insert(0, Torch())
names, sys.argv[1:] = sys.argv[1:], []
for name in names:
    with suppress(TypeError):  # of one that begins at once, and misses its arguments
        __import__(name)
print(any(Torch.looks), len(Torch.looks) > 1, gc.isenabled())
"""


@pytest.mark.parametrize(
    "programs",
    [
        ["agent"],
        ["torchrun_elastic", "agent"],
        ["allreduce_rank"],
        ["clusterkit_collectives"],
        ["clusterkit_compute"],
    ],
)
def test_no_garbage_is_looked_for_while_torch_is_imported(
    tmp_path: Path, programs: list[str]
) -> None:
    (tmp_path / "clusterkit_peers.py").symlink_to(peers.__file__)
    folder = data_dir("templates/programs")
    names = ("ranks", "preflight", "collectives", "compute")
    places = [data_dir("templates/frameworks/torchrun"), *(folder / name for name in names)]
    path = ":".join(map(str, [*places, tmp_path]))
    argv = [sys.executable, "-c", IMPORTS, *programs]
    done = subprocess.run(
        argv, env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "True", "True"], done.stderr


@pytest.mark.parametrize("name", ["agent.py", "torchrun_elastic.py"])
def test_where_torch_is_missing_the_agent_says_so_without_a_traceback(
    name: str, tmp_path: Path
) -> None:
    templates = data_dir("templates")
    agent = templates / "frameworks" / "torchrun" / name
    (tmp_path / "clusterkit_peers.py").write_text(Path(peers.__file__).read_text())
    ranks = templates / "programs" / "ranks"
    path = os.pathsep.join(map(str, (ranks, agent.parent, tmp_path)))
    done = subprocess.run(
        [sys.executable, "-S", agent],  # no packages but those of Python itself
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "ModuleNotFoundError: No module named 'torch'\n"
