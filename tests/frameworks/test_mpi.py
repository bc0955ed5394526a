"""Open MPI and MPICH of Debian on the practice cluster: trained under, broken, cancelled."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.desk import ROOT, Desk
from tests.helpers.lab_jobs import in_time
from tests.lab.lab import Lab
from tests.lab.test_training import losses

pytestmark = [pytest.mark.frameworks, pytest.mark.lab, pytest.mark.timeout(900)]

TRAINING = str(ROOT / "examples" / "train_ddp.py")
FLAVOURS = ("openmpi", "mpich")
HERE = f"  here: {{kind: local, gpus_per_node: 2, python: {sys.executable}, run_dir: runs}}\n"
NODES = {"lab": ("--nodes", "3"), "rack": ("--nodes", "3"), "here": ("--nodes", "2")}

SUM = """
# The sum of all ranks by MPI itself, with no package for it: each hears every other one.
import ctypes, os, sys

if sys.argv[1] == "openmpi":
    mpi = ctypes.CDLL("libmpi.so.40", ctypes.RTLD_GLOBAL)
    world, integer = (
        ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, name)))
        for name in ("ompi_mpi_comm_world", "ompi_mpi_int")
    )
else:
    mpi = ctypes.CDLL("libmpich.so.12", ctypes.RTLD_GLOBAL)
    world, integer = 0x44000000, 0x4C000405
mpi.MPI_Init(None, None)
rank, size = ctypes.c_int(), int(os.environ["WORLD_SIZE"])
mpi.MPI_Comm_rank(world, ctypes.byref(rank))
assert rank.value == int(os.environ["RANK"]), (rank.value, os.environ["RANK"])
told, heard = (ctypes.c_int * size)(*[rank.value] * size), (ctypes.c_int * size)()
mpi.MPI_Alltoall(told, 1, integer, heard, 1, integer, world)
line = f"rank {rank.value} sum {sum(heard)} on {os.environ['CK_NODE_NAME']}"
os.write(1, f"{line}\\n".encode())  # at once: other ranks write to the same log
mpi.MPI_Barrier(world)
mpi.MPI_Finalize()
"""

FAILING = """
import os, sys, time
print("rank", os.environ["RANK"], "is there", flush=True)
if os.environ["RANK"] == "3":
    time.sleep(1)
    print("the disk of rank 3 is full", flush=True)
    sys.exit(7)
time.sleep(300)
"""

NOTICED = """
import os, signal, time

times = []
signal.signal(signal.SIGUSR1, lambda *_: times.append(1))
print("on", flush=True)
while not times:
    time.sleep(0.1)
time.sleep(3)
print("noticed", len(times), "times", flush=True)
"""

WAITING = "import time\nprint('on', flush=True)\ntime.sleep(300)\n"


@pytest.fixture
def desk(lab: Lab, request: pytest.FixtureRequest) -> Desk:
    desk = Desk.of(lab, re.sub(r"\W+", "-", request.node.nodeid))
    with (desk.folder / "clusterkit.yaml").open("a") as config:
        config.write(HERE)
    return desk


def submitted(desk: Desk, cluster: str, script: str, *words: str, flags: tuple[str, ...]) -> Any:
    where = ("--framework", "mpi", "--cluster", cluster, *NODES[cluster])
    return desk.submit(*where, *flags, script, *words)


def output_of(desk: Desk, job: dict[str, Any]) -> str:
    return desk.clusterkit("logs", job["job_id"]).stdout


def await_lines(desk: Desk, job: dict[str, Any], line: str, times: int) -> None:
    deadline = time.monotonic() + 300
    while output_of(desk, job).count(line) < times:
        assert time.monotonic() < deadline, output_of(desk, job)
        time.sleep(0.5)


def left(job: dict[str, Any]) -> Iterator[str]:
    """Yield the command line of each process of a job, on whatever host."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if Path(job["run_dir"]).name.encode() in (folder / "environ").read_bytes():
                yield (folder / "cmdline").read_text().replace("\0", " ")


def flavour_of(name: str) -> tuple[str, ...]:
    return ("--set", f"mpi.flavour={name}")


def ends(desk: Desk, job: dict[str, Any], flavour: str) -> bool:
    """Return whether a job ends; one of MPICH within a minute."""
    if flavour != "mpich":
        return desk.clusterkit("wait", job["job_id"]).returncode < 2
    deadline = time.monotonic() + 60
    while desk.state(job["job_id"]) not in {"succeeded", "failed"}:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True


def summed(desk: Desk, cluster: str, flavour: str, ranks: int, *flags: str) -> str:
    """Return what the ranks have said of their sum, in a job that has ended well.

    MPICH before 4.2 may hang in MPI_Finalize (docs/how-to/mpi.md), on a busy machine again and
    again: where all is said and the job does not end, another one may, and none has to.
    """
    script = desk.write("sum.py", SUM)
    for _ in range(2 if flavour == "mpich" else 1):
        job = submitted(desk, cluster, script, flavour, flags=(*flags, *flavour_of(flavour)))
        await_lines(desk, job, " sum ", ranks)
        ended = ends(desk, job, flavour)
        if ended:
            break
        desk.clusterkit("cancel", job["job_id"])
    output = output_of(desk, job)
    assert flavour == "mpich" or ended, output
    assert not ended or desk.state(job["job_id"]) == "succeeded", output
    return output


@pytest.mark.parametrize(
    ("cluster", "flavour"),
    [*product(("lab", "rack"), FLAVOURS), ("here", "openmpi")],
)
def test_torch_trains(cluster: str, flavour: str, desk: Desk) -> None:
    flags = ("--wait", "--gpus-per-node", "2" if cluster == "here" else "1", *flavour_of(flavour))
    done = submitted(desk, cluster, TRAINING, "--steps", "10", flags=flags)
    output = output_of(desk, done)
    assert (done["state"], done["exit_code"]) == ("succeeded", 0), output
    assert f"world size {4 if cluster == 'here' else 3}" in output
    first, last = losses(output)
    assert last < first


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("cluster", NODES)
def test_ranks_reach_each_other_by_mpi(cluster: str, flavour: str, desk: Desk) -> None:
    ranks = 4 if cluster == "here" else 6
    output = summed(desk, cluster, flavour, ranks, "--gpus-per-node", "2")
    node = "node-{}".format if cluster == "here" else lambda k: f"n{k + 1}"
    for rank in range(ranks):
        assert f"rank {rank} sum {sum(range(ranks))} on {node(rank // 2)}\n" in output


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_nodes_may_differ_in_slots(flavour: str, desk: Desk) -> None:
    flags = ("--gpus-per-node", "1,2,2", "--processes", "4")
    output = summed(desk, "rack", flavour, 4, *flags)
    heard = re.findall(r"rank (\d) sum 6 on (n\d)\n", output)
    assert sorted(heard) == [("0", "n1"), ("1", "n2"), ("2", "n2"), ("3", "n3")]


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("cluster", ["lab", "rack"])
def test_the_rank_that_fails_is_named_and_ends_the_job(
    cluster: str, flavour: str, desk: Desk
) -> None:
    script = desk.write("failing.py", FAILING)
    flags = ("--wait", "--gpus-per-node", "2", *flavour_of(flavour))
    done = submitted(desk, cluster, script, flags=flags)
    assert (done["state"], done["exit_code"]) == ("failed", 7), output_of(desk, done)
    told = json.loads(desk.clusterkit("status", done["job_id"], "--json").stdout)["failure"]
    assert [told[name] for name in ("node", "rank", "exit_code")] == ["n2", 3, 7]
    assert "the disk of rank 3 is full" in told["tail"]
    assert not list(left(done))


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("cluster", NODES)
def test_a_cancelled_job_leaves_nothing(cluster: str, flavour: str, desk: Desk) -> None:
    script = desk.write("waiting.py", WAITING)
    flags = ("--gpus-per-node", "2", *flavour_of(flavour))
    before = set(Path("/tmp").glob("clusterkit-*"))
    done = submitted(desk, cluster, script, flags=flags)
    ranks = 4 if cluster == "here" else 6
    await_lines(desk, done, "on\n", ranks)
    began = time.monotonic()
    assert desk.clusterkit("cancel", done["job_id"]).returncode == 0
    desk.clusterkit("wait", done["job_id"])
    assert desk.state(done["job_id"]) == "cancelled"
    assert in_time(desk.lab, time.monotonic() - began, 20)
    assert not list(left(done))
    assert not set(Path("/tmp").glob(f"clusterkit-{done['job_id']}-*")) - before


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_notice_reaches_every_rank_once_and_nothing_else(flavour: str, desk: Desk) -> None:
    script = desk.write("noticed.py", NOTICED)
    done = submitted(desk, "lab", script, flags=("--gpus-per-node", "2", *flavour_of(flavour)))
    await_lines(desk, done, "on\n", 6)
    desk.lab.run("head", ["scancel", "--signal=USR1", done["job_id"]], check=True)
    desk.clusterkit("wait", done["job_id"])
    output = output_of(desk, done)
    assert desk.state(done["job_id"]) == "succeeded", output
    assert output.count("noticed 1 times\n") == 6, output


SRUN = ("--wait", "--gpus-per-node", "2", "--set", "mpi.launcher=srun")
PMIX = ("--env", "SLURM_PMIX_TMPDIR=/run")
"""Where the hosts of the practice cluster do not share what PMIx creates: /tmp is one for all."""


def test_slurm_starts_the_ranks_of_open_mpi(desk: Desk) -> None:
    script = desk.write("sum.py", SUM)
    flags = (*SRUN, *PMIX, *flavour_of("openmpi"), "--processes", "5")
    done = submitted(desk, "lab", script, "openmpi", flags=flags)
    output = output_of(desk, done)
    assert done["state"] == "succeeded", output
    told = re.findall(r"rank (\d) sum 10 on (n\d)", output)
    assert sorted(told) == [("0", "n1"), ("1", "n1"), ("2", "n2"), ("3", "n2"), ("4", "n3")]


def test_ranks_know_who_they_are_under_pmi2(desk: Desk) -> None:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK")
    line = f"' '.join(os.environ[n] for n in {names})"
    script = desk.write("who.py", f"import os\nos.write(1, ({line} + chr(10)).encode())\n")
    flags = (*SRUN, *flavour_of("mpich"), "--processes", "5")
    done = submitted(desk, "lab", script, flags=flags)
    told = re.findall(r"^(\d \d \d \d \d)$", output_of(desk, done), re.MULTILINE)
    assert sorted(told) == ["0 0 5 2 0", "1 1 5 2 0", "2 0 5 2 1", "3 1 5 2 1", "4 0 5 1 2"]


def test_under_srun_the_rank_that_fails_is_named_too(desk: Desk) -> None:
    script = desk.write("failing.py", FAILING)
    done = submitted(desk, "lab", script, flags=(*SRUN, *PMIX))
    assert (done["state"], done["exit_code"]) == ("failed", 7), output_of(desk, done)
    told = json.loads(desk.clusterkit("status", done["job_id"], "--json").stdout)["failure"]
    assert (told["rank"], told["exit_code"]) == (3, 7)
    assert told["message"] == "on n2, started by srun"
    assert not list(left(done))
