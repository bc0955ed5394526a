"""Scripts whose processes would train each by itself, or want a PyTorch that is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clusterkit.core.model import ClusterKind
from clusterkit.launch.scripts.kinds import gpu_use, script_warnings
from clusterkit.preflight import gate
from clusterkit.preflight.checks.host_python import wants_gpus
from clusterkit.transport.probe import PreflightJob
from tests.helpers.needs import module
from tests.helpers.plans import make_cluster, make_plan
from tests.unit.launch.test_script_kinds import warned

LIGHTNING = (
    "import lightning as L\n\nif __name__ == '__main__':\n    L.Trainer(max_epochs=1).fit(M())\n"
)
OLD = "from pytorch_lightning import Trainer\n\ndef main():\n    t = Trainer({})\n\nmain()\n"
ALONE = """\
import argparse
import torch
from torchvision import models

model = models.resnet18()
loss = model(torch.ones(1)).sum()
loss.backward()
"""


@pytest.mark.parametrize("framework", ["torchrun", "env", "accelerate", "mpi"])
def test_a_trainer_of_lightning_without_its_size(tmp_path: Path, framework: str) -> None:
    (said,) = warned(tmp_path, LIGHTNING, framework, nodes=2, slots=(2, 2), processes=4)
    assert "train.py calls Trainer without num_nodes and devices" in said
    assert "each process would train by itself" in said
    assert "train.py:4" in said
    assert said.endswith("Trainer(..., num_nodes=2, devices=2)")
    assert max(map(len, said.splitlines())) <= 80 - len("warning: ")


@pytest.mark.parametrize(
    ("given", "plan", "missing"),
    [
        ("devices=2", {"nodes": 2, "slots": (2, 2), "processes": 4}, "num_nodes"),
        ("gpus=2", {"nodes": 2, "slots": (2, 2), "processes": 4}, "num_nodes"),
        ("", {"nodes": 2, "slots": (1, 1), "processes": 2}, "num_nodes"),
        ("num_nodes=2, devices=2", {"nodes": 2, "slots": (2, 2), "processes": 4}, None),
        ("**settings", {"nodes": 2, "slots": (2, 2), "processes": 4}, None),
        ("plugins=[mine()]", {"nodes": 2, "slots": (2, 2), "processes": 4}, None),
        ("", {"nodes": 1, "slots": (1,), "processes": 1}, None),
    ],
)
def test_what_lightning_is_not_told(
    tmp_path: Path, given: str, plan: dict[str, Any], missing: str | None
) -> None:
    said = warned(tmp_path, OLD.format(given), "torchrun", **plan)
    assert len(said) == (missing is not None), said
    if missing is not None:
        assert f"without {missing}:" in said[0]


def test_lightning_by_horovod_has_its_size_from_there(tmp_path: Path) -> None:
    text = OLD.format("accelerator='horovod', max_epochs=2")
    assert warned(tmp_path, text, "horovod", nodes=2, processes=2) == []
    assert len(warned(tmp_path, text, "torchrun", nodes=2, processes=2)) == 1


def test_a_script_that_joins_nobody(tmp_path: Path) -> None:
    (said,) = warned(tmp_path, ALONE, "torchrun", nodes=2, processes=2)
    assert "nothing in it joins the 2 processes" in said
    assert "7 | loss.backward()" in said
    assert "init_process_group()" in said
    assert warned(tmp_path, ALONE, "torchrun", nodes=1, processes=1) == []


@pytest.mark.parametrize(
    "line",
    [
        "from mylib import everything",
        "from . import beside",
        "import deepspeed",
        "from accelerate import Accelerator",
        "rank = int(os.environ['RANK'])",
        "shard = files[int(os.environ['SLURM_PROCID'])::4]",
        "from transformers import Trainer, TrainingArguments",
        "import torch.distributed as dist",
        "from torch.nn.parallel import DistributedDataParallel",
        "importlib.import_module('x')",
    ],
)
def test_who_may_join_by_other_means_is_left_alone(tmp_path: Path, line: str) -> None:
    assert warned(tmp_path, f"{ALONE}{line}\n", "torchrun", nodes=2, processes=2) == []
    assert warned(tmp_path, ALONE.replace(".backward", ".fit"), "torchrun", processes=2) == []


SPAWNS = """\
import os
import torch.multiprocessing as mp
from torch.distributed import init_process_group

def main(rank, size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    init_process_group("gloo", rank=rank, world_size=size)

if __name__ == "__main__":
    mp.spawn(main, args=(2,), nprocs=2)
"""
SPAWN = "    mp.spawn(main, args=(2,), nprocs=2)"


@pytest.mark.parametrize("framework", ["torchrun", "env", "accelerate", "mpi"])
def test_a_script_that_starts_its_ranks_itself(tmp_path: Path, framework: str) -> None:
    text = SPAWNS.replace("localhost", "n1")
    (said,) = warned(tmp_path, text, framework, nodes=1, slots=(4,), processes=4)
    assert "train.py starts ranks itself, in each of the 4 processes" in said
    assert "mp.spawn(main" in said
    assert max(map(len, said.splitlines())) <= 80 - len("warning: ")
    assert warned(tmp_path, text, framework, nodes=1, slots=(1,), processes=1) == []
    for either in (
        f"    if os.environ.get('LOCAL_RANK') is None:\n    {SPAWN}",
        f"    if 'auto' in args:\n    {SPAWN}",
        f"    if 'LOCAL_RANK' in os.environ:\n        raise SystemExit(main(0, 2))\n{SPAWN}",
    ):
        both = text.replace(SPAWN, either)
        assert warned(tmp_path, both, framework, nodes=1, slots=(4,), processes=4) == [], either


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('os.environ["MASTER_ADDR"] = "localhost"', True),
        ("environ['MASTER_ADDR'] = '127.0.0.1'", True),
        ("dist.init_process_group('gloo', init_method='tcp://127.0.0.1:29500', rank=r)", True),
        ("dist.init_process_group('nccl', 'tcp://localhost:23456', rank=r, world_size=2)", True),
        ('os.environ.setdefault("MASTER_ADDR", "localhost")', False),
        ('if "MASTER_ADDR" not in os.environ:\n    os.environ["MASTER_ADDR"] = "localhost"', False),
        ('if args.local:\n    os.environ["MASTER_ADDR"] = "localhost"', False),
        ('os.environ["MASTER_ADDR"] = "n1"', False),
        ("dist.init_process_group('gloo', init_method='env://')", False),
        ('os.environ["OTHER"] = "localhost"', False),
        ('r = os.environ["RANK"]\nos.environ["MASTER_ADDR"] = "localhost"', False),
    ],
)  # fmt: skip
def test_a_script_whose_nodes_would_not_meet(tmp_path: Path, line: str, told: bool) -> None:
    text = f"import os\nfrom os import environ\nimport torch.distributed as dist\n{line}\n"
    said = warned(tmp_path, text, "torchrun", nodes=2, processes=2)
    assert len(said) == told
    if told:
        assert "train.py lets its processes meet on the machine of each" in said[0]
        assert f"4 | {line}" in said[0]
        assert "--nodes 1" in said[0]
    assert warned(tmp_path, text, "torchrun", nodes=1, slots=(2,), processes=2) == []


@pytest.mark.parametrize(
    ("line", "use"),
    [
        ("torch.cuda.set_device(0)", "train.py:2 calls torch.cuda.set_device()"),
        ("model.cuda()", "train.py:2 calls .cuda()"),
        ('x = torch.zeros(1).to("cuda:0")', 'train.py:2 calls torch.zeros.to("cuda:0")'),
        ("torch.distributed.init_process_group(backend='nccl')",
         'train.py:2 calls torch.distributed.init_process_group("nccl")'),
        ("torch.cuda.is_available()", None),
        ("x = model.to(device)", None),
        ("torch.distributed.init_process_group('gloo')", None),
        ("if torch.cuda.is_available():\n    torch.cuda.set_device(0)", None),
        ("torch.cuda.set_device(0) if args.cuda else None", None),
    ],
)  # fmt: skip
def test_what_no_build_for_cpus_can(tmp_path: Path, line: str, use: str | None) -> None:
    (tmp_path / "train.py").write_text(f"import torch\n{line}\n")
    plan = make_plan(make_cluster(tmp_path), workdir=str(tmp_path))
    assert gpu_use(plan) == use
    assert script_warnings(plan) == ()
    report = gate.examine(plan, full=False, on_reply=lambda _: None)
    torch = module("torch")
    if torch.version.cuda is None:
        told = [one.summary.partition(", and ") for one in report.findings]
        assert [found for what, _, found in told if "without GPU" in what] == [use] * bool(use)


@pytest.mark.parametrize(
    ("job", "verdict"),
    [
        ({"kind": "slurm"}, None),
        ({"kind": "slurm", "uses_gpus": True, "python_is_set_up": True}, "warn"),
        ({"kind": "slurm", "uses_gpus": False}, None),
        ({"kind": "slurm", "uses_gpus": False, "gpu_use": "x.py:1 calls f()"}, "warn"),
        ({"kind": "ssh"}, None),
        ({"kind": "ssh", "gpu_use": "x.py:1 calls f()"}, "warn"),
        ({"kind": "local", "uses_gpus": True}, "fail"),
    ],
)
def test_a_build_for_cpus_is_judged_by_what_the_job_wants(
    job: dict[str, Any], verdict: str | None
) -> None:
    assert wants_gpus(PreflightJob(hosts=("n1",), **job)) == verdict


def test_the_python_of_the_system_is_that_of_each_node(tmp_path: Path) -> None:
    """A login node that has no torch says nothing of nodes that have it in /usr."""
    (tmp_path / "train.py").write_text("import torch\ntorch.cuda.set_device(0)\n")
    own = tmp_path / "venv" / "bin" / "python3"
    own.parent.mkdir(parents=True)
    own.symlink_to("/bin/sh")
    for python, looked in (("/usr/bin/env", False), (str(own), True)):
        cluster = make_cluster(tmp_path, kind=ClusterKind.SLURM, python=python)
        plan = make_plan(cluster, nodes=1, workdir=str(tmp_path))
        report = gate.examine(plan, full=False, on_reply=lambda _: None)
        assert bool(report.findings) is looked
