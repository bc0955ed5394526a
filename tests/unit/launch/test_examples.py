"""The training scripts of examples/ on this machine: they resume, save ahead of an end, measure."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from clusterkit.estimate.measurement import parse_measurement
from tests.helpers.desk import ROOT

pytestmark = pytest.mark.train

SCRIPT = str(ROOT / "examples" / "train_ddp.py")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def train(*words: str, **more: str) -> subprocess.Popen[str]:
    argv = [*TORCHRUN, SCRIPT, "--log-every", "1", "--width", "32", "--layers", "1", *words]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", **more}
    return subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment, text=True)


def rank_of(pid: int) -> str:
    variables = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(v.split("=", 1) for v in variables if "=" in v).get("RANK", "")


def test_a_notice_to_one_rank_makes_all_save_and_the_next_run_goes_on_there(
    tmp_path: Path,
) -> None:
    words = ("--steps", "5000", "--checkpoint-every", "5000", "--checkpoint-dir", str(tmp_path))
    with train(*words) as first:
        assert first.stdout is not None
        seen: dict[int, str] = {}
        saved = 5000
        for line in first.stdout:
            if match := re.match(r"step (\d+) loss ([\d.]+)", line):
                seen[int(match[1])] = match[2]
            if line.startswith("step 3 "):
                children = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text()
                (rank_1,) = [pid for pid in map(int, children.split()) if rank_of(pid) == "1"]
                os.kill(rank_1, signal.SIGUSR2)
            if match := re.match(r"notice: saving after step (\d+)", line):
                saved = int(match[1])
            if max(seen, default=0) > saved + 3:
                break  # it trained on
        first.terminate()
    with train(*words[2:], "--steps", str(saved + 3)) as second:
        said = second.communicate(timeout=120)[0]
    assert second.returncode == 0
    assert f"resume: step {saved} from {tmp_path}" in said
    for step in (saved + 1, saved + 2, saved + 3):
        assert f"step {step} loss {seen[step]} " in said


def test_a_measured_run_is_what_the_estimator_reads(tmp_path: Path) -> None:
    """But for the GPU: without one, memory cannot be measured, and the file says so."""
    path = tmp_path / "step.json"
    with train("--steps", "8", "--measure", str(path)) as run:
        said = run.communicate(timeout=120)[0]
    assert run.returncode == 0
    assert re.search(r"^measure: [\d.]+ s a step, in ", said, re.MULTILINE)
    document = json.loads(path.read_text())
    assert (document["setup"]["gpu"], document["allocated_bytes"]) == (None, None)
    document["setup"]["gpu"] = "NVIDIA H100 80GB HBM3"
    measured = parse_measurement(document, source=str(path))
    assert measured.setup.model.params == document["setup"]["model"]["params"]
    assert (measured.setup.gpus, measured.setup.seq, measured.setup.micro_batch) == (2, 64, 16)
    assert measured.step_s == document["step_s"] > 0
    assert [one.ranks for one in measured.all_reduce] == [2, 2, 2, 2]


def test_too_few_steps_measure_nothing(tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    with train("--steps", "3", "--measure", str(path)) as run:
        run.communicate(timeout=120)
    assert run.returncode != 0
    assert not path.exists()


def test_a_profiled_run_leaves_a_trace_of_each_rank(tmp_path: Path) -> None:
    """What `bench scaling` points to where it knows no cause."""
    with train("--steps", "10", "--profile", str(tmp_path / "traces")) as run:
        said = run.communicate(timeout=120)[0]
    assert run.returncode == 0, said
    for rank in (0, 1):
        trace = json.loads((tmp_path / "traces" / f"rank-{rank}.json").read_text())
        names = {event.get("name") for event in trace["traceEvents"]}
        assert {"DistributedDataParallel.forward", "ProfilerStep#6"} <= names


def test_adasum_without_mpi_is_refused_also_by_a_horovod_with_nccl() -> None:
    pytest.importorskip("horovod")
    pretend = "import horovod.torch as hvd, runpy; hvd.nccl_built = lambda: 22708"
    script = str(ROOT / "examples" / "train_horovod.py")
    run = f"{pretend}; runpy.run_path({script!r}, run_name='__main__')"
    words = [sys.executable, "-c", run, "--adasum", "--steps", "1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "examples")}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2, done.stdout
    assert "--adasum needs ranks that MPI starts: horovod_controller: mpi" in done.stderr
