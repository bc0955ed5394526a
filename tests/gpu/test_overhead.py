"""Training under `submit` beside bare torchrun: `python -m bench.gpu overhead`."""

from __future__ import annotations

import json

import pytest

from tests.gpu.machine import out, run

pytestmark = pytest.mark.gpu


def test_the_cost_of_submit_is_measured() -> None:
    done = run("bench.gpu", "overhead", "--out", out(), cwd=out(), within_s=240)
    assert done.returncode == 0, done.stderr
    # The figure is the claim (at least 0.99), and not this test: machines have other guests.
    assert json.loads(out("overhead.json").read_text())["ratio"] > 0
