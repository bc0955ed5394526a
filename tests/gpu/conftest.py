"""All tests here need an NVIDIA GPU; without one each says in a line what is missing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu.machine import lacking, out
from tests.helpers.needs import lack


@pytest.fixture(autouse=True)
def _gpu() -> None:
    if missing := lacking():
        lack(missing)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say at the end of `make test-gpu` what it comes to."""
    if config.getoption("markexpr") == "gpu":
        missing = lacking()
        kept = f"what was measured is in {out()}"
        terminalreporter.write_line(f"nothing was tested: {missing}" if missing else kept)
