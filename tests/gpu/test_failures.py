"""Real failures of a GPU: `diagnose` names each from what CUDA, torch and NCCL really print."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.machine import cause, submit

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("program", "rule"),
    [
        ("out_of_memory.py", "cuda-out-of-memory"),
        ("illegal_address.py", "cuda-illegal-access"),
        ("device_assert.py", "cuda-device-assert"),
        ("killed_rank.py", "rank-killed"),
    ],
)
def test_it_is_named_from_the_real_text(tmp_path: Path, program: str, rule: str) -> None:
    desk = tmp_path / program.removesuffix(".py")
    desk.mkdir()
    done = submit(program, cwd=desk)
    assert done.returncode == 1, done.stdout + done.stderr
    assert cause(desk) == rule
