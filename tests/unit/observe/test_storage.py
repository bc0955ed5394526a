"""`clusterkit bench storage`: what is judged of made-up figures, and what is read at all."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clusterkit.observe.bench import storage as answer
from clusterkit.observe.bench.storage import NODE_MTBF_S, Result, interval, read_document
from clusterkit.transport.probe import Unparsed
from tests.helpers.command_line import outcome

GIB = 1 << 30
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run the verb in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*args: str, stdin: str = "") -> tuple[int, str, str]:
        return outcome("bench", "storage", *args, stdin=stdin)

    return run


def part(mb_per_s: float, size: int = GIB, source: str = "disk") -> dict[str, Any]:
    seconds = size / 1e6 / mb_per_s
    write = {"bytes": size, "seconds": seconds, "fsync_s": seconds / 2}
    return {"write": write, "read": {"bytes": size, "seconds": seconds / 2, "from": source}}


def rank(node: str = "n1", slot: int = 0, mb_per_s: float = 500.0, **changes: Any) -> Any:
    me = {"node": node, "slot": slot, "path": "/shared", "file_system": "nfs4", "size": GIB}
    small = {"files": 1000, "bytes": 16384, "seconds": 2.0}
    first = {"one": part(mb_per_s), "small": small} if slot == 0 else {}
    return {**me, **first, "all": part(mb_per_s, GIB // 2), **changes}


def document(*ranks: Any, **changes: Any) -> dict[str, Any]:
    head = {"schema": 1, "kind": "clusterkit-storage", "complete": True, "torch": "2.9.0"}
    return {**head, "ranks": list(ranks), **changes}


def both(node: str, mb_per_s: float = 500.0) -> tuple[Any, Any]:
    return rank(node, 0, mb_per_s), rank(node, 1, mb_per_s)


def found(*ranks: Any, **changes: Any) -> list[tuple[str, str, str]]:
    result = read_document(document(*ranks, **changes))
    return [(one.kind, one.where, one.summary) for one in answer.findings(result)]


def test_rates_are_those_of_all_processes_of_a_node() -> None:
    result = read_document(document(*both("n1"), *both("n2", 400)))
    one, two = answer.nodes(result)
    assert (one.write, one.write_all, one.read) == pytest.approx((5e8, 1e9, 1e9))
    assert (two.write_all, two.small_per_s) == pytest.approx((8e8, 500))
    assert two.checkpoint_s == pytest.approx(GIB / 8e8)
    assert answer.findings(result) == ()
    late = {**rank("n1", 1), "all": part(100, GIB // 2)}
    (node,) = answer.nodes(read_document(document(rank(), late)))
    assert node.write_all == pytest.approx(2e8), "as slow as its last process"


def test_a_slow_node_is_named() -> None:
    slow = found(*both("n1"), *both("n2"), *both("n3", 200))
    assert slow[0] == ("slow", "n3", "one process writes: 200 MB/s, 40% of the median of 3")
    assert [one[1] for one in slow] == ["n3"] * 4, "writes and reads; small files are as fast"
    assert found(*both("n1", 100)) == [], "nothing to compare with"


def test_nodes_that_cannot_write_are_named_once() -> None:
    full = {"error": "it is too full: 0.1 GB of 80.0 GB are free", "all": None}
    ranks = [*both("n1"), rank("n2", 0, **full, one=None), rank("n2", 1, **full), None]
    result = read_document(document(*ranks), names=["n1", "n1", "n2", "n2", "n3"])
    assert [(one.kind, one.where) for one in answer.findings(result)] == [
        ("failed", "n2, rank 2"),
        ("silent", "n3, rank 4"),
    ]
    assert not read_document(document(None)).measured
    assert found(*both("n1"), None, complete=False) == [], "the job tells why it ended early"


def test_one_process_alone_is_its_node() -> None:
    result = read_document(document(rank(all=None)))
    (node,) = answer.nodes(result)
    assert node.write_all is None
    assert node.checkpoint_s == pytest.approx(GIB / 5e8)
    cut_off = {**part(100), "write": {"bytes": GIB // 4, "seconds": 60.0, "fsync_s": 1.0}}
    (node,) = answer.nodes(read_document(document(rank(all=None, one=cut_off))))
    assert node.checkpoint_s == pytest.approx(240), "of the whole, though it was cut off"


def test_the_interval_is_that_of_young_and_daly() -> None:
    """Against the optimum of Daly's complete model, found by trying."""
    for write_s, mtbf_s in ((60.0, 86_400.0), (300.0, 3 * 3600.0), (5.0, 600_000.0)):
        found = interval(write_s, mtbf_s)
        assert found.young_s == pytest.approx(math.sqrt(2 * write_s * mtbf_s))

        def wall(every: float, write_s: float = write_s, mtbf_s: float = mtbf_s) -> float:
            return mtbf_s * (math.exp((every + write_s) / mtbf_s) - 1) / every

        best = min(range(1, 40_000), key=wall)
        assert found.daly_s == pytest.approx(best, rel=0.01)
        assert found.lost == pytest.approx(wall(best) - 1, rel=0.2)
    never = interval(1000.0, 400.0)
    assert (never.daly_s, never.lost) == (400.0, 1.0)


def test_the_time_between_failures_is_that_of_all_nodes() -> None:
    result = read_document(document(*both("n1"), *both("n2")))
    guessed = answer.checkpoints(result)
    assert guessed is not None
    assert guessed.mtbf_s == NODE_MTBF_S / 2
    told = answer.checkpoints(result, 3600.0)
    assert told is not None
    assert (told.mtbf_s, told.write_s) == (3600.0, guessed.write_s)
    assert answer.checkpoints(Result()) is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"one": {"write": {"bytes": 0, "seconds": 1.0, "fsync_s": 0.0}}}, "one.write.bytes"),
        ({"one": {"write": {"bytes": 1, "seconds": 0.0, "fsync_s": 0.0}}}, "one.write.seconds"),
        ({"one": {"write": {"bytes": 1, "seconds": math.nan, "fsync_s": 0.0}}}, "seconds"),
        ({"all": part(1, source="thin air")}, "all.read.from"),
        ({"small": {"files": 1 << 50, "bytes": 1, "seconds": 1.0}}, "small.files"),
        ({"size": -1}, "ranks[0].size"),
        ({"node": "n" * 400}, "ranks[0].node"),
        ({"path": "/" * 5000}, "ranks[0].path"),
    ],
    ids=str,
)
def test_what_no_rank_can_say_is_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises(Unparsed, match=re.escape(why)):
        read_document(document(rank(**change)))


def test_the_answer_is_shown(run: Run) -> None:
    ranks = (*both("n1"), *both("n2", 150), rank("n3", error="cannot write to it: Read-only"))
    code, out, err = run("--from", "-", "--mtbf", "8h", stdin=json.dumps(document(*ranks)))
    assert (code, err) == (1, "")
    assert "5 ranks: n[1-3]; /shared (nfs4); 1.1 GB per node" in out
    assert re.search(r"^n2 +150 +300 +300 +600 +500 +3.58 s$", out, re.MULTILINE)
    assert "checkpoint every 7:32 min (Daly; Young 7:34 min): one of 1.1 GB per node" in out
    assert "every 8:00 h; " in out
    assert "failed: n3, rank 4: /shared: cannot write to it: Read-only" in out
    code, out, _ = run("--from", "-", "--json", stdin=json.dumps(document(*ranks)))
    told = json.loads(out)
    assert (code, told["job"], len(told["nodes"])) == (1, None, 3)
    assert told["processes"][0]["one"]["read"]["from"] == "disk"
    empty = json.loads(json.dumps(answer.document(Result())))
    assert {"schema", "job", *empty} == told.keys()


def test_reads_of_memory_are_called_that(run: Run) -> None:
    said = document(rank(one=part(500, source="memory"), all=None))
    _, out, _ = run("--from", "-", stdin=json.dumps(said))
    assert "keeps what was written in memory: reads are of that" in out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--size", "big"), "--size big"),
        (("--size", "1K"), "from 1M to 16T"),
        (("--mtbf", "soon"), "--mtbf soon: not a length of time"),
        (("--nodes", "2:4"), "fixed size"),
        (("--from", "-"), "its kind is None"),
    ],
    ids=" ".join,
)
def test_what_makes_no_sense_is_refused(run: Run, words: tuple[str, ...], why: str) -> None:
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert why in err


def test_the_job_is_shown_before_it_is_submitted(run: Run) -> None:
    code, out, err = run("--dry-run")
    assert code == 0, err
    assert "clusterkit_storage.py" in out


def test_where_no_node_can_write_there_is_no_table_and_none_to_leave_out(run: Run) -> None:
    failed = {"node": "n1", "slot": 0, "path": "/gone", "error": "cannot write to it: No such file"}
    code, out, _ = run("--from", "-", stdin=json.dumps(document(failed)))
    assert code == 1
    assert out == "1 rank: n1\n\nfailed: n1, rank 0: /gone: cannot write to it: No such file\n"
