"""Jobs that failed for real on the practice cluster: `diagnose` names cause, node and rank of each.

What is read here was recorded there (tests/data/failures). Some fail again with each run of the
tests (tests/lab/test_diagnose.py), one for each way by which the word of a failure comes:

| job | by what it fails | who says so | tested |
| --- | --- | --- | --- |
| argument, disk, file, host-name, library | a rank's own Python | its last lines | recorded |
| memory, module, nan, permission, port | a rank's own Python | its last lines | recorded |
| exception | a rank's own Python | torchrun, by its error file | recorded |
| crash, exit, killed | a signal, or an exit code | clusterkit's worker on the node | recorded |
| tensor, rendezvous, interface | torch | its messages, on each rank | recorded |
| collective, unused, uneven | torch | its messages, on each rank | recorded |
| deepspeed | DeepSpeed | its messages, and its launcher | recorded |
| uneven-horovod | a rank that is through | clusterkit's worker on the node | recorded |
| cancel | `clusterkit cancel` | the scheduler | live |
| preempted | a more urgent job | the scheduler | live |
| killed-rank | a signal | torchrun | live |
| version | one host differs from the others | the logs of all of them, compared | live |
| shared-memory | a full /dev/shm | the kernel, by SIGBUS | live |
| time-limit | the limit of a job over ssh | the executor; nothing is printed | live |
| hang | gloo, which waits for a rank | torch, on a rank that is not at fault | live |
| shapes | Horovod | its report, on all ranks | live |
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clusterkit.cli.frame.main import app
from clusterkit.executors.run import node_results
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.jobs.state.load import load_job
from clusterkit.observe.diagnose.facts import known_of
from clusterkit.observe.diagnose.rules import own_rules
from clusterkit.observe.diagnose.verdict import Known, diagnose
from tests.helpers.failure_records import recorded
from tests.helpers.lab_failures import FAILURES, LIVE

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
TABLE = {
    name: row[3]
    for line in (__doc__ or "").splitlines()
    if len(row := [cell.strip() for cell in line.strip("|").split("|")]) == 4
    for name in row[0].split(", ")
}


def test_the_table_says_which_job_fails_anew() -> None:
    live = {name for name, tested in TABLE.items() if tested == "live"}
    assert live == {*LIVE, "cancel", "preempted"}
    assert {name for name, tested in TABLE.items() if tested == "recorded"} == (
        FAILURES.keys() - set(LIVE)
    )


@pytest.mark.parametrize("name", FAILURES)
def test_the_cause_its_node_and_its_rank_are_named(name: str, tmp_path: Path) -> None:
    failure, run = FAILURES[name], recorded(name, tmp_path)
    told = CliRunner().invoke(app, ["diagnose", str(run.path), "--json"])
    cause = json.loads(told.stdout)["cause"]
    assert (told.exit_code, cause["rule"]) == (1, failure.rule)
    assert load_job(run).status.state == failure.state
    if failure.rank is not None:
        results = node_results.read_results(run, node_results.latest_attempt(run)).nodes
        nodes = {result.node_rank: result.node for result in results}
        assert (cause["node"], cause["rank"]) == (nodes[failure.rank], failure.rank)


def test_of_a_cancelled_job_it_is_said_that_it_was(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["diagnose", str(recorded("cancel", tmp_path).path), "--json"])
    assert (told.exit_code, json.loads(told.stdout)["cause"]["rule"]) == (0, "cancelled")


@pytest.mark.parametrize("name", [*FAILURES, "cancel"])
def test_in_any_order_and_with_noise_the_answer_is_the_same(name: str, tmp_path: Path) -> None:
    run, chance = recorded(name, tmp_path), random.Random(name)
    plain = answer(run, chance)
    for _ in range(3):
        run = recorded(name, tmp_path)
        for log in run.logs.glob("*.log"):
            log.write_text(shuffled(log.read_text(), chance))
        assert answer(run, chance) == plain


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
