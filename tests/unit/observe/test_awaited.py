"""Of errors of NCCL that are about another rank, the other is named and not who prints them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.observe.test_diagnose_verb import told

CLOSED = (
    "{0}:223:240 [0] misc/socket.cc:50 NCCL WARN socketProgress: "
    "Connection closed by remote peer {1}<40318>\n"
)
TIMEOUT = (
    "[rank{0}]:[E321 02:07:08.4 ProcessGroupNCCL.cpp:607] [Rank {0}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum={1}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
    "Timeout(ms)=600000) ran for 600060 milliseconds before timing out.\n"
)
WORK = (
    "[rank{0}]:[E321 02:07:09.4 ProcessGroupNCCL.cpp:1664] [PG ID {3} PG GUID 0(default_pg) "
    "Rank {0}] {2}, last completed NCCL work: 1.\n"
)
GAVE_UP = (
    "Exception (either an error or timeout) detected by watchdog at work: {0}, "
    "last enqueued NCCL work: {1}"
)
FAILED = "failure detected by watchdog at work sequence id: {0} PG status: last enqueued work: {1}"


def cause(folder: Path, *logs: str) -> dict[str, Any]:
    for rank, text in enumerate(logs):
        (folder / f"node-{rank}.log").write_text(text)
    found: dict[str, Any] = json.loads(told(folder, "--json").stdout)["cause"]
    return found


def work(rank: int, at: int, last: int, words: str = GAVE_UP) -> str:
    return WORK.format(rank, at, words.format(at, last), rank)


@pytest.mark.parametrize(
    ("pairs", "blamed"),
    [
        (["n0 n2.site", "n1 n2.site", "n3 n0.site"], "n2.site"),  # n0 has told itself
        (["n0 10.0.0.2", "n1 10.0.0.2", "n3 10.0.0.1"], "10.0.0.2"),
        (["n0 10.0.0.2"], "10.0.0.2"),
        (["n0 10.0.0.2", "n1 10.0.0.3"], "n0"),  # as many name the one as the other
        (["n0 n1", "n1 n0"], "n0"),
    ],
)
def test_whose_connections_were_lost_is_named(
    tmp_path: Path, pairs: list[str], blamed: str
) -> None:
    found = cause(tmp_path, *(CLOSED.format(*pair.split()) for pair in pairs))
    assert found["rule"] == "nccl-remote-error"
    assert found["node"] == blamed
    assert (f"{blamed} was lost by" in found["says"]) == (blamed != "n0")


@pytest.mark.parametrize("words", [GAVE_UP, FAILED])
def test_who_has_not_called_what_most_wait_in_is_named(tmp_path: Path, words: str) -> None:
    logs = [TIMEOUT.format(rank, 7) + work(rank, 7, 8) for rank in (0, 1, 3)]
    found = cause(tmp_path, *logs, work(2, 6, 6, words))
    assert (found["rule"], found["rank"], found["ranks"]) == ("nccl-watchdog-timeout", 2, [0, 1, 3])
    assert found["says"].endswith("3 ranks wait in work 7 of NCCL, which rank 2 had not called.")
    assert "rank 2; told by ranks 0-1,3" in told(tmp_path).stdout


@pytest.mark.parametrize("last", [(8, 8), (8, 6), (6, 9)])
def test_where_no_more_wait_than_are_behind_nobody_is(
    tmp_path: Path, last: tuple[int, int]
) -> None:
    ats = [min(7, one) for one in last]
    logs = [TIMEOUT.format(rank, at) + work(rank, at, last[rank]) for rank, at in enumerate(ats)]
    assert "had not called" not in cause(tmp_path, *logs)["says"]


def test_where_each_waits_in_another_work_the_lowest_is_named(tmp_path: Path) -> None:
    found = cause(tmp_path, *(TIMEOUT.format(rank, at) for rank, at in enumerate((56, 5, 9))))
    assert (found["rule"], found["rank"], found["ranks"]) == ("nccl-watchdog-timeout", 1, [0, 1, 2])
    assert "The lowest is 5, in which rank 1 waited; rank 0 had come to 56." in found["says"]


def test_a_rank_of_a_process_group_is_told_by_its_number_in_the_job(tmp_path: Path) -> None:
    log = "".join(
        TIMEOUT.format(rank, at).replace(f"[Rank {rank}]", f"[Rank {rank % 4}]")
        + f"  what():  [PG ID 1 PG GUID 6 Rank {rank % 4}] Process group watchdog thread "
        f"terminated with exception: {TIMEOUT.format(rank % 4, at).partition('] ')[2]}"
        for rank, at in ((8, 73), (12, 2), (13, 73))
    )
    found = cause(tmp_path, log)
    assert (found["rank"], found["ranks"]) == (12, [8, 12, 13])
    assert "The lowest is 2, in which rank 12 waited; ranks 8,13 had come to 73." in found["says"]
