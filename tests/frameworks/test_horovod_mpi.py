"""A Horovod built on the Open MPI of Debian, on the practice cluster: under mpirun and srun."""

from __future__ import annotations

import re

import pytest

from tests.frameworks.environment import desk_of, left, python_of
from tests.frameworks.test_strategies import ADASUM, learns_though_killed
from tests.helpers.desk import ROOT, Desk
from tests.helpers.healthy import assert_healthy
from tests.helpers.lab_jobs import await_true
from tests.lab.lab import Lab
from tests.lab.test_training import losses

pytestmark = [pytest.mark.frameworks, pytest.mark.lab, pytest.mark.timeout(1200)]

TRAINING = str(ROOT / "examples" / "train_horovod.py")
SITE = """\
  site:
    kind: slurm
    partition: gpu
    gpus_per_node: 2
    time: "10"
    python: {python}
    run_dir: runs
    horovod_controller: mpi
"""
PMIX = ("--env", "SLURM_PMIX_TMPDIR=/run")
"""Where the hosts of the practice cluster do not share what PMIx creates: /tmp is one for all."""

ASKING = """
import os, runpy, sys
import horovod.torch as hvd

hvd.init()
told = {"rank": hvd.rank(), "size": hvd.size(), "node": os.environ["CK_NODE_NAME"]}
told |= {"mpi": (hvd.mpi_built(), hvd.mpi_enabled())}
os.write(1, f"{told}\\n".encode())  # at once: other ranks write to the same log
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def desk(lab: Lab, request: pytest.FixtureRequest) -> Desk:
    desk = desk_of(lab, re.sub(r"\W+", "-", request.node.nodeid), "horovod-mpi")
    with (desk.folder / "clusterkit.yaml").open("a") as config:
        config.write(SITE.format(python=python_of("horovod-mpi")))
    return desk


@pytest.mark.parametrize(
    "flags",
    [
        ("--cluster", "rack", "--framework", "mpi"),
        ("--cluster", "lab", "--framework", "mpi"),
        ("--cluster", "lab", "--framework", "mpi", "--set", "mpi.launcher=srun", *PMIX),
        ("--cluster", "site", "--framework", "horovod", *PMIX),
    ],
    ids=["ssh", "slurm", "srun", "controller"],
)
def test_ranks_train_over_mpi(flags: tuple[str, ...], desk: Desk) -> None:
    asking = desk.write("asking.py", ASKING)
    words = (*flags, "--wait", "--nodes", "2", "--gpus-per-node", "2")
    done = desk.submit(*words, asking, TRAINING, "--steps", "20")
    output = desk.clusterkit("logs", done["job_id"]).stdout
    assert done["state"] == "succeeded", output
    for rank in range(4):
        told = {"rank": rank, "size": 4, "node": f"n{rank // 2 + 1}", "mpi": (True, True)}
        assert f"{told}\n" in output
    assert output.count("start: framework horovod, world size 4") == 1
    first, last = losses(output)
    assert last < 0.9 * first
    assert_healthy(done["run_dir"])
    await_true(lambda: not left(desk, done["run_dir"]))


@pytest.mark.parametrize("cluster", ["lab", "rack"])
def test_adasum_learns_and_resumes(cluster: str, desk: Desk) -> None:
    framework, script, *args = ADASUM
    learns_though_killed(desk, ("--framework", framework, "--cluster", cluster), "2", script, *args)
