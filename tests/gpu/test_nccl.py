"""NCCL on one GPU: alone, as two ranks that share it, and what it writes for readers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.machine import asked, cause, clusterkit, out, submit

pytestmark = pytest.mark.gpu

_TALKS = {
    "CUDA_VISIBLE_DEVICES": "0",
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV,GRAPH,TUNING",
}


def test_what_nccl_and_its_recorder_say_by_themselves_is_no_alarm(tmp_path: Path) -> None:
    desk = tmp_path / "nccl"
    desk.mkdir()
    dump = out("flight-recorder-rank-0")
    done = submit("nccl.py", dump, cwd=desk, env=_TALKS)
    assert done.returncode == 0, done.stdout + done.stderr
    said = clusterkit("logs", "latest", cwd=desk).stdout
    out("nccl-info.log").write_text(said)
    assert "NCCL INFO" in said
    assert cause(desk) is None
    assert asked("status", "latest", cwd=desk)["nccl_network"]["name"]
    recorded = asked("diagnose", dump, cwd=desk)
    assert (recorded["files"], recorded["found"], recorded["notes"]) == (1, False, [])


def test_two_ranks_on_one_gpu_are_refused_or_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    desk = tmp_path / "shared-gpu"
    desk.mkdir()
    done = submit("nccl.py", "-", cwd=desk, slots=2)
    assert done.returncode in {1, 2}, done.stdout + done.stderr
    if done.returncode == 1:
        assert cause(desk) == "gpu-ordinal"


def test_bench_says_that_one_gpu_has_nobody_to_talk_to(tmp_path: Path) -> None:
    words = ("bench", "collectives", "--cluster", "local", "--gpus-per-node", 1)
    done = clusterkit(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert "--gpus-per-node 2" in done.stderr
