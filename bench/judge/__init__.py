"""Judging thousands of nodes: how long it takes, and how much memory.

The made-up cluster of `fleet` is written as a bundle once. Then three processes take turns: one
that judges it in memory, `clusterkit preflight --replay`, and as a yardstick one that reads the
same files and splits their lines into words, which no judge in Python can do without.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.figures import BenchError
from bench.startup import CLUSTERKIT

NODES = 4096
EVALUATE = "evaluate"
REPLAY = "preflight --replay"
YARDSTICK = "read and split"
CONTENDERS = (EVALUATE, REPLAY, YARDSTICK)

_CHECKOUT = Path(__file__).resolve().parents[2]
_FINDINGS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One process over the whole bundle."""

    wall_s: float
    """Of `evaluate` the call alone, of the others the process from start to end."""
    cpu_s: float
    """Likewise; user and system."""
    peak_mib: float
    """Of the process."""


Round = Mapping[str, Run]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The rounds, and how much there was to judge."""

    rounds: tuple[Round, ...]
    files: int
    mib: float
    unfit: int


def measure(rounds: int) -> Judged:
    """Run `rounds` rounds after one that does not count.

    Raises:
        BenchError: a process failed, or named other nodes than those that are unfit.
    """
    with tempfile.TemporaryDirectory(prefix="ck-bench-judge-") as name:
        bundle = Path(name) / "bundle"
        # In a process of its own: the peak memory of a child begins with that of its parent.
        unfit = json.loads(_run(_client("write", bundle, NODES))[0])
        sizes = [path.stat().st_size for path in bundle.rglob("*.*") if path.is_file()]
        done = [_round(bundle, unfit, number) for number in range(rounds + 1)][1:]
    return Judged(rounds=tuple(done), files=len(sizes), mib=sum(sizes) / 2**20, unfit=len(unfit))


def _round(bundle: Path, unfit: list[str], number: int) -> Round:
    """Let all run, each first in its turn."""
    first = number % len(CONTENDERS)
    order = (*CONTENDERS[first:], *CONTENDERS[:first])
    return {name: _one(name, bundle, unfit) for name in order}


def _one(name: str, bundle: Path, unfit: list[str]) -> Run:
    argv = {
        EVALUATE: _client("evaluate", bundle),
        REPLAY: [str(CLUSTERKIT), "preflight", "--replay", str(bundle), "--json"],
        YARDSTICK: _client("split", bundle),
    }[name]
    text, run = _run(argv, returns=_FINDINGS if name == REPLAY else 0)
    if name == YARDSTICK:
        return run
    document = json.loads(text)
    if document["exclude"] != unfit:
        wrong = sorted({*document["exclude"]} ^ {*unfit})
        raise BenchError(f"{name} is wrong about {', '.join(wrong[:5])}")
    if name == REPLAY:
        return run
    return Run(wall_s=document["wall_s"], cpu_s=document["cpu_s"], peak_mib=run.peak_mib)


def _client(verb: str, bundle: Path, *more: object) -> list[str]:
    return [sys.executable, "-m", "bench.judge.client", verb, str(bundle), *map(str, more)]


def _run(argv: list[str], *, returns: int = 0) -> tuple[str, Run]:
    """Run one process; return what it prints, and what it took."""
    environment = {**os.environ, "PYTHONPATH": str(_CHECKOUT)}
    with tempfile.TemporaryFile("w+") as out:
        began = time.perf_counter()
        with subprocess.Popen(
            argv, cwd=_CHECKOUT, env=environment, stdin=subprocess.DEVNULL, stdout=out
        ) as process:
            _, status, used = os.wait4(process.pid, 0)
            wall_s = time.perf_counter() - began
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != returns:
            raise BenchError(f"{' '.join(argv)}: exit {process.returncode}")
        out.seek(0)
        text = out.read()
    cpu_s = used.ru_utime + used.ru_stime
    return text, Run(wall_s=wall_s, cpu_s=cpu_s, peak_mib=used.ru_maxrss / 1024)
