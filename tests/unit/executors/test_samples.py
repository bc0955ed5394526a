"""What GPUs do while a job runs is kept, in bounded files, and idle ones are noticed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from clusterkit.core import files
from clusterkit.executors.node import samples as samples_module
from clusterkit.executors.node.identity import Identity
from clusterkit.executors.node.samples import Samples, looks_at
from clusterkit.executors.run.runfolder import RunFolder

NAMES = ("n1", "n2")


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path / "run")
    for folder in (run.nodes, run.logs):
        folder.mkdir(parents=True)
    return run


class Gpus:
    """GPUs that are as busy as they are told to be."""

    def __init__(self) -> None:
        self.busy: dict[str, float] = {"0": 97.0, "1": 3.0}

    def __call__(self) -> dict[str, float]:
        return self.busy


def node(run: RunFolder, gpus: Gpus, *, rank: int = 0, of: int = 1, **keys: Any) -> Samples:
    files.write_json(run.plan, {"cluster": keys})
    me = Identity(job_id="7", attempt=0, rank=rank, of=of, name=NAMES[rank], among=NAMES[:of])
    return Samples(run, me, gpus)


def hours_later(monkeypatch: pytest.MonkeyPatch, hours: float) -> None:
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 3600 * hours)


def test_samples_are_kept_and_are_bounded(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many, those of the whole time are left."""
    monkeypatch.setattr(samples_module, "_MOST_LINES", 16)
    gpus = Gpus()
    samples = node(run, gpus)
    for number in range(200):
        gpus.busy = {"0": float(number % 100)}
        samples.take()
    lines = [json.loads(line) for line in samples.path.read_text().splitlines()]
    assert 8 <= len(lines) <= 16
    assert {*lines[0]} == {"at", "busy"}
    busy = [line["busy"]["0"] for line in lines]
    assert busy[0] < 40
    assert busy[-1] > 80


def test_idle_gpus_are_told_of_once_and_again_after_work(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = Gpus()
    samples = node(run, gpus, idle_limit=30)
    samples.take()
    gpus.busy = {"0": 0.0, "1": 0.0}
    samples.take()
    assert not run.log(0).exists()
    hours_later(monkeypatch, 1)
    samples.take()
    samples.take()
    line = "clusterkit: n1: its GPUs have been idle for 30 min (idle_limit)\n"
    assert run.log(0).read_text() == line
    gpus.busy = {"0": 0.0, "1": 1.0}
    samples.take()
    assert not run.idle(0, 0).exists()
    gpus.busy = {"0": 0.0}
    hours_later(monkeypatch, 1)
    samples.take()
    assert run.log(0).read_text() == 2 * line
    assert not run.cancelled.exists()


@pytest.mark.parametrize("busy", [{}, {"0": 0.0, "1": 0.5}])
def test_what_nobody_sees_or_works_a_little_is_not_idle(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, busy: dict[str, float]
) -> None:
    gpus = Gpus()
    samples = node(run, gpus, idle_limit=30, on_idle="cancel")
    gpus.busy = busy
    for hours in range(1, 5):
        hours_later(monkeypatch, hours)
        samples.take()
    assert not run.log(0).exists()


def test_a_job_is_cancelled_once_all_its_nodes_are_idle(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(samples_module, "run_command", lambda argv, **_: asked.append(argv))
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    first, second = Gpus(), Gpus()
    first.busy = {"0": 0.0}
    keys = {"idle_limit": 30, "on_idle": "cancel"}
    nodes = [node(run, gpus, rank=k, of=2, **keys) for k, gpus in enumerate((first, second))]
    hours_later(monkeypatch, 1)
    for one in (*nodes, *nodes):
        one.take()
    assert not run.cancelled.exists()
    second.busy = {"0": 0.0}
    hours_later(monkeypatch, 1)
    for one in (nodes[1], nodes[0]):
        one.take()
    assert run.cancelled.exists()
    assert asked[0] == ["scancel", "4711"]
    assert "all nodes are idle: the job is cancelled" in run.log(1).read_text()


def test_only_the_gpus_of_the_job_are_asked_of_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert looks_at(()) is None
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexit 9\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    look = looks_at(("0",))
    assert look is not None
    assert look() == {}
