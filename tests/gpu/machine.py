"""The machine with the GPU: what it has, our command line on it, and where figures are kept."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from bench.gpu.matrix import gpu_name
from bench.gpu.overhead import environment
from tests.helpers.paths import ROOT

PROGRAMS = Path(__file__).with_name("programs")


@cache
def lacking() -> str:
    """Return what is missing for a test on a GPU; empty where nothing is."""
    if shutil.which("nvidia-smi") is None:
        return "no NVIDIA GPU: this machine has no nvidia-smi"
    try:
        seen = gpu_name()
    except subprocess.CalledProcessError:
        return f"{sys.executable} cannot import torch"
    return "" if seen else f"the torch of {sys.executable} sees no GPU"


def out(name: str = "") -> Path:
    """Return the folder where what was measured is kept ($OUT, else build/gpu), or a path in it."""
    folder = Path(os.environ.get("OUT") or ROOT / "build" / "gpu")
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def keep(name: str, found: object) -> None:
    """Keep figures as JSON."""
    out(f"{name}.json").write_text(json.dumps(found, indent=2) + "\n")


def run(
    *words: object, cwd: Path, within_s: float = 120, **env: str
) -> subprocess.CompletedProcess[str]:
    """Return how a module of Python has ended, with this checkout in its path."""
    return subprocess.run(
        [sys.executable, "-m", *map(str, words)],
        cwd=cwd, env={**environment(), **env}, capture_output=True, text=True, check=False,
        timeout=within_s,
    )  # fmt: skip


def clusterkit(*words: object, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Return how `clusterkit` has ended, whose run folders are in `cwd`."""
    ours = {"NO_COLOR": "1", "CLUSTERKIT_RUN_DIR": str(cwd / "runs")}
    return run("clusterkit", *words, cwd=cwd, **{**ours, **env})


def asked(*words: object, cwd: Path, **env: str) -> Any:
    """Return the document that a verb prints with --json."""
    done = clusterkit(*words, "--json", cwd=cwd, **env)
    assert done.stdout.startswith(("{", "[")), done.stdout + done.stderr
    return json.loads(done.stdout)


def submit(
    program: str, *args: object, cwd: Path, slots: int = 1, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one of `programs` under torchrun on the local cluster, to its end."""
    given = (word for name, value in (env or {}).items() for word in ("--env", f"{name}={value}"))
    return clusterkit(
        *("submit", "--cluster", "local", "--framework", "torchrun", "--nodes", "1"),
        *("--gpus-per-node", slots, "--preflight", "off", "--wait", *given),
        *(PROGRAMS / program, *args),
        cwd=cwd,
    )


def cause(cwd: Path) -> str | None:
    """Return the rule by which `diagnose` explains the latest job; None where it finds nothing."""
    document = asked("diagnose", "latest", cwd=cwd)
    keep(f"diagnose-{cwd.name}", document)
    return document["cause"]["rule"] if document["found"] else None
