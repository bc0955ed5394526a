"""What `submit --dry-run` tells of Slurm: the start, what is exceeded, and that nobody answers."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from clusterkit.executors.slurm.states import moment_of
from tests.helpers.command_line import typed_in

CONFIG = "clusters: {a100: {kind: slurm, partition: gpu, gpus_per_node: 8, run_dir: runs}}\n"
SUBMIT = ("submit", "-c", "a100", "--framework", "torchrun", "--dry-run")
START = "2026-11-28T23:10:00"
STARTS = (
    f"sbatch: Job 4711 to start at {START} using 16 processors on nodes n[1-2] in partition gpu"
)
TOGETHER = "the jobs of a user together have at most"
PARTITION = "PartitionName=gpu Default=NO MaxNodes=UNLIMITED MaxTime=2-00:00:00 TotalNodes=4"


def slurm(desk: Path, *, sbatch: str = STARTS, code: int = 0, **tables: str) -> dict[str, str]:
    """Write a Slurm that answers like this; return the PATH with it."""
    tables = {"reservation": "No reservations in the system", "partition": PARTITION, **tables}
    answers = "".join(f"*{key}*) echo '{text}';;\n" for key, text in tables.items())
    programs = {
        "sbatch": f"cat >'{desk}/asked'; echo '{sbatch}' >&2; exit {code}",
        "scontrol": f'case "$*" in\n{answers}esac',
        "sacctmgr": f'case "$*" in\n{answers}*) exit 1;;\nesac',
        "sinfo": 'for i in 1 2 3 4; do echo "n$i|idle|gpu:8"; done',
    }
    folder = desk / "bin"
    folder.mkdir()
    for name, body in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    (tmp_path / "clusterkit.yaml").write_text(CONFIG)
    (tmp_path / "train.py").write_text("")
    return tmp_path


@pytest.mark.parametrize("more", ["", " a", " on cluster east", " on cluster east a"])
def test_start_and_nodes_are_told_of_the_very_script(desk: Path, more: str) -> None:
    """Alone as Slurm 22.05 and 24.11 print it; with "a" as 26.05 does, and of several clusters."""
    path = slurm(desk, sbatch=STARTS.replace(" using", f"{more} using"))
    done = typed_in(desk, *SUBMIT, "--nodes", "2", "train.py", **path)
    assert done.returncode == 0, done.stderr
    assert "would start 11-28 23:10 on n[1-2], as of now" in done.stderr
    assert (desk / "asked").read_text() == done.stdout


def test_all_that_the_request_exceeds_is_told_and_it_is_a_finding(desk: Path) -> None:
    path = slurm(desk, assoc="lab|short|1-00:00:00|node=2|", qos="short|12:00:00||gres/gpu=8|")
    words = (*SUBMIT, "--nodes", "5", "--time", "3-00:00:00", "--json", "train.py")
    done = typed_in(desk, *words, **path)
    assert done.returncode == 1
    forecast = json.loads(done.stdout)["forecast"]
    assert forecast["starts_at"] == moment_of(START)
    assert [problem["message"] for problem in forecast["problems"]] == [
        "5 nodes asked for, but partition gpu has 4",
        "3-00:00:00 asked for, but partition gpu allows 2-00:00:00",
        "3-00:00:00 asked for, but account lab allows 1-00:00:00",
        "5 nodes asked for, but in account lab a job has at most 2 (MaxTRES)",
        "3-00:00:00 asked for, but QOS short allows 12:00:00",
        f"40 GPUs asked for, but in QOS short {TOGETHER} 8 (MaxTRESPU)",
    ]


def test_reservations_that_come_or_end_too_soon_are_told(desk: Path) -> None:
    now = datetime.now(tz=UTC).astimezone()
    begin, end = (f"{now + timedelta(hours=hours):%Y-%m-%dT%H:%M:%S}" for hours in (2, 14))
    row = f"ReservationName=maint StartTime={begin} EndTime={end} Nodes=n[3-9] Flags=MAINT"
    path = slurm(desk, reservation=row)
    long = typed_in(desk, *SUBMIT, "--time", "4:00:00", "train.py", **path)
    assert long.returncode == 0
    assert "reservation maint takes n[3-4] from" in long.stderr
    assert "(--time 01:59:" in long.stderr
    short = typed_in(desk, *SUBMIT, "--time", "1:00:00", "train.py", **path)
    assert "reservation maint" not in short.stderr
    named = ("--set", "sbatch.reservation=maint", "--time", "13:00:00", "train.py")
    inside = typed_in(desk, *SUBMIT, *named, **path)
    assert inside.returncode == 1
    assert "13:00:00 asked for in reservation maint, and 12:00:00 are left" in inside.stderr
    other = typed_in(desk, *SUBMIT, "--set", "sbatch.reservation=main", "train.py", **path)
    assert "no reservation main\nhint: scontrol show reservation lists: maint" in other.stderr


@pytest.mark.parametrize(
    ("sbatch", "code", "said", "returncode"),
    [
        (
            "sbatch: error: allocation failure: Invalid qos specification",
            1,
            "Slurm would refuse the job: Invalid qos specification\nhint: set `qos`",
            1,
        ),
        (
            "sbatch: error: Batch job submission failed: Unable to contact slurm controller",
            1,
            "would start not known: Batch job submission failed: Unable to contact slurm",
            0,
        ),
        ("sbatch: fatal: Could not establish a configuration source", 1, "start not known", 0),
        ("sbatch: Job 1 to start at N/A using 1 processors on nodes n1", 0, "not known", 0),
    ],
)
def test_a_refusal_is_told_apart_from_no_answer(
    desk: Path, sbatch: str, code: int, said: str, returncode: int
) -> None:
    done = typed_in(desk, *SUBMIT, "train.py", **slurm(desk, sbatch=sbatch, code=code))
    assert done.stdout.startswith("#!/bin/bash")
    assert said in re.sub(r"\n +", " ", done.stderr)  # however the terminal wraps it
    assert done.returncode == returncode
