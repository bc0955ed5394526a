"""Scripts for one framework that another one is to start: warned of where that is certain."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from clusterkit.cli.frame.job_options import flags_behind
from clusterkit.launch.scripts.kinds import script_warnings
from clusterkit.launch.scripts.reading import read_script
from tests.helpers.paths import ROOT
from tests.helpers.plans import make_cluster, make_plan

EXAMPLES = sorted((ROOT / "examples").glob("train_*.py"))

HOROVOD = "import horovod.torch as hvd\n\ndef main():\n    hvd.init()\n\nmain()\n"
TENSORFLOW = "import tensorflow as tf\n\nstrategy = tf.distribute.MultiWorkerMirroredStrategy()\n"
RAY = "import ray\nfrom ray.train.torch import TorchTrainer\n\nTorchTrainer(print).fit()\n"
SPARK = "from pyspark.sql import SparkSession\n\nSparkSession.builder.appName('x').getOrCreate()\n"
MPI4PY = "from mpi4py import MPI\n\ncomm = MPI.COMM_WORLD\nrank = comm.Get_rank()\n"
JAX = "import jax\n\nif __name__ == '__main__':\n    jax.distributed.initialize()\n"
TORCH = "import torch.distributed as dist\n\ndist.init_process_group('gloo')\n"


def warned(folder: Path, text: str, framework: str, **plan: Any) -> list[str]:
    (folder / "train.py").write_text(text, encoding="utf-8")
    values = {"framework": framework, "workdir": str(folder), **plan}
    return [str(problem) for problem in script_warnings(make_plan(make_cluster(folder), **values))]


@pytest.mark.parametrize(
    ("text", "started_by", "better", "line"),
    [
        (HOROVOD, "torchrun", "horovod", "train.py:4\n4 | hvd.init()"),
        (HOROVOD, "env", "horovod", "find each other"),
        (HOROVOD.replace("horovod.torch", "horovod.tensorflow.keras"), "accelerate", "horovod", ""),
        (TENSORFLOW, "torchrun", "tensorflow", "TF_CONFIG"),
        (TENSORFLOW.replace("distribute.", "distribute.experimental."), "env", "tensorflow", ""),
        (RAY, "torchrun", "ray", "train.py:4"),
        ("import ray\nray.init(num_cpus=2)\n", "env", "ray", "a Ray of its own"),
        (SPARK, "torchrun", "spark", "a Spark of its own"),
        (MPI4PY, "torchrun", "mpi", "train.py:4"),
        ("from mpi4py import MPI\nprint(MPI.COMM_WORLD.rank)\n", "env", "mpi", "train.py:2"),
        (JAX, "torchrun", "env", "4 | jax.distributed.initialize()"),
        (TORCH, "horovod", "torchrun", "no RANK and no MASTER_ADDR"),
        (TORCH, "ray", "torchrun", "3 | dist.init_process_group('gloo')"),
    ],
)
def test_a_script_for_another_framework(
    tmp_path: Path, text: str, started_by: str, better: str, line: str
) -> None:
    (said,) = warned(tmp_path, text, started_by)
    assert f"and {started_by} is to start it" in said
    assert line in said
    assert said.endswith(f"hint: --framework {better}")
    assert max(map(len, said.splitlines())) <= 80 - len("warning: ")


@pytest.mark.parametrize(
    ("text", "framework"),
    [
        (HOROVOD, "horovod"),
        (HOROVOD, "mpi"),
        (HOROVOD, "spark"),  # horovod.spark.run starts the function
        (HOROVOD, "somebodys-own"),
        (TENSORFLOW, "tensorflow"),
        (TENSORFLOW, "spark"),
        (RAY, "ray"),
        (SPARK, "spark"),
        (SPARK, "ray"),  # raydp
        (MPI4PY, "mpi"),
        (JAX, "env"),
        (TORCH, "torchrun"),
        (TORCH, "env"),
        ("import deepspeed\ndeepspeed.initialize(model=None)\n", "torchrun"),
        ("import tensorflow as tf\nimport torch\ntf.io.gfile.exists('x')\n", "torchrun"),
        ("import horovod.torch\n", "torchrun"),
        # scripts that know several frameworks
        ("import sys\nimport horovod.torch as hvd\nif sys.argv[1:]:\n    hvd.init()\n", "env"),
        ("try:\n    import horovod.torch as hvd\nexcept ImportError:\n    hvd = None\nhvd.init()\n",
         "torchrun"),
        (HOROVOD.replace("    hvd", "    if not wanted():\n        return\n    hvd"), "torchrun"),
        (HOROVOD.replace("hvd.init()", "wanted() and hvd.init()"), "torchrun"),
        (HOROVOD + "if other:\n    dist.init_process_group()\n", "torchrun"),
        ("import os, ray\nif os.environ['RANK'] == '0':\n    ray.init()\n", "torchrun"),
        ("import os\nos.environ['TF_CONFIG'] = '{}'\n" + TENSORFLOW, "torchrun"),
        (TENSORFLOW.replace("Strategy()", "Strategy(cluster_resolver=r)"), "env"),
        (JAX.replace("()\n", "(coordinator_address='n1:1', num_processes=2)\n"), "torchrun"),
        ("import horovod.torch as hvd\n" + TORCH, "horovod"),
        ("def f():\n    import ray\n" + TORCH, "ray"),
        (TORCH.replace("'gloo'", "'gloo', rank=0, init_method='file:///x'"), "horovod"),
        # no script of this Python's
        ("print 'hello'\n", "torchrun"),
        ("import horovod.torch as hvd\0\n", "torchrun"),
        ("", "torchrun"),
    ],
)  # fmt: skip
def test_no_word_where_it_is_not_certain(tmp_path: Path, text: str, framework: str) -> None:
    assert warned(tmp_path, text, framework) == []


def test_one_process_has_nobody_to_find(tmp_path: Path) -> None:
    assert warned(tmp_path, HOROVOD, "torchrun", nodes=1) == []


def test_the_environment_of_the_job_counts(tmp_path: Path) -> None:
    assert warned(tmp_path, TENSORFLOW, "env", env={"TF_CONFIG": "{}"}) == []


def test_a_script_that_is_not_here_or_no_text(tmp_path: Path) -> None:
    plan = make_plan(make_cluster(tmp_path), workdir=str(tmp_path), script="elsewhere.py")
    assert script_warnings(plan) == ()
    (tmp_path / "elsewhere.py").write_bytes(b"\xff\xfe\x00")
    assert script_warnings(plan) == ()
    (tmp_path / "elsewhere.py").write_text("(" * 5000)
    assert script_warnings(plan) == ()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: str(path.stem))
def test_our_examples_fit_the_framework_that_they_name(example: Path) -> None:
    text = example.read_text()
    framework = re.search(r"--framework (\w+)", text)
    assert framework, "an example says how it is started"
    plan = make_plan(
        make_cluster(example.parent),
        framework=framework[1],
        workdir=str(example.parent),
        script=example.name,
    )
    assert script_warnings(plan) == ()


def test_full_names_are_found_through_aliases() -> None:
    script = read_script(
        "import a.b\nimport c.d as e\nfrom f import g as h\nx = a.b.y\n"
        "with e.run(z=1):\n    h(1)\nx.w()\nlocal()\nclass K:\n    a.b.no()\n"
    )
    assert [(use.name, use.line, sorted(use.given)) for use in script.uses if use.called] == [
        ("c.d.run", 5, ["z"]),
        ("f.g", 6, ["*"]),
        ("a.b.y.w", 7, []),
    ]
    assert script.imports == {"a", "c", "f"}


@pytest.mark.parametrize(
    ("text", "args", "strayed"),
    [
        ("print()", ("--steps", "3", "--dry-run"), "--dry-run"),
        ("print()", ("--nodes=3", "--follow"), "--nodes"),
        ("print()", ("--stdout",), "--stdout"),
        ("parser.add_argument('--dry-run')", ("--dry-run",), None),
        ("class Arguments:\n    dry_run: bool", ("--dry-run",), None),
        ("print()", ("--epochs", "3"), None),
    ],
)
def test_flags_of_ours_behind_the_script(
    tmp_path: Path, text: str, args: tuple[str, ...], strayed: str | None
) -> None:
    (tmp_path / "train.py").write_text(text)
    plan = make_plan(make_cluster(tmp_path), workdir=str(tmp_path), args=args)
    assert next(iter(flags_behind(plan)), None) == strayed
