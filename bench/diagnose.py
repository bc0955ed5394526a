"""How fast 1 GiB of logs is diagnosed, and in how much memory, beside `grep` for the same texts."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.figures import BenchError, Figures, against, median_ratio
from bench.output import peak_mib
from bench.startup import CLUSTERKIT
from clusterkit.observe.diagnose.rules import own_rules

NODES = 8
EACH = 1 << 27
_LOOK_S = 0.02
GOAL_S, GOAL_MIB = 10.0, 200.0
DIAGNOSE, GREP = "clusterkit diagnose", "grep -F -f"
KINDS = ("as training prints", "all lines differ")
STEP = (
    "[rank{rank}]: epoch 3 step {n:>8} loss 1.{n:04} grad_norm 0.9876 lr 3.0e-04 tokens/s 1{n:05}"
)
OTHERS = (
    "[2026-11-22 13:00:00,{n:03}] [INFO] [logging.py:128:log_dist] [Rank 0] step={n}, skipped=0",
    "n{rank}:4711:4801 [{rank}] NCCL INFO Channel 0{rank}/16 : {rank}[{rank}] -> 1[1] via P2P",
    "  {rank}0%|####      | {n}/100000 [12:34<56:{rank}0,  3.2{rank}it/s]\r",
    "I1122 13:00:00.{n:06} 4711 ProcessGroupNCCL.cpp:852] [Rank {rank}] NCCL watchdog started",
    "/usr/lib/python3/site-packages/x.py:{n}: UserWarning: lr_scheduler.step() was called early",
)
FAILURE = (
    "[rank5]: Traceback (most recent call last):\n"
    "[rank5]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a "
    "total capacity of 79.10 GiB of which 1.31 GiB is free.\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What it took to search all of it."""

    wall_s: float
    cpu_s: float
    peak_mib: float


Round = dict[str, dict[str, Search]]
"""By the kind of logs, then by who searches."""


def measure(rounds: int) -> tuple[Round, ...]:
    """Diagnose logs of 8 nodes, of which one has failed at its end, in turns with grep.

    Raises:
        BenchError: a command failed, or the failure was not named.
    """
    with tempfile.TemporaryDirectory(prefix="ck-bench-") as name:
        desk = Path(name)
        needs = desk / "needs"
        needs.write_text("".join(f"{need}\n" for rule in own_rules() for need in rule.needs))
        found: list[Round] = [{} for _ in range(rounds)]
        for kind in KINDS:
            logs = _write_logs(desk / "logs", kind)
            commands = {
                DIAGNOSE: (str(CLUSTERKIT), "diagnose", "--json", *logs),
                GREP: ("grep", "-a", "-F", "-f", str(needs), *logs),
            }
            for one in found:
                one[kind] = {title: _search(title, argv) for title, argv in commands.items()}
        return tuple(found)


def diagnose_table(rounds: tuple[Round, ...]) -> str:
    """Return the table: seconds and peak memory of each search."""
    document = diagnose_document(rounds)
    head = f"{'1 GiB of logs, 8 nodes':42}{'median s':>9}{'cpu s':>8}{'MiB/s':>8}{'peak MiB':>10}"
    lines = ["", f"{head}  goal"]
    for kind, part in document.items():
        for title, row in part["searches"].items():
            lines.append(
                f"{f'{title}, {kind}':42}{row['wall']['median_s']:9.2f}{row['cpu_s']:8.2f}"
                f"{row['mib_per_s']:8.0f}{row['peak_mib']:10.0f}"
                + (f"  {_goal(row)}" if title == DIAGNOSE else "")
            )
        lines.append(f"{f'{DIAGNOSE} : {GREP}':50}{part['ratio']:.1f}")
    return "\n".join(lines)


def diagnose_document(rounds: tuple[Round, ...]) -> dict[str, Any]:
    """Return the figures for the JSON document."""
    return {kind: _of_kind([one[kind] for one in rounds]) for kind in KINDS}


def _of_kind(rounds: list[dict[str, Search]]) -> dict[str, Any]:
    walls = {title: [one[title].wall_s for one in rounds] for title in (DIAGNOSE, GREP)}
    return {
        "bytes": NODES * EACH,
        "ratio": median_ratio(walls[DIAGNOSE], walls[GREP]),
        "searches": {
            title: {
                "wall": asdict(Figures.of(walls[title])),
                "cpu_s": min(one[title].cpu_s for one in rounds),
                "mib_per_s": NODES * EACH / (1 << 20) / Figures.of(walls[title]).median_s,
                "peak_mib": max(one[title].peak_mib for one in rounds),
            }
            for title in walls
        },
    }


def _goal(row: dict[str, Any]) -> str:
    met = row["wall"]["median_s"] <= GOAL_S and row["peak_mib"] <= GOAL_MIB
    return against(f"{GOAL_S:.0f} s, {GOAL_MIB:.0f} MiB", met=met)


def _write_logs(folder: Path, kind: str) -> list[str]:
    folder.mkdir(exist_ok=True)
    texts = _texts()
    paths = [folder / f"node-{number}.log" for number in range(NODES)]
    for number, path in enumerate(paths):
        with path.open("wb") as stream:
            for turn in itertools.count(number * 1000):
                if stream.tell() >= EACH:
                    break
                lines = _steps(number) if kind == KINDS[0] else _mixed(texts, turn)
                stream.write(("\n".join(lines) + "\n").encode())
            stream.truncate(EACH)
            if number == 5:
                stream.seek(EACH - len(FAILURE) - 1)
                stream.write(f"\n{FAILURE}".encode())
    return [str(path) for path in paths]


def _steps(node: int) -> Iterator[str]:
    for n in range(50_000):
        form = OTHERS[n // 10 % len(OTHERS)] if n % 10 == 0 else STEP
        yield form.format(n=n, rank=node)


def _texts() -> list[str]:
    """Return lines of words."""
    dice = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(dice.choices(letters, k=dice.randint(2, 9))) for _ in range(5000)]
    return [" ".join(dice.choices(words, k=12)) for _ in range(50_000)]


def _mixed(texts: list[str], turn: int) -> Iterator[str]:
    """Yield lines of which no two are alike, as a script prints that shows its samples."""
    others = texts[turn % len(texts) :] + texts[: turn % len(texts)]
    for n, (text, other) in enumerate(zip(texts, others, strict=True)):
        yield f"sample {n}: {text[: turn % 50]}{other[turn % 50 :]}"


def _search(title: str, argv: tuple[str, ...]) -> Search:
    began = time.perf_counter()
    peak = 0.0
    with tempfile.TemporaryFile() as answer:
        with subprocess.Popen(argv, stdout=answer, stderr=subprocess.DEVNULL) as search:
            while os.waitid(os.P_PID, search.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                peak = max(peak, _together_mib(search.pid))
                time.sleep(_LOOK_S)
            _, status, used = os.wait4(search.pid, 0)
            search.returncode = os.waitstatus_to_exitcode(status)
        answer.seek(0)
        said = answer.read()
    wall_s = time.perf_counter() - began
    if title == DIAGNOSE:
        cause = json.loads(said or "{}").get("cause") or {}
        if (cause.get("rule"), cause.get("rank")) != ("cuda-out-of-memory", 5):
            raise BenchError(f"the failure was not named: {cause}")
    elif b"CUDA out of memory" not in said:
        raise BenchError("grep found nothing")
    return Search(wall_s=wall_s, cpu_s=used.ru_utime + used.ru_stime, peak_mib=peak)


def _together_mib(pid: int) -> float:
    """Return the peaks of a process and of those that it has started, added up."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return peak_mib(pid) + sum(_together_mib(int(child)) for child in children)
    except OSError:  # it has ended while it was looked at
        return 0.0
