"""What is left of a job's time when a fault strikes it every minute: ``python -m bench.goodput``.

Three ranks on the practice cluster take steps together, without torch, and write a checkpoint every
ten seconds. One of them is killed (`kill -9`) each minute, another one each time; `--restarts`
starts the job again. Goodput is the steps that were reached, at the speed of the first minute,
over all time since the first step. The goal is 80 %.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from bench.cluster import practice_cluster
from bench.figures import COULD_NOT, BenchError, against
from clusterkit.core import files
from clusterkit.executors.run.runfolder import RunFolder
from tests.helpers.lab_jobs import Cluster

NODES = 3
GOAL = 0.8
ROOT = Path("/tmp/ck-bench-good")
"""Of the practice clusters, one for each kind: both may be measured at the same time."""
_PATIENCE_S = 120.0
"""Without a step for so long, the job has failed."""

STEPS = """
import os, pathlib, sys, time

place, every_s, rank, world = pathlib.Path(sys.argv[1]), 10.0, int(sys.argv[2]), int(sys.argv[3])
attempt = os.environ["CK_RESTART_COUNT"]

def put(path, text):
    path.with_suffix(f".{rank}").write_text(text)
    path.with_suffix(f".{rank}").replace(path)

def reached(other):
    try:
        told, step = (place / f"at-{other}").read_text().split()
    except (FileNotFoundError, ValueError):
        return -1
    return int(step) if told == attempt else -1

saved = place / "checkpoint"
step = int(saved.read_text()) if saved.exists() else 0
written = time.monotonic()
while True:
    put(place / f"at-{rank}", f"{attempt} {step}")
    while any(reached(other) < step for other in range(world)):
        time.sleep(0.01)
    time.sleep(0.2)
    step += 1
    if rank == 0:
        with open(place / "steps", "a") as log:
            print(time.time(), attempt, step, file=log)
        if step % 10 == 0:
            print(f"step {step}", flush=True)
        if time.monotonic() - written >= every_s:
            put(saved, str(step))
            written = time.monotonic()
"""
"""A step is one when all ranks have taken it, so that none goes on alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A line that the script has written."""

    at: float
    attempt: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What became of one job."""

    kind: str
    wall_s: float
    faults: int
    step_s: float
    steps: int
    goodput: float
    away_s: tuple[float, ...]
    """From each fault to the first step after it."""
    again_s: tuple[float, ...]
    """What was computed again after it."""


def judge(kind: str, steps: Sequence[Step], faults: Sequence[float], ended: float) -> Found:
    """Return what the steps say; `faults` and `ended` are moments.

    Raises:
        BenchError: there are too few steps before the first fault.
    """
    before = [one for one in steps if not faults or one.at < faults[0]]
    if len(before) < 10:
        raise BenchError(f"{kind}: {len(before)} steps before the first fault")
    step_s = (before[-1].at - before[0].at) / (len(before) - 1)
    away, again = [], []
    for fault in faults:
        after = next((one for one in steps if one.at > fault and _follows(one, fault, steps)), None)
        if after is None:
            continue
        best = max(one.step for one in steps if one.at <= fault)
        away.append(after.at - fault)
        again.append(max(0, best - after.step + 1) * step_s)
    reached = max(one.step for one in steps)
    wall = ended - steps[0].at + step_s
    return Found(
        kind=kind,
        wall_s=wall,
        faults=len(faults),
        step_s=step_s,
        steps=reached,
        goodput=reached * step_s / wall,
        away_s=tuple(away),
        again_s=tuple(again),
    )


def _follows(one: Step, fault: float, steps: Sequence[Step]) -> bool:
    """Tell whether a step is of a later attempt than the one that a fault struck."""
    struck = max((other.attempt for other in steps if other.at <= fault), default=-1)
    return one.attempt > struck


def measure(kind: str, minutes: float, every_s: float) -> Found:
    """Strike a job for so long.

    Raises:
        BenchError: it did not start, or did not go on after a fault.
    """
    with practice_cluster(ROOT.with_name(f"{ROOT.name}-{kind}"), NODES) as lab:
        folder = lab.shared / "goodput"
        folder.mkdir()
        (folder / "steps.py").write_text(STEPS)
        cluster = Cluster(lab, folder, kind)
        most = int(minutes * 60 / every_s) + 5
        body = f"exec {sys.executable} {folder}/steps.py {folder} $CK_NODE_RANK {NODES}"
        run = cluster.submit(
            body, restarts=most, requeue_on="failure", time=str(int(minutes) + 10), nodes=NODES
        )
        words = [sys.executable, "-m", "clusterkit", "supervise", run.run_id]
        with lab.popen("head", words, env=cluster.environment, cwd=Path.cwd()) as client:
            try:
                faults, ended = _strike(cluster, run, folder / "steps", minutes * 60, every_s)
            finally:
                cluster.ck("cancel", run.run_id)
                client.communicate(timeout=_PATIENCE_S)
        return judge(kind, _read(folder / "steps"), faults, ended)


def _strike(
    cluster: Cluster, run: RunFolder, log: Path, seconds: float, every_s: float
) -> tuple[list[float], float]:
    """Kill a rank every so often; return the moments of that, and of the end."""
    waited = time.monotonic() + _PATIENCE_S
    while not (log.exists() and log.stat().st_size):
        if time.monotonic() > waited:
            raise BenchError(f"{cluster.kind}: no step: {cluster.ck('status', run.run_id)[1]}")
        time.sleep(0.1)
    began, faults = time.time(), list[float]()
    while (left := began + seconds - time.time()) > 0:
        time.sleep(min(left, max(0.0, began + (len(faults) + 1) * every_s - time.time())))
        if began + seconds - time.time() < every_s / 2:
            continue  # what comes back only after the end would count against no time
        if time.time() - _read(log)[-1].at > _PATIENCE_S:
            raise BenchError(f"{cluster.kind}: no step: {cluster.ck('status', run.run_id)[1]}")
        node = cluster.lab.nodes[len(faults) % NODES]
        ranks = cluster.lab.processes(node, rf"^{sys.executable} .*steps\.py ")
        for process in ranks[:1]:
            os.kill(process.pid, signal.SIGKILL)
        faults.append(time.time())
        print(
            f"  {node}: {'killed' if ranks else 'no rank there yet'}", file=sys.stderr, flush=True
        )
    return faults, time.time()


def _read(log: Path) -> list[Step]:
    found = []
    for line in log.read_text().splitlines():
        at, attempt, step = line.split()
        found.append(Step(at=float(at), attempt=int(attempt), step=int(step)))
    return found


def lines(found: Sequence[Found]) -> list[str]:
    """Return a table."""
    rows = ["kind     faults  goodput  away (median, most)  again (median)"]
    for one in found:
        away = f"{median(one.away_s):.1f} s, {max(one.away_s):.1f} s" if one.away_s else "-"
        again = f"{median(one.again_s):.1f} s" if one.again_s else "-"
        goal = against(f"{GOAL:.0%}", met=one.goodput >= GOAL)
        rows.append(
            f"{one.kind:<7} {one.faults:>7}  {one.goodput:>7.1%}  {away:>19}  {again:>14}  {goal}"
        )
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; return 0 whether the goal is met or not, 2 where something did not run."""
    parser = argparse.ArgumentParser(prog="python -m bench.goodput", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--every", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--only", choices=("slurm", "ssh"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    if not (options.every > 0 and options.minutes * 60 >= 2 * options.every):
        parser.error("no fault would count: --minutes at least twice --every, as 5 and 60 s")
    found, failed = [], False
    for kind in (options.only,) if options.only else ("slurm", "ssh"):
        try:
            found.append(measure(kind, options.minutes, options.every))
        except BenchError as error:
            failed = True
            print(f"bench: {error}", file=sys.stderr)
    print(*lines(found), sep="\n")
    if options.json is not None:
        text = json.dumps([asdict(one) for one in found], indent=2)
        files.write_text(options.json, f"{text}\n", mode=files.output())
    return COULD_NOT if failed else 0


if __name__ == "__main__":
    sys.exit(main())
