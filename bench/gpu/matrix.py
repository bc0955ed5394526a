"""Run the matrix: each run in a process of its own, with a limit, until the time is up."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.gpu.rows import Row, measured, memory_of_run
from clusterkit.core.errors import UserError

RAN, OUT_OF_MEMORY = "ran", "out of memory"
_HOPELESS = 1.25
"""Times the memory of the GPU beyond which a run is not tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How one run ended, and what was measured if it ran."""

    row: Row
    outcome: str
    figures: dict[str, Any] = field(default_factory=dict)


def gpu_name() -> str | None:
    """Return the name of the first GPU that torch can use, asked for in a process of its own."""
    asked = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    done = subprocess.run(
        [sys.executable, "-c", asked], stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.strip() or None


def run_all(
    rows: Iterable[Row], *, gpu: str | None, budget_s: float, folder: Path
) -> Iterator[Result]:
    """Yield the results of the runs for which there is time; each writes a log into `folder`.

    `gpu` is the name of the GPU, None where the runs are to be on the CPU.
    """
    # Forked from a process that has imported torch once, and touched no GPU.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bench.gpu.training"])
    ends = time.monotonic() + budget_s
    for row in rows:
        left = ends - time.monotonic()
        why_not = "no time left" if left < min(row.limit_s, 10.0) else _why_not(row, gpu)
        if why_not:
            yield Result(row=row, outcome=why_not)
            continue
        ours, theirs = context.Pipe(duplex=False)
        log = folder / f"run-{row.id}.log"
        process = context.Process(target=_child, args=(row, theirs, log))
        process.start()
        theirs.close()
        outcome, figures = _answer(ours, min(row.limit_s, left))
        process.kill()
        process.join()
        yield Result(row=row, outcome=outcome, figures=figures)


def _answer(connection: Connection, limit_s: float) -> tuple[str, dict[str, Any]]:
    if not connection.poll(limit_s):
        return f"not done after {limit_s:.0f} s", {}
    try:
        outcome, figures = connection.recv()
    except EOFError:
        return "ended without an answer", {}
    return outcome, figures


def _child(row: Row, connection: Connection, log: Path) -> None:
    """Train, and send how it ended; whatever is printed goes to the log."""
    with log.open("w") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    os.environ["LOCAL_RANK"] = "0"  # DeepSpeed looks for it
    from bench.gpu.training import train  # noqa: PLC0415 - the process that waits needs no torch

    try:
        answer = RAN, train(row)
    except Exception as error:  # noqa: BLE001 - whatever it is, the next run goes on
        traceback.print_exc()
        text = str(error).partition("\n")[0]
        short = OUT_OF_MEMORY if "out of memory" in text else f"{type(error).__name__}: {text}"
        answer = short[:200], {}
    connection.send(answer)


def _why_not(row: Row, gpu: str | None) -> str:
    """Return why a run is not tried; empty where it is."""
    module = {"fp8": "torchao"}.get(row.precision) or ("deepspeed" if row.by_deepspeed else "torch")
    if find_spec(module) is None:
        return f"no {module}"
    if gpu is None:
        return ""
    try:
        setup = measured(row, {"gpu": gpu}).setup
    except UserError as error:
        return f"no estimate: {error}"
    needed = memory_of_run(row, setup).device.likely / setup.gpu.usable_bytes
    return "far too large" if needed > _HOPELESS else ""


def append(path: Path, result: Result) -> None:
    """Keep a result at once: whoever ends the whole keeps what was measured."""
    with path.open("a") as stream:
        print(
            json.dumps({"id": result.row.id, "outcome": result.outcome, **result.figures}),
            file=stream,
        )
