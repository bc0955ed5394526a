"""How fast 1 GiB of output is followed, and in how much memory, beside `cat`."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.figures import BenchError, Figures, against, median_ratio
from bench.old_jobs import write_old_jobs
from bench.startup import CLUSTERKIT, CONFIG
from clusterkit.executors.run.runfolder import RunFolder

NODES = 8
EACH = 1 << 27
LINE = "epoch 3 step {:>8} loss 1.2345 grad_norm 0.9876 lr 3.0e-04 tokens/s 123456 mem 71.2 GiB\n"
FOLLOW, CAT = "clusterkit logs -f", "cat"
GOAL_MIB = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What it took to read all of it through a pipe."""

    wall_s: float
    cpu_s: float
    peak_mib: float


def measure(rounds: int) -> tuple[dict[str, Reading], ...]:
    """Read the output of a job of 8 nodes that has ended, in turns.

    Raises:
        BenchError: a reader failed, or left something out.
    """
    with tempfile.TemporaryDirectory(prefix="ck-bench-") as name:
        desk = Path(name)
        (desk / "clusterkit.yaml").write_text(CONFIG.read_text())
        write_old_jobs(desk / "runs", jobs=1)
        (path,) = (desk / "runs").iterdir()
        logs = _write_logs(RunFolder(path))
        readers = {FOLLOW: (str(CLUSTERKIT), "logs", "-f", "latest"), CAT: ("cat", *logs)}
        return tuple(
            {title: _read(argv, desk) for title, argv in readers.items()} for _ in range(rounds)
        )


def output_table(rounds: tuple[dict[str, Reading], ...]) -> str:
    """Return the table: seconds and peak memory of each reader."""
    document = output_document(rounds)
    head = f"{'1 GiB of output, 8 nodes':30}{'median s':>9}{'cpu s':>8}{'MiB/s':>8}{'peak MiB':>10}"
    lines = ["", f"{head}  goal"]
    for title, row in document["readers"].items():
        verdict = against(f"{GOAL_MIB:.0f} MiB", met=row["peak_mib"] <= GOAL_MIB)
        lines.append(
            f"{title:30}{row['wall']['median_s']:9.2f}{row['cpu_s']:8.2f}"
            f"{row['mib_per_s']:8.0f}{row['peak_mib']:10.0f}"
            + (f"  {verdict}" if title == FOLLOW else "")
        )
    return "\n".join([*lines, f"{f'{FOLLOW} : {CAT}':38}{document['ratio']:.1f}"])


def output_document(rounds: tuple[dict[str, Reading], ...]) -> dict[str, Any]:
    """Return the figures for the JSON document."""
    walls = {title: [one[title].wall_s for one in rounds] for title in (FOLLOW, CAT)}
    return {
        "bytes": NODES * EACH,
        "ratio": median_ratio(walls[FOLLOW], walls[CAT]),
        "readers": {
            title: {
                "wall": asdict(Figures.of(walls[title])),
                "cpu_s": min(one[title].cpu_s for one in rounds),
                "mib_per_s": NODES * EACH / (1 << 20) / Figures.of(walls[title]).median_s,
                "peak_mib": max(one[title].peak_mib for one in rounds),
            }
            for title in (FOLLOW, CAT)
        },
    }


def _write_logs(run: RunFolder) -> list[str]:
    block = "".join(LINE.format(number) for number in range(10_000)).encode()
    paths = [run.log(rank) for rank in range(NODES)]
    for path in paths:
        with path.open("wb") as stream:
            for _ in range(EACH // len(block)):
                stream.write(block)
            stream.write(block[: EACH % len(block)])
    return [str(path) for path in paths]


def _read(argv: tuple[str, ...], desk: Path) -> Reading:
    environment = {**os.environ, "XDG_CONFIG_HOME": str(desk), "HOME": str(desk)}
    began = time.perf_counter()
    size, peak = 0, 0.0
    with subprocess.Popen(
        argv, cwd=desk, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as reader:
        if reader.stdout is None:
            raise BenchError("no pipe")
        while block := reader.stdout.read(1 << 20):
            size += len(block)
            peak = peak_mib(reader.pid) or peak
        _, status, used = os.wait4(reader.pid, 0)
        reader.returncode = os.waitstatus_to_exitcode(status)
    if size < NODES * EACH:
        raise BenchError(f"{argv[0]} left out {NODES * EACH - size} bytes")
    return Reading(
        wall_s=time.perf_counter() - began,
        cpu_s=used.ru_utime + used.ru_stime,
        peak_mib=peak,
    )


def peak_mib(pid: int) -> float:
    """Return the peak memory of a process since its exec; ru_maxrss counts its parent's as well."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)
