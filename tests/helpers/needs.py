"""What some tests need of a machine, and how to get it: without it they skip, and fail in CI."""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import NoReturn

import pytest

TOOLS = {
    "busybox": "apt-get install busybox-static",
    "dash": "apt-get install dash",
    "git": "apt-get install git",
    "ps": "apt-get install procps",
    "py-spy": "pip install py-spy",
    "scontrol": "apt-get install slurm-client",
}
"""Programs, and where they come from."""
MODULES = {"torch": "make .venv/torch.done"}
"""Packages of Python, and where they come from."""


def lack(what: str, how: str = "") -> NoReturn:
    """Skip a test for what this machine has not; fail in CI, which has all."""
    reason = f"{what}: {how}" if how else what
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def require(*needs: str) -> None:
    """Skip a test where one of its needs is missing; fail in CI."""
    for need in needs:
        if need in MODULES:
            there, how = importlib.util.find_spec(need) is not None, MODULES[need]
        else:
            there, how = shutil.which(need) is not None, TOOLS.get(need, "")
        if not there:
            lack(f"this machine has no {need}", how)
