"""How long the command line takes to answer, beside a Python that does nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.figures import BenchError, Figures, median_ratio
from bench.old_jobs import JOBS, write_old_jobs

YARDSTICK = "python -c pass"
CLUSTERKIT = Path(sys.executable).with_name("clusterkit")
CONFIG = Path(__file__).with_name("race") / "clusterkit.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command line to start again and again."""

    title: str
    argv: tuple[str, ...]
    goal_s: float | None = None
    goal_cpu_s: float | None = None
    """Of all its processes."""


COMMANDS = (
    Command(title=YARDSTICK, argv=(sys.executable, "-c", "pass")),
    Command(title="clusterkit --version", argv=(str(CLUSTERKIT), "--version"), goal_s=0.150),
    Command(
        title="clusterkit preflight --self",
        argv=(str(CLUSTERKIT), "preflight", "--self", "--budget", "5"),
        goal_s=1.0,
        goal_cpu_s=0.300,
    ),
    Command(
        title="clusterkit submit --dry-run",
        argv=(
            str(CLUSTERKIT), "submit", "--dry-run", "--framework", "torchrun", "--nodes", "3",
            "first_line.py",
        ),
        goal_s=0.600,
    ),
    Command(
        title=f"clusterkit status, {JOBS} jobs",
        argv=(str(CLUSTERKIT), "status", "--limit", "0"),
        goal_s=1.0,
    ),
    Command(
        title="a TAB in zsh, at --cluster",
        argv=(
            "env", "_TYPER_COMPLETE_ARGS=clusterkit submit --cluster ",
            "_CLUSTERKIT_COMPLETE=complete_zsh", str(CLUSTERKIT),
        ),
        goal_s=0.150,
    ),
    Command(
        title="clusterkit estimate, 70B by name",
        argv=(
            str(CLUSTERKIT), "estimate", "--model", "llama-3.1-70b", "--gpu", "h100",
            "--gpus", "64",
        ),
        goal_s=0.400,
    ),
    Command(
        title="clusterkit estimate, 70B traced",
        argv=(
            str(CLUSTERKIT), "estimate", "--model", "llama.py:model", "--gpu", "h100",
            "--gpus", "64",
        ),
        goal_s=5.0,
    ),
)  # fmt: skip
LARGE = Path(__file__).with_name("llama.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup:
    """What one command took: on the clock, and of a processor (user and system)."""

    title: str
    goal_s: float | None
    goal_cpu_s: float | None
    wall: Figures
    cpu: Figures
    yardsticks: float
    """Median of its time over that of the bare Python started just before."""


def measure(runs: int) -> tuple[Startup, ...]:
    """Start every command `runs` times, in turns, after one round that does not count.

    Raises:
        BenchError: a command failed.
    """
    walls: dict[str, list[float]] = {command.title: [] for command in COMMANDS}
    cpus: dict[str, list[float]] = {command.title: [] for command in COMMANDS}
    with tempfile.TemporaryDirectory(prefix="ck-bench-") as name:
        desk = Path(name)
        (desk / "clusterkit.yaml").write_text(CONFIG.read_text())
        (desk / "first_line.py").touch()
        (desk / LARGE.name).write_text(LARGE.read_text())
        write_old_jobs(desk / "runs")
        for counts in (False, *[True] * runs):
            for command in COMMANDS:
                wall_s, cpu_s = _start(command, desk)
                if counts:
                    walls[command.title].append(wall_s)
                    cpus[command.title].append(cpu_s)
    return tuple(
        Startup(
            title=command.title,
            goal_s=command.goal_s,
            goal_cpu_s=command.goal_cpu_s,
            wall=Figures.of(walls[command.title]),
            cpu=Figures.of(cpus[command.title]),
            yardsticks=median_ratio(walls[command.title], walls[YARDSTICK]),
        )
        for command in COMMANDS
    )


def _start(command: Command, desk: Path) -> tuple[float, float]:
    """Return the wall and the processor seconds of one start."""
    environment = {**os.environ, "XDG_CONFIG_HOME": str(desk), "HOME": str(desk)}
    began = time.perf_counter()
    with subprocess.Popen(
        command.argv, cwd=desk, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        _, status, used = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise BenchError(f"{' '.join(command.argv)}: exit {process.returncode}")
    return wall_s, used.ru_utime + used.ru_stime
