"""NCCL on one GPU: alone, as two ranks that share it, and what it writes for readers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.machine import cause, clusterkit, out, submit

pytestmark = pytest.mark.gpu

_TALKS = {
    "CUDA_VISIBLE_DEVICES": "0",
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV,GRAPH,TUNING",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
}


def test_what_nccl_says_by_itself_is_no_alarm_and_its_recorder_is_kept(tmp_path: Path) -> None:
    desk = tmp_path / "nccl"
    desk.mkdir()
    done = submit("nccl.py", out("flight-recorder.pickle"), cwd=desk, env=_TALKS)
    assert done.returncode == 0, done.stdout + done.stderr
    said = clusterkit("logs", "latest", cwd=desk).stdout
    out("nccl-info.log").write_text(said)
    assert "NCCL INFO" in said
    assert cause(desk) is None
    assert out("flight-recorder.pickle").stat().st_size > 0


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
    words = ("bench", "allreduce", "--cluster", "local", "--gpus-per-node", 1)
    done = clusterkit(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert "--gpus-per-node 2" in done.stderr
