"""Real training runs against `estimate`: `python -m bench.gpu matrix`."""

from __future__ import annotations

import json

import pytest

from tests.gpu.machine import out, run

pytestmark = pytest.mark.gpu

BUDGET_S = 270


def test_no_run_is_out_of_memory_where_the_estimate_is_confident() -> None:
    folder = out("matrix")
    done = run(
        *("bench.gpu", "matrix", "--out", folder, "--budget", BUDGET_S),
        cwd=out(), within_s=BUDGET_S + 60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((folder / "matrix.json").read_text())
    assert found["ran"] > 0, done.stderr
    assert found["false_fits"] == []
    # The goal is 3 %, on a median card: what is further off here is a term that is wrong.
    assert found["allocated"]["median_abs_error"] <= 0.10, found
