"""Throughput of training under `submit --cluster local` over that under bare torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.figures import BenchError, median_ratio
from bench.gpu.rows import Row

ROOT = Path(__file__).resolve().parents[2]
_TRAINING = Path(__file__).with_name("training.py")
_MOST_MINUTES = 10
SUBMIT, BARE = "clusterkit submit", "torchrun"


def overhead(rounds: int, model: str) -> dict[str, Any]:
    """Train the same under both in turns, the order changing; return steps/s and their ratio.

    Raises:
        BenchError: one of them failed.
    """
    small = model == "tiny"
    row = Row(
        id="overhead", model=model, strategy="ddp", precision="bf16", checkpointing="none",
        micro_batch=4, seq=64 if small else 1024, optimizer="fused",
        compile=False, steps=5 if small else 40,
    )  # fmt: skip
    rates: dict[str, list[float]] = {SUBMIT: [], BARE: []}
    with tempfile.TemporaryDirectory(prefix="ck-gpu-") as name:
        desk = Path(name)
        (desk / "row.json").write_text(json.dumps(asdict(row)))
        for number in range(rounds):
            order = (SUBMIT, BARE) if number % 2 else (BARE, SUBMIT)
            for contender in order:
                rates[contender].append(_steps_per_s(contender, desk))
    return {"steps_per_s": rates, "ratio": median_ratio(rates[SUBMIT], rates[BARE])}


def _steps_per_s(contender: str, desk: Path) -> float:
    started = {
        BARE: ("torch.distributed.run", "--standalone", "--nproc-per-node", "1"),
        SUBMIT: (
            *("clusterkit", "submit", "--cluster", "local", "--framework", "torchrun"),
            *("--nodes", "1", "--gpus-per-node", "1", "--preflight", "off", "--wait"),
            *("--time", str(_MOST_MINUTES)),  # whoever ends this leaves no training for hours
        ),
    }[contender]
    found = desk / "found.json"
    found.unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", *started, str(_TRAINING), "row.json", str(found)],
        cwd=desk, env={**environment(), "CLUSTERKIT_RUN_DIR": str(desk / "runs")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode or not found.exists():
        raise BenchError(f"{contender}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return float(json.loads(found.read_text())["steps_per_s"])


def environment() -> dict[str, str]:
    """Return the environment in which other Pythons find this checkout as well."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    # whole, as the others start elsewhere
    path = [str(ROOT), *(str(Path(part).absolute()) for part in given if part)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
