"""`bench collectives`, `compute` and `storage` on this machine: jobs of two and three ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterkit.cli import main
from clusterkit.cli.frame.console import bold
from clusterkit.core.model import JobState
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.jobs.find import list_runs
from clusterkit.jobs.state.load import load_job
from clusterkit.jobs.submit.submit import start
from tests.helpers.desk import ROOT
from tests.helpers.lab_jobs import await_true

pytestmark = pytest.mark.train

BREAK_SUMS = """\
import os
if os.environ.get("RANK") == "1":
    import torch.distributed as dist

    right = dist.all_reduce

    def all_reduce(data, *words, **named):
        done = right(data, *words, **named)
        if len(data) > 1000:
            data[77] += 1
        return done

    dist.all_reduce = all_reduce
"""
DIE = """\
import os, sys
if os.environ.get("RANK") == "1":
    sys.exit("no such device here")
"""


FLIP_A_BIT = """\
import os
if os.environ.get("RANK") == "1":
    import torch

    right, calls = torch.matmul, []

    def matmul(left, right_side, *, out):
        right(left, right_side, out=out)
        calls.append(None)
        if len(calls) > 2:
            out.view(torch.int32)[5, 7] ^= 1 << 20

    torch.matmul = matmul
"""


def start_bench(folder: Path, *words: str, verb: str = "allreduce") -> subprocess.Popen[str]:
    (folder / "clusterkit.yaml").write_text(
        f"clusters:\n  here: {{kind: local, run_dir: {folder}/runs, python: {sys.executable}}}\n"
    )
    return subprocess.Popen(
        [sys.executable, "-m", "clusterkit", "bench", verb, "--cluster", "here", "--json",
         *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def bench(folder: Path, *words: str, verb: str = "allreduce") -> tuple[int, dict[str, Any], str]:
    """Run the verb with --json; return its exit code, document and messages."""
    with start_bench(folder, *words, verb=verb) as client:
        out, err = client.communicate(timeout=300)
    assert out, err
    return client.returncode, json.loads(out), err


def with_start(folder: Path, text: str) -> tuple[str, str]:
    """Return the flag that runs a text at the start of every Python of the job."""
    (folder / "start").mkdir()
    (folder / "start" / "sitecustomize.py").write_text(text)
    return ("--env", f"PYTHONPATH={folder}/start")


def test_three_ranks_measure_every_collective(tmp_path: Path) -> None:
    words = ("--nodes", "3", "--ops", "all", "--sizes", "64K:256K", "--iters", "4")
    code, document, err = bench(tmp_path, *words, "--interconnect", "ethernet-10")
    assert code == 0, err
    assert (document["correct"], document["complete"], document["ranks"]) == (True, True, 3)
    assert document["nodes"] == ["node-0", "node-1", "node-2"]
    whole = {"all_reduce": 4 / 3, "broadcast": 1, "sendrecv": 1}
    shared = {"all_gather": 2 / 3, "reduce_scatter": 2 / 3, "alltoall": 2 / 3}
    measured = {(one["op"], one["bytes"]): one for one in document["measured"]}
    # What ranks share has a multiple of three elements.
    assert {*measured} == {
        *((op, size) for op in whole for size in (65536, 131072, 262144)),
        *((op, size) for op in shared for size in (65532, 131064, 262140)),
    }
    for (op, size), one in measured.items():
        rate = size / one["seconds"] / 1e9
        assert one["algbw_gbs"] == pytest.approx(rate)
        assert one["busbw_gbs"] == pytest.approx(rate * {**whole, **shared}[op])
        assert one["slowest_busbw_gbs"] <= one["busbw_gbs"] <= one["fastest_busbw_gbs"]
        assert (one["repeats"], one["iterations"]) == (4, 4)
    estimate = document["expected"]["estimate"]["all_reduce"]
    assert (estimate["over"], estimate["busbw_gbs"]) == ("ethernet-10", 1.0)
    assert document["job"]["state"] == "succeeded"


def test_a_wrong_sum_is_a_failure_that_names_its_rank(tmp_path: Path) -> None:
    words = ("--gpus-per-node", "2", "--sizes", "64K", *with_start(tmp_path, BREAK_SUMS))
    code, document, err = bench(tmp_path, *words)
    assert code == 1, err
    assert (document["correct"], document["suspects"]) == (False, ["node-0"])
    (wrong,) = document["wrong"]
    assert (wrong["rank"], wrong["node"], wrong["elements"]) == (1, "node-0", 1)
    # Element 77 is 77 % 13 of each rank, and 1 + 2 for the ranks.
    assert wrong["detail"] == "element 77 is 28 and not 27"
    assert document["job"]["state"] == "failed"


def test_a_rank_that_dies_is_told_with_its_node_and_last_words(tmp_path: Path) -> None:
    words = ("--nodes", "2", "--sizes", "64K", *with_start(tmp_path, DIE))
    code, document, err = bench(tmp_path, *words)
    assert code == 1
    assert (document["measured"], document["correct"], document["complete"]) == ([], None, False)
    assert (document["job"]["failure"]["node"], document["job"]["failure"]["rank"]) == ("node-1", 1)
    assert "node-1" in err
    assert "no such device here" in err


def test_products_are_timed_and_right(tmp_path: Path) -> None:
    code, document, err = bench(tmp_path, "--nodes", "2", "--seconds", "2", verb="compute")
    assert (document["correct"], document["complete"], document["ranks"]) == (True, True, 2)
    assert document["nodes"] == ["node-0", "node-1"]
    (device,) = document["devices"]
    assert (device["device"], device["ranks"], device["peak_tflops"]) == ("cpu", 2, None)
    for one in document["gpus"]:
        assert (one["dtype"], one["size"]) == ("float32", 1024)
        assert 0 < one["slowest_tflops"] <= one["tflops"] <= one["fastest_tflops"]
        assert one["checks"] >= 2
    # Others use this machine: one of the two may well be slower.
    assert {one["kind"] for one in document["findings"]} <= {"slow"}
    assert code == bool(document["findings"]), err
    assert document["job"]["state"] == "succeeded"


def test_a_bit_that_flips_under_load_is_a_failure_that_names_its_place(tmp_path: Path) -> None:
    words = ("--gpus-per-node", "2", "--seconds", "1", *with_start(tmp_path, FLIP_A_BIT))
    code, document, err = bench(tmp_path, *words, verb="compute")
    assert code == 1, err
    assert document["correct"] is False
    first = document["findings"][0]
    assert (first["kind"], first["node"], first["gpu"]) == ("wrong", "node-0", 1)
    good, bad = document["gpus"]
    assert (good["wrong_elements"], bad["wrong_elements"]) == (0, bad["failed_checks"])
    assert 0 < bad["failed_checks"] < bad["checks"]
    assert "row 5, column 7 is " in bad["detail"]
    assert document["job"]["state"] == "succeeded"


def test_a_rank_that_dies_before_it_multiplies_is_told(tmp_path: Path) -> None:
    words = ("--nodes", "2", *with_start(tmp_path, DIE))
    code, document, err = bench(tmp_path, *words, verb="compute")
    assert code == 1
    assert (document["gpus"], document["correct"], document["complete"]) == ([], None, False)
    assert document["job"]["failure"]["node"] == "node-1"
    assert "no such device here" in err


def test_storage_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    words = ("--nodes", "2", "--gpus-per-node", "2", "--size", "8M", "--mtbf", "8h")
    (tmp_path / "data").mkdir()
    code, document, err = bench(tmp_path, *words, "--path", "data", verb="storage")
    assert (document["complete"], document["ranks"], document["size"]) == (True, 4, 8 << 20)
    for node in document["nodes"]:
        assert node["path"] == str(tmp_path / "data")
        assert node["write"] > 0 < node["read_all"]
        assert node["small_per_s"] > 0 < node["checkpoint_s"]
    assert document["interval"]["mtbf_s"] == 8 * 3600
    assert list((tmp_path / "data").iterdir()) == []
    # Others use this disk: one of the two may well be slower.
    assert {one["kind"] for one in document["findings"]} <= {"slow"}
    assert code == bool(document["findings"]), err


def test_what_time_does_not_suffice_for_is_left_out(tmp_path: Path) -> None:
    words = ("--nodes", "2", "--sizes", "64M:512M", "--seconds", "1")
    code, document, err = bench(tmp_path, *words)
    assert code == 0, err
    left_out = {one["bytes"]: one["why"] for one in document["left_out"]}
    assert 512 << 20 in left_out
    assert document["complete"] is True


@pytest.mark.parametrize(
    ("where", "function"),
    [("clusterkit.jobs.submit.submit.start", start), ("clusterkit.cli.frame.console.bold", bold)],
    ids=["handed over", "told of"],
)
def test_ctrl_c_while_the_job_is_handed_over_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, function: Callable[..., Any]
) -> None:
    (tmp_path / "clusterkit.yaml").write_text(
        f"clusters:\n  here: {{kind: local, run_dir: {tmp_path}/runs, python: {sys.executable}}}\n"
    )
    monkeypatch.chdir(tmp_path)
    words = ("--cluster", "here", "--nodes", "2", "--sizes", "64K", "--preflight", "off")
    monkeypatch.setattr(sys, "argv", ["clusterkit", "bench", "collectives", *words])

    def interrupted(*words: Any, **more: Any) -> None:
        function(*words, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(where, interrupted)
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 130
    (run,) = list_runs([tmp_path / "runs"])
    assert load_job(run).status.state is JobState.CANCELLED


@pytest.mark.parametrize(
    ("number", "verb", "words"),
    [
        (signal.SIGTERM, "allreduce", ("--sizes", "64M", "--iters", "100000")),
        (signal.SIGHUP, "allreduce", ("--sizes", "64M", "--iters", "100000")),
        (signal.SIGTERM, "compute", ()),
    ],
)
def test_a_session_that_is_lost_leaves_no_job(
    tmp_path: Path, number: signal.Signals, verb: str, words: tuple[str, ...]
) -> None:
    of_both = ("--gpus-per-node", "2", "--seconds", "600")
    with start_bench(tmp_path, *of_both, *words, verb=verb) as client:
        await_true(lambda: any(map(_runs, list_runs([tmp_path / "runs"]))))
        client.send_signal(number)
        client.communicate(timeout=120)
    assert client.returncode == 130
    (run,) = list_runs([tmp_path / "runs"])
    assert load_job(run).status.state is JobState.CANCELLED


def _runs(run: RunFolder) -> bool:
    return run.submission.exists() and load_job(run).status.state is JobState.RUNNING
