"""`clusterkit bench allreduce` on this machine: jobs of two and three ranks over gloo."""

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


def start_bench(folder: Path, *words: str) -> subprocess.Popen[str]:
    (folder / "clusterkit.yaml").write_text(
        f"clusters:\n  here: {{kind: local, run_dir: {folder}/runs, python: {sys.executable}}}\n"
    )
    return subprocess.Popen(
        [sys.executable, "-m", "clusterkit", "bench", "allreduce", "--cluster", "here", "--json",
         *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def bench(folder: Path, *words: str) -> tuple[int, dict[str, Any], str]:
    """Run the verb with --json; return its exit code, document and messages."""
    with start_bench(folder, *words) as client:
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
    factors = {"all_reduce": 4 / 3, "all_gather": 2 / 3, "reduce_scatter": 2 / 3}
    measured = {(one["op"], one["bytes"]): one for one in document["measured"]}
    # Gathers have a multiple of three elements.
    assert [size for op, size in measured if op == "all_reduce"] == [65536, 131072, 262144]
    assert [size for op, size in measured if op == "all_gather"] == [65532, 131064, 262140]
    assert len(measured) == 9
    for (op, size), one in measured.items():
        rate = size / one["seconds"] / 1e9
        assert one["algbw_gbs"] == pytest.approx(rate)
        assert one["busbw_gbs"] == pytest.approx(rate * factors[op])
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
    monkeypatch.setattr(sys, "argv", ["clusterkit", "bench", "allreduce", *words])

    def interrupted(*words: Any, **more: Any) -> None:
        function(*words, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(where, interrupted)
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 130
    (run,) = list_runs([tmp_path / "runs"])
    assert load_job(run).status.state is JobState.CANCELLED


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_session_that_is_lost_leaves_no_job(tmp_path: Path, number: signal.Signals) -> None:
    words = ("--gpus-per-node", "2", "--sizes", "64M", "--iters", "100000", "--seconds", "600")
    with start_bench(tmp_path, *words) as client:
        await_true(lambda: any(map(_runs, list_runs([tmp_path / "runs"]))))
        client.send_signal(number)
        client.communicate(timeout=120)
    assert client.returncode == 130
    (run,) = list_runs([tmp_path / "runs"])
    assert load_job(run).status.state is JobState.CANCELLED


def _runs(run: RunFolder) -> bool:
    return run.submission.exists() and load_job(run).status.state is JobState.RUNNING
