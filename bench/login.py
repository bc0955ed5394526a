"""`clusterkit status` from a laptop, by ssh to the login node, against the same one typed there.

Both look at the same jobs of a practice cluster; the ssh connection is open, as after the first
command. A round trip there costs nothing, so that the ratio is what clusterkit and ssh take. What
it takes to get into the namespaces of the laptop and of the head is measured beside, and left out.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess, run
from typing import Any

from bench.cluster import practice_cluster
from bench.figures import BenchError, Figures, against, in_words, median_ratio
from tests.helpers.laptop import laptop_of

GOAL = 1.5
ROOT = Path("/tmp/ck-bench-login")
_NAME = "bench"
_LOGIN = "    login: head\n"


def measure(rounds: int) -> tuple[tuple[float, float], ...]:
    """Return the seconds of each round, from the laptop and on the login node.

    Raises:
        BenchError: the lab did not start, or a command failed.
    """
    with (
        practice_cluster(ROOT, 1) as lab,
        tempfile.TemporaryDirectory(prefix="ck-bench-") as folder,
        laptop_of(lab, Path(folder), _NAME) as laptop,
    ):
        (laptop.folder / "one.sh").write_text("echo one\n")
        _seconds(lambda: laptop.clusterkit("submit", "--wait", "one.sh"))
        desk = lab.shared / "desk"
        desk.mkdir()
        there = (laptop.folder / "clusterkit.yaml").read_text().replace(_LOGIN, "")
        (desk / "clusterkit.yaml").write_text(there)
        argv = [sys.executable, "-m", "clusterkit", "status"]
        found = []
        for _ in range(rounds + 1):  # the first does not count
            away = _seconds(lambda: laptop.clusterkit("status")) - _seconds(
                lambda: run(laptop.argv("true"), capture_output=True, text=True, check=False)
            )
            here = _seconds(lambda: lab.run("head", argv, cwd=desk)) - _seconds(
                lambda: lab.run("head", ["true"], cwd=desk)
            )
            found.append((away, here))
    return tuple(found[1:])


def login_table(rounds: tuple[tuple[float, float], ...]) -> str:
    """Return the table: seconds of both, and their ratio."""
    told = login_document(rounds)
    away, there = told["laptop"]["median_s"], told["login_node"]["median_s"]
    lines = (
        "",
        f"{'status, s':32}{'laptop':>8}{'there':>8}{'ratio':>7}  goal",
        f"{'over login':32}{away:8.2f}{there:8.2f}{told['ratio']:7.2f}  "
        + against(f"{GOAL}", met=told["met"]),
        f"  ratios of the rounds: {in_words(told['ratios'])}",
    )
    return "\n".join(lines)


def login_document(rounds: tuple[tuple[float, float], ...]) -> dict[str, Any]:
    """Return the figures for the JSON document."""
    away, there = ([one[which] for one in rounds] for which in (0, 1))
    ratio = median_ratio(away, there)
    return {
        "goal": GOAL,
        "met": ratio <= GOAL,
        "ratio": ratio,
        "ratios": [a / b for a, b in rounds],
        "laptop": {"median_s": Figures.of(away).median_s},
        "login_node": {"median_s": Figures.of(there).median_s},
    }


def _seconds(command: Callable[[], CompletedProcess[str]]) -> float:
    began = time.perf_counter()
    done = command()
    if done.returncode != 0:
        raise BenchError(f"clusterkit: {done.stderr.strip()}")
    return time.perf_counter() - began
