"""The training runs of `make test-gpu`: on the CPU, and their table by made-up figures."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from bench.gpu.matrix import OUT_OF_MEMORY, RAN, Result
from bench.gpu.rows import SHAPES, Row, measured, memory_of_run, read_matrix
from bench.gpu.table import COLUMNS, lines_of, markdown, summary, tsv
from clusterkit.estimate.speed.step_time import speed_of
from tests.gpu.machine import cause, run, submit

H100 = "NVIDIA H100 80GB HBM3"
ROWS = read_matrix()


def test_the_matrix_is_what_the_table_of_figures_needs() -> None:
    assert len({replace(row, id="") for row in ROWS}) == len(ROWS) >= 40
    assert {row.model for row in ROWS} == {"0.1B", "0.4B", "1B", "3B", "8B"}
    assert {row.checkpointing for row in ROWS} == {"none", "selective", "full"}
    assert {1, 16} <= {row.micro_batch for row in ROWS}
    assert {512, 8192} <= {row.seq for row in ROWS}
    for row in ROWS:
        setup = measured(row, {"gpu": H100}).setup
        assert setup.model.params == pytest.approx(params_of(row.model), rel=1e-3)
        assert memory_of_run(row, setup).allocated > 0


def params_of(name: str) -> int:
    layers, width, heads, kv_heads, mlp, words = SHAPES[name]
    keys = width // heads * kv_heads
    return layers * (2 * width**2 + 2 * width * keys + 3 * width * mlp) + 2 * words * width


@pytest.mark.needs("torch")
def test_a_small_run_goes_the_whole_way_without_a_gpu(tmp_path: Path) -> None:
    table = tmp_path / "small.tsv"
    head = "model strategy precision checkpointing micro_batch seq optimizer compile"
    rows = ("tiny single bf16 full 2 32 foreach no", "tiny fsdp bf16 selective 2 32 fused no")
    table.write_text("".join(f"{line}\n" for line in (head, *rows)).replace(" ", "\t"))
    words = ("matrix", "--table", table, "--out", tmp_path, "--budget", 100)
    done = run("bench.gpu", *words, cwd=tmp_path, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    with (tmp_path / "matrix.tsv").open() as stream:
        found = list(csv.DictReader(stream, delimiter="\t"))
    assert [one["outcome"] for one in found] == [RAN, RAN], (tmp_path / "run-01.log").read_text()
    assert {one["allocated_gib"] for one in found} == {"no GPU"}
    assert all(float(one["step_s"]) > 0 for one in found)


@pytest.mark.train
@pytest.mark.needs("torch")
def test_submit_and_torchrun_take_turns(tmp_path: Path) -> None:
    words = ("overhead", "--model", "tiny", "--rounds", 1, "--out", tmp_path)
    done = run("bench.gpu", *words, cwd=tmp_path, within_s=400, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    assert '"ratio": ' in (tmp_path / "overhead.json").read_text()


@pytest.mark.train
@pytest.mark.needs("torch")
def test_a_rank_that_is_killed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUT", str(tmp_path))
    assert submit("killed_rank.py", cwd=tmp_path).returncode == 1
    assert cause(tmp_path) == "rank-killed"


def made_up(row: Row, *, slower: float = 1.0) -> Result:
    """Return a run that took 2 % more memory than is estimated."""
    setup = measured(row, {"gpu": H100}).setup
    memory = memory_of_run(row, setup)
    figures = {
        "gpu": H100,
        "allocated_bytes": memory.allocated * 1.02,
        "reserved_bytes": memory.allocated * 1.1,
        "device_bytes": memory.device.likely * 1.1,
        "step_s": speed_of(setup).step_s.likely * slower,
    }
    return Result(row=row, outcome=RAN, figures=figures)


def test_errors_are_counted_after_one_calibration_and_false_fits_are_named() -> None:
    first, second, third, *_ = ROWS
    results = [
        made_up(first, slower=1.5),
        made_up(second, slower=1.5),
        Result(row=third, outcome=OUT_OF_MEMORY),
        Result(row=replace(third, id="99", model="8B"), outcome=OUT_OF_MEMORY),
        Result(row=ROWS[-1], outcome="no time left"),
    ]
    lines = lines_of(results, H100)
    found = summary(lines)
    assert found["false_fits"] == [third.id]
    assert found["allocated"]["median_abs_error"] == pytest.approx(0.02, abs=0.001)
    assert lines[0].calibrates
    assert found["step"]["worst"]["id"] == second.id
    assert abs(found["step"]["worst"]["error"]) < 0.02
    assert "median error 2.0%, worst -2.0%" in markdown(lines, H100)
    head, *rows = (line.split("\t") for line in tsv(lines).splitlines())
    assert tuple(head) == COLUMNS
    assert {len(row) for row in rows} == {len(COLUMNS)}
