"""What some tests need of a machine, and how to get it: without it they skip, and fail in CI."""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import Any, NoReturn

import pytest

TOOLS = {
    "busybox": "apt-get install busybox-static",
    "c++": "apt-get install g++",
    "dash": "apt-get install dash",
    "fish": "apt-get install fish",
    "git": "apt-get install git",
    "ninja": "make .venv/test.done",
    "node": "apt-get install nodejs",
    "ps": "apt-get install procps",
    "py-spy": "make .venv/dev.done",
    "scontrol": "apt-get install slurm-client",
    "setpriv": "apt-get install util-linux",
    "shellcheck": "make .venv/dev.done",
    "sshd": "apt-get install openssh-server",
    "ssh": "apt-get install openssh-client",
    "ssh-keygen": "apt-get install openssh-client",
    "tcsh": "apt-get install tcsh",
    "zsh": "apt-get install zsh",
}
"""Programs, and where they come from."""
MODULES = {
    "accelerate": "make .venv/test.done",
    "deepspeed": "make .venv/test.done",
    "hatchling": "make .venv/dev.done",
    "horovod": "apt-get install g++ cmake, then rm .venv/test.done; make .venv/test.done",
    "matplotlib": "make .venv/dev.done",
    "sphinx": "make .venv/dev.done",
    "torch": "make .venv/torch.done",
}
"""Packages of Python, and where they come from."""
ROOT = "root"
"""The need of another user, of mounts or of namespaces."""


def lack(what: str, how: str = "") -> NoReturn:
    """Skip a test, or a file of tests, for what this machine has not; fail in CI, which has all."""
    reason = f"{what}: {how}" if how else what
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason, allow_module_level=True)


def require(*needs: str) -> None:
    """Skip a test where one of its needs is missing; fail in CI.

    The mark `needs` does the same before the fixtures of a test.
    """
    for need in needs:
        if need in MODULES:
            if importlib.util.find_spec(need) is None:
                _lack_module(need)
        elif need == ROOT:
            if os.geteuid() != 0:
                lack("the tests do not run as root", "sudo make test")
        elif shutil.which(need, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
            lack(f"this machine has no {need}", TOOLS.get(need, ""))


def module(name: str) -> Any:
    """Return a module of a package of `MODULES`; skip where it cannot be imported, fail in CI."""
    try:
        return importlib.import_module(name)
    except ImportError:
        _lack_module(name.partition(".")[0])


def _lack_module(package: str) -> NoReturn:
    """Skip for a missing package of Python; fail in CI."""
    lack(f"this Python has no {package}", MODULES[package])
