"""Jobs on the practice cluster that fail for real: `diagnose` names cause, node and rank of each.

All are submitted before the first is looked at, so that they run side by side.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.jobs.state.load import load_job
from clusterkit.observe.diagnose.facts import known_of
from clusterkit.observe.diagnose.rules import own_rules
from clusterkit.observe.diagnose.verdict import Known, diagnose
from tests.helpers.desk import Desk
from tests.helpers.lab_failures import FAILURES, sick_host
from tests.lab.lab import Lab
from tests.unit.executors.test_worker import wait_until

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1200)]

NOISE = (
    "2026-11-22 14:00:00,000 INFO worker.py:1852 -- Connected.",
    "/env/lib/python3.11/site-packages/x.py:12: UserWarning: the default will change",
    (
        "[W1122 14:00:00.105 socket.cpp:464] [c10d] The hostname of the client socket cannot be"
        " retrieved. err=-3"
    ),
    "\x1b[33mval loss 2.31 errors 0\x1b[0m",
    " 10%|#         | 1/10 [00:01<00:09]\r 20%|##        | 2/10 [00:02<00:08]",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A job that has failed, and what `diagnose JOB --json` says of it."""

    job: dict[str, Any]
    found: dict[str, Any]

    def __str__(self) -> str:
        logs = Path(self.job["run_dir"], "logs").glob("*.log")
        return "\n".join((json.dumps(self.found, indent=1), *(log.read_text() for log in logs)))


@pytest.fixture(scope="module")
def failed(lab: Lab) -> dict[str, Failed]:
    """Let all the jobs fail, and cancel one more."""
    desk = Desk.of(lab, "diagnose")
    with sick_host(desk), ThreadPoolExecutor(4) as pool:
        cancelled = submit(desk, desk.write("sleep.py", "import time\ntime.sleep(300)\n"))
        started = list(pool.map(lambda name: submitted(desk, name), FAILURES))
        desk.clusterkit("cancel", cancelled["job_id"])
        ended = list(pool.map(lambda job: diagnosed(desk, job), (*started, cancelled)))
    return dict(zip((*FAILURES, "cancel"), ended, strict=True))


def submitted(desk: Desk, name: str) -> dict[str, Any]:
    failure = FAILURES[name]
    script = desk.write(f"fails-{name}.py", failure.script)
    words = ("--framework", failure.framework, "--nodes", str(failure.nodes), *failure.words)
    return submit(desk, *words, script, *failure.args)


def submit(desk: Desk, *words: str) -> dict[str, Any]:
    fixed = ("--preflight", "off", "--gpus-per-node", "1", "--framework", "env")
    return desk.submit(*fixed, *words)


def diagnosed(desk: Desk, job: dict[str, Any]) -> Failed:
    """Wait for the end of a job, and diagnose it."""
    ended = desk.clusterkit("wait", job["job_id"], "--json", timeout_s=600)
    found = desk.clusterkit("diagnose", job["job_id"], "--json")
    told = Failed(job=json.loads(ended.stdout), found=json.loads(found.stdout))
    assert found.returncode == (told.job["state"] != "cancelled"), f"{told}{found.stderr}"
    return told


@pytest.mark.parametrize("name", FAILURES)
def test_the_cause_its_node_and_its_rank_are_named(name: str, failed: dict[str, Failed]) -> None:
    failure, told = FAILURES[name], failed[name]
    cause = told.found["cause"]
    assert (told.job["state"], cause["rule"]) == (failure.state, failure.rule), told
    if failure.rank is not None:
        nodes = {node["node_rank"]: node["node"] for node in told.job["nodes"]}
        assert (cause["node"], cause["rank"]) == (nodes[failure.rank], failure.rank), told


def test_of_a_cancelled_job_it_is_said_that_it_was(failed: dict[str, Failed]) -> None:
    assert failed["cancel"].found["cause"]["rule"] == "cancelled"


def test_of_a_preempted_job_it_is_said_that_it_was(lab: Lab) -> None:
    """Slurm calls one that ends in its grace time failed."""
    desk = Desk.of(lab, "preempted")
    script = desk.write("sleep.py", "import time\nprint('on', flush=True)\ntime.sleep(300)\n")
    job = submit(desk, "--set", "sbatch.partition=low", "--nodes", "2", script)
    log = RunFolder(Path(job["run_dir"])).log(1)
    wait_until(lambda: log.exists() and "on" in log.read_text(), 60)
    urgent = ("sbatch", "--partition=high", "--nodes=3", "--exclusive", "--wrap=sleep 1")
    lab.run("head", urgent, cwd=desk.folder, check=True)
    told = diagnosed(desk, job)
    assert (told.job["state"], told.found["cause"]["rule"]) == ("preempted", "preempted"), told


@pytest.mark.parametrize("seed", range(3))
def test_in_any_order_and_with_noise_the_answer_is_the_same(
    seed: int, failed: dict[str, Failed], tmp_path: Path
) -> None:
    chance = random.Random(seed)
    for name, told in failed.items():
        run = Path(told.job["run_dir"])
        plain = answer(RunFolder(run), chance)
        copy = tmp_path / run.name
        shutil.copytree(run, copy, ignore=shutil.ignore_patterns("*.pkl"))
        for log in (copy / "logs").glob("*.log"):
            log.write_text(shuffled(log.read_text(errors="replace"), chance))
        assert answer(RunFolder(copy), chance) == plain, name


def answer(run: RunFolder, chance: random.Random) -> tuple[str, str | None, int | None]:
    """Return rule, node and rank of the cause, with the files read in any order."""
    told, found, _ = known_of(load_job(run))
    sources = chance.sample(found, len(found))
    known = Known(folder=run.path, facts=told.facts, first=told.first)
    cause = diagnose(own_rules(), sources, known).cause
    assert cause is not None
    return cause.rule, cause.node, cause.rank


def shuffled(text: str, chance: random.Random) -> str:
    """Mix what different ranks say in another way, and other programs' lines between it.

    What one of them says keeps its order.
    """
    of_rank: dict[str, list[str]] = {}
    for line in text.splitlines():
        rank = re.match(r"\[rank\d+\]:|", line)[0]  # type: ignore[index]
        of_rank.setdefault(rank, []).append(line)
    speakers = [rank for rank, lines in of_rank.items() for _ in lines]
    chance.shuffle(speakers)
    mixed = []
    for speaker in speakers:
        mixed += [*chance.choices(NOISE, k=chance.randrange(3)), of_rank[speaker].pop(0)]
    return "".join(f"{line}\n" for line in mixed)
