"""From the submit command to the first line of the training script, against plain sbatch.

All contenders submit the same three-node torchrun job on a practice cluster of their own, in
turns; the time runs from the start of the submit command until the last rank is at the first
line of its script, since training can begin only then.
"""

from __future__ import annotations

import random
import shutil
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.cluster import practice_cluster
from bench.figures import BenchError
from bench.stages import Milestones, milestones, read_trace
from tests.lab.lab import Lab

NODES = 3
BY_HAND = "sbatch by hand"
CLUSTERKIT = "clusterkit submit"
UNASKED = "clusterkit submit --preflight off"
FILES = ("clusterkit.yaml", "by_hand.sbatch", "first_line.py")
HERE = Path(__file__).parent
TRACE = HERE.parent / "trace"
BIN = Path(sys.executable).parent

_SUBMIT = (str(BIN / "clusterkit"), "submit", "--framework", "torchrun", "--nodes", str(NODES))
COMMANDS: Mapping[str, tuple[str, ...]] = {
    BY_HAND: ("sbatch", "by_hand.sbatch"),
    CLUSTERKIT: (*_SUBMIT, "first_line.py"),
    UNASKED: (*_SUBMIT, "--preflight", "off", "first_line.py"),
}
# Short: Slurm's sockets lie below, and their paths must stay under 108 bytes.
ROOT = Path("/tmp/ck-bench")

_START_WITHIN_S = 120.0
_END_WITHIN_S = 60.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What the contenders needed, one right after the other."""

    by_hand: Milestones
    clusterkit: Milestones
    unasked: Milestones
    """clusterkit, where the nodes are not asked beforehand whether they are fit."""


def measure(rounds: int) -> tuple[Round, ...]:
    """Run `rounds` races on a lab of their own, after one that does not count.

    Raises:
        BenchError: the lab did not start, or a job did not.
    """
    with practice_cluster(ROOT, NODES) as lab:
        return tuple(_race(lab, number) for number in range(rounds + 1))[1:]


def _race(lab: Lab, number: int) -> Round:
    """Let all run, in an order that changes from round to round."""
    order = list(COMMANDS)[:: 1 if number % 2 == 0 else -1]
    found = {contender: _submit(lab, contender, number) for contender in order}
    return Round(by_hand=found[BY_HAND], clusterkit=found[CLUSTERKIT], unasked=found[UNASKED])


def _submit(lab: Lab, contender: str, number: int) -> Milestones:
    """Submit one job, wait for its end, and return its milestones."""
    desk = lab.shared / f"{number}-{list(COMMANDS).index(contender)}"
    stamps = desk / "stamps"
    stamps.mkdir(parents=True)
    for name in FILES:
        shutil.copy(HERE / name, desk)
    environment = {
        "PATH": f"{TRACE / 'bin'}:{BIN}:{lab.env()['PATH']}",
        "PYTHONPATH": str(TRACE),
        "BASH_ENV": str(TRACE / "bash_start.sh"),
        "BENCH_STAMPS": str(stamps),
        "XDG_CONFIG_HOME": str(desk),
    }
    # Slurm starts jobs once a second, and must not get into step with us.
    time.sleep(random.random())
    typed = time.time()
    lab.run("head", COMMANDS[contender], cwd=desk, env=environment, check=True)
    ranks = _wait_for_ranks(desk, stamps)
    _wait_until_idle(lab)
    return milestones(typed, read_trace(stamps / "trace"), ranks)


def _wait_for_ranks(desk: Path, stamps: Path) -> dict[str, float]:
    """Return when each rank was at its first line."""
    deadline = time.monotonic() + _START_WITHIN_S
    while len(found := sorted(stamps.glob("rank-?"))) < NODES:
        if time.monotonic() > deadline:
            raise BenchError(f"{len(found)} of {NODES} ranks started\n{_said(desk)}")
        time.sleep(_POLL_S)
    return {path.name: float(path.read_text()) for path in found}


def _wait_until_idle(lab: Lab) -> None:
    """Wait until the job is over, and no node is busy with it any more."""
    deadline = time.monotonic() + _END_WITHIN_S
    while True:
        states = lab.run("head", ["sinfo", "--noheader", "--Node", "--format=%T"], check=True)
        if set(states.stdout.split()) == {"idle"}:
            return
        if time.monotonic() > deadline:
            raise BenchError(f"the nodes are not idle again: {states.stdout.split()}")
        time.sleep(0.5)


def _said(desk: Path) -> str:
    """Return the ends of the job's logs, for the message of a failed race."""
    texts = []
    for path in sorted(
        [*desk.glob("*.out"), *desk.glob("runs/**/*.out"), *desk.glob("runs/**/*.log")]
    ):
        with suppress(OSError):
            texts.append(f"--- {path.name}\n{path.read_text(errors='replace')[-800:]}")
    return "\n".join(texts)
