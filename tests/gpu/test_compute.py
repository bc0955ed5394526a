"""`bench compute` beside a plain product of torch, before and after it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from statistics import mean

import pytest

from tests.gpu.machine import PROGRAMS, asked, keep

pytestmark = pytest.mark.gpu


def plain_tflops() -> float:
    words = [sys.executable, PROGRAMS / "matmul.py"]
    return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def test_its_products_are_right_and_its_clocks_are_read(tmp_path: Path) -> None:
    before = plain_tflops()
    job = ("--cluster", "local", "--gpus-per-node", 1, "--preflight", "off")
    found = asked("bench", "compute", *job, "--seconds", 10, cwd=tmp_path)
    plain = mean((before, plain_tflops()))
    (gpu,) = found["gpus"]
    # The ratio, at least 0.95, is a figure and no test, as that of the overhead.
    keep("compute", {**found, "plain_tflops": plain, "ratio": gpu["tflops"] / plain})
    assert found["correct"]
    assert gpu["tflops"] > 0
    loaded = [reading for reading in gpu["readings"] if reading["when"] == "load"]
    assert loaded
    for reading in loaded:
        assert {reading["clock_mhz"], reading["power_w"], reading["temperature_c"]}.isdisjoint(
            {None}
        )
