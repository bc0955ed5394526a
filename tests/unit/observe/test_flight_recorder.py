"""Dumps of PyTorch's flight recorder: who did not come, and dumps that are none."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from clusterkit.observe.diagnose.flight_dump import (
    LARGEST,
    NotADumpError,
    looks_like_dump,
    read_dump,
)
from clusterkit.observe.diagnose.flight_recorder import Recorded, read_recorders
from tests.unit.observe.test_diagnose_verb import job, told

HELD = Path(__file__).parents[2] / "data" / "flight-recorder"
NOW_NS = int(time.time() * 1e9)
FRAMES = [
    {"filename": "/venv/lib/python3.12/site-packages/torch/dist.py", "line": 9, "name": "f"},
    {"filename": "/home/ada/train.py", "line": 13, "name": "step"},
]
DONE = "completed"


def entry(number: object, state: str = "scheduled", **changes: Any) -> dict[str, Any]:
    """Return a call as PyTorch records it; with `group` and `op`, of that."""
    group = changes.pop("group", "default_pg")
    sizes = changes.pop("sizes", [[4, 2]])
    return {
        "frames": FRAMES, "record_id": number, "pg_id": 0, "process_group": (group, group),
        "collective_seq_id": number, "p2p_seq_id": 0, "op_id": number,
        "profiling_name": f"{changes.pop('backend', 'nccl')}:{changes.pop('op', 'all_reduce')}",
        "time_created_ns": NOW_NS - 600 * 10**9, "input_sizes": sizes, "input_dtypes": ["Float"],
        "output_sizes": sizes, "output_dtypes": ["Float"], "state": state, "retired": False,
        "timeout_ms": 600_000, "is_p2p": False, **changes,
    }  # fmt: skip


def calls(done: int, last: int, **changes: Any) -> list[dict[str, Any]]:
    """Return calls up to `last`, of which `done` have ended."""
    return [entry(n, DONE if n <= done else "scheduled", **changes) for n in range(1, last + 1)]


def document(entries: Sequence[object], ranks: Mapping[str, str] | None = None) -> dict[str, Any]:
    config = {
        name: {"name": name, "desc": name, "ranks": text} for name, text in (ranks or {}).items()
    }
    for one in entries[:1]:
        if isinstance(one, dict):
            one["record_id"] = 0
    return {"version": "2.10", "entries": entries, "pg_config": config, "pg_status": {}}


def recorded(
    folder: Path, *of_ranks: Sequence[object] | None, ranks: Mapping[str, str] | None = None,
    as_json: bool = False, failed: int | None = None,
) -> Recorded:  # fmt: skip
    """Write a dump for each rank that has calls, and read them."""
    known = ranks or {"default_pg": str(list(range(len(of_ranks))))}
    paths = [folder / f"rank-{rank}" for rank, of in enumerate(of_ranks) if of is not None]
    for path, entries in zip(paths, (of for of in of_ranks if of is not None), strict=True):
        text = document(entries, known)
        path.write_bytes(json.dumps(text).encode() if as_json else pickle.dumps(text, 2))
    return read_recorders(paths, failed=failed)


def fact(found: Recorded) -> str | None:
    return next((one.text.removeprefix("clusterkit fact: ") for one in found.facts), None)


def test_of_real_gloo_runs_the_rank_that_stayed_away_is_named() -> None:
    answer = told(HELD / "missing")
    assert answer.exit_code == 1
    said = " ".join(answer.stdout.split())
    assert said.startswith("what rank 2 did not come to a collective (all_reduce).")
    assert "ranks 0-1,3 wait at /tmp/desk/train.py:35 in all_reduce, number 4 of default_pg" in said
    assert "the last of rank 2 was all_reduce, number 3 at /tmp/desk/train.py:28." in said


def test_of_real_gloo_runs_the_call_that_differs_is_named() -> None:
    answer = told(*sorted((HELD / "differing").iterdir()), "--json")
    cause = json.loads(answer.stdout)["cause"]
    assert cause["rule"] == "collective-calls"
    assert "Rank 1 was in broadcast [16] Float at /tmp/desk/train.py:33" in cause["says"]
    assert "ranks 0,2-3 in all_reduce [16] Float" in cause["says"]


def test_of_a_real_run_that_is_well_nothing_is_told() -> None:
    answer = told(HELD / "well")
    assert (answer.exit_code, answer.stderr) == (0, "")
    assert answer.stdout == "no failure known to clusterkit in 4 logs (7968 bytes)\n"


def keep(folder: Path, *, attempt: int) -> Path:
    """Have the dumps of a real run in a folder of results, under the names that node.sh gives."""
    folder.mkdir(parents=True)
    for dump in (HELD / "missing").iterdir():
        shutil.copy(dump, folder / f"flight-recorder-{attempt}-{dump.name}")
    return folder


@pytest.mark.parametrize("below", ["results", "results/node-1"])
def test_with_the_watchdog_in_the_log_a_job_s_own_dumps_name_the_rank(
    tmp_path: Path, below: str
) -> None:
    run = job(tmp_path, rank=0, exit_code=134)
    run.log(0).write_text(
        "[rank0]:[E1121 12:00:00.123456789 ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
        "Timeout(ms)=600000) ran for 600028 milliseconds before timing out.\n"
        "[rank0]: Traceback (most recent call last):\n"
        "[rank0]: RuntimeError: NCCL communicator was aborted\n"
    )
    run.log(1).write_text("step 3\n")
    dumps = keep(run.path / below, attempt=0)
    answer = json.loads(told(run.path, "--json").stdout)
    assert answer["cause"]["rule"] == "collective-rank-missing"
    assert answer["cause"]["title"].startswith("rank 2 did not come")
    assert answer["cause"]["evidence"]["file"] == str(dumps)
    assert "nccl-watchdog-timeout" in {one["rule"] for one in answer["others"]}
    run.log(1).write_text(
        "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    )
    assert json.loads(told(run.path, "--json").stdout)["cause"]["rule"] == "cuda-out-of-memory"


def test_dumps_of_an_earlier_attempt_tell_nothing_of_the_last(tmp_path: Path) -> None:
    run = job(tmp_path)
    run.log(0).write_text("ValueError: x\n")
    keep(run.results, attempt=1)
    assert json.loads(told(run.path, "--json").stdout)["cause"]["rule"] == "python-exception"


@pytest.mark.parametrize("as_json", [True, False])
def test_whoever_has_not_called_what_has_not_ended_is_missing(
    tmp_path: Path, *, as_json: bool
) -> None:
    found = recorded(tmp_path, calls(3, 6), calls(3, 5), calls(3, 3), as_json=as_json)
    assert looks_like_dump(tmp_path / "rank-2")
    said = fact(found) or ""
    assert said.startswith("collective-missing=rank 2 not in all_reduce, number 4 of default_pg")
    assert "([4, 2] Float); ranks 0-1 wait at /home/ada/train.py:13; the last of rank 2" in said
    assert found.notes == ()


def test_a_rank_that_has_called_nothing_is_missing(tmp_path: Path) -> None:
    said = fact(recorded(tmp_path, calls(0, 1), [])) or ""
    assert said.endswith("rank 1 had called none")


def test_whoever_only_calls_ahead_makes_nobody_missing(tmp_path: Path) -> None:
    found = recorded(tmp_path, calls(3, 9), calls(3, 4))
    assert (fact(found) or "").startswith("collective-stuck=all_reduce, number 4 of default_pg")
    assert fact(recorded(tmp_path, calls(4, 4), calls(4, 4))) is None
    assert fact(recorded(tmp_path, calls(3, 3), calls(4, 4))) is None


def test_whom_another_group_holds_is_not_whom_they_wait_for(tmp_path: Path) -> None:
    ranks = {"dp": "[0, 1]", "tp": "[1, 2]"}
    held = [*calls(2, 2, group="dp"), *calls(4, 5, group="tp")]
    found = recorded(tmp_path, calls(2, 3, group="dp"), held, calls(4, 4, group="tp"), ranks=ranks)
    assert (fact(found) or "").startswith("collective-missing=rank 2 not in all_reduce, number 5")


def test_ranks_that_wait_for_each_other_in_two_groups(tmp_path: Path) -> None:
    ranks = {"dp": "[0, 1]", "tp": "[0, 1]"}
    one = [*calls(2, 3, group="dp"), *calls(2, 2, group="tp")]
    other = [*calls(2, 2, group="dp"), *calls(2, 3, group="tp", op="broadcast")]
    said = fact(recorded(tmp_path, one, other, ranks=ranks)) or ""
    assert said.startswith("collective-mismatch=rank 0 in all_reduce, number 3 of dp")
    assert "; rank 1 in broadcast, number 3 of tp" in said


def test_a_rank_without_a_dump_is_told_and_not_blamed(tmp_path: Path) -> None:
    found = recorded(tmp_path, calls(3, 4), calls(3, 4), None)
    assert found.facts == ()
    assert found.notes == ("flight recorder: no dump of rank 2",)
    found = recorded(tmp_path, calls(3, 4), calls(3, 3), None)
    assert (fact(found) or "").startswith("collective-missing=rank 1")
    assert found.notes == ("flight recorder: no dump of rank 2",)
    assert recorded(tmp_path, calls(3, 4), calls(3, 3), None, failed=2).facts == ()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"sizes": [[8]]}, None),  # as many elements
        ({"sizes": [[9]]}, "rank 1 in all_reduce [9] Float"),
        ({"input_dtypes": ["Half"]}, "rank 1 in all_reduce [4, 2] Half"),
        ({"op": "broadcast"}, "rank 1 in broadcast [4, 2] Float"),
    ],
)
def test_what_does_not_go_together_at_one_number(
    tmp_path: Path, changes: dict[str, Any], told: str | None
) -> None:
    other = [*calls(3, 3), entry(4, **changes)]
    said = fact(recorded(tmp_path, calls(3, 4), other, calls(3, 4))) or ""
    if told is None:
        assert said.startswith("collective-stuck=")
    else:
        assert said.startswith(f"collective-mismatch={told} at ")
        assert said.endswith("number 4 of default_pg")


@pytest.mark.parametrize("op", ["all_gather", "all_to_all", "scatter", "reduce_scatter"])
def test_what_each_rank_may_bring_as_much_of_as_it_likes(tmp_path: Path, op: str) -> None:
    found = recorded(tmp_path, calls(0, 1, op=op), calls(0, 1, op=op, sizes=[[9]]))
    assert (fact(found) or "").startswith("collective-stuck=")


def test_numbers_of_a_group_that_also_sends_are_not_compared(tmp_path: Path) -> None:
    sends = entry(2, is_p2p=True, op="send 0->1")
    assert recorded(tmp_path, [*calls(3, 4), sends], calls(3, 3)).facts == ()


def test_a_call_that_is_young_makes_nobody_missing(tmp_path: Path) -> None:
    young = entry(4, time_created_ns=time.time_ns())
    assert recorded(tmp_path, [*calls(3, 3), young], calls(3, 3)).facts == ()


class Runs:
    """What runs a command where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/clusterkit-flight-recorder-ran",)


def nested(code: bytes, count: int) -> bytes:
    return b"\x80\x02N" + code * count + b"."


HOSTILE = {
    "runs": pickle.dumps({"version": "2.10", "entries": [Runs()]}),
    "names": b"\x80\x02cos\nsystem\n.",
    "protocol-0": pickle.dumps(Runs(), 0),
    "extension": b"\x80\x02\x82\x01.",
    "persistent": b"\x80\x02X\x01\x00\x00\x00aQ.",
    "empty": b"",
    "text": b"rank 0 waits\n",
    "gzip": b"\x1f\x8b\x08\x00" + b"\x00" * 64,
    "nul": b"\x80\x02" + b"\x00" * 64,
    "cut": pickle.dumps(document([entry(1)]), 2)[:-40],
    "no-end": b"\x80\x02}",
    "underflow": b"\x80\x02\x86.",
    "no-mark": b"\x80\x02]Ne.",
    "memo": b"\x80\x02h\x07.",
    "huge-memo": b"\x80\x02Nr\xff\xff\xff\xff.",
    "huge-text": b"\x80\x02X\xff\xff\xff\xffa.",
    "huge-bytes": b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7fa.",
    "huge-number": b"\x80\x02\x8b\xff\xff\xff\x7fa.",
    "long-number": b"\x80\x02I" + b"9" * 100_000 + b"\n.",
    "lists": nested(b"]", 2_000_000),
    "marks": nested(b"(", 2_000_000),
    "tuples": nested(b"\x85", 2_000_000),
    "deep-key": b"\x80\x02}N" + b"\x85" * 1_000_000 + b"Ns.",
    "deep": b"\x80\x02" + b"](" * 500_000 + b"e" * 500_000 + b".",
    "itself": b"\x80\x02]q\x00h\x00a.",
    "not-utf-8": b"\x80\x02X\x01\x00\x00\x00\xff.",
    "foreign": pickle.dumps({"model": [1.5, None, True]}),
    "version": pickle.dumps({"version": "9.1", "entries": []}),
    "number-version": pickle.dumps({"version": 2.1, "entries": []}),
    "memoized": nested(b"\x94", 2_000_000),
    "json-lists": b"[" + b"[]," * 2_000_000 + b"[]]",
    "json": b"[" * 100_000,
    "json-cut": b'{"entries": [',
    "json-number": b'{"entries": ' + b"9" * 10_000 + b"}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_dump_is_told_in_a_line_and_never_run(tmp_path: Path, name: str) -> None:
    (tmp_path / "rank-0").write_bytes(HOSTILE[name])
    found = read_recorders([tmp_path / "rank-0"])
    assert found.facts == ()
    (note,) = found.notes
    assert note.startswith("flight recorder: rank-0: ")
    assert "\n" not in note
    assert not Path("/tmp/clusterkit-flight-recorder-ran").exists()


def test_files_that_are_none_at_all(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe-1")
    (tmp_path / "link-2").symlink_to(HELD / "missing" / "rank-0")
    (tmp_path / "large-3").write_bytes(b"\x80\x02" + b"N" * LARGEST)
    (tmp_path / "without").write_bytes(b"")
    paths = [tmp_path / name for name in ("pipe-1", "link-2", "large-3", "gone-4", "without")]
    found = read_recorders(paths)
    assert len(found.notes) == 5
    assert not any(map(looks_like_dump, paths))


ODD: list[Any] = [
    None, -1, float("nan"), float("inf"), 1 << 200, "x", "4", [], {}, [[]], [["x"]], [[-1]], True,
    "\x1b[31m;\n", "nccl:" + "x" * 10_000, ("a",), (1, 2), [[1 << 60] * 500], [{"filename": 3}],
    [{"filename": "/a\n;b.py", "line": "x"}],
]  # fmt: skip


@pytest.mark.parametrize("key", list(entry(1)))
def test_values_that_are_odd_are_passed_over(tmp_path: Path, key: str) -> None:
    for number, odd in enumerate(ODD):
        entries = [*calls(3, 3), {**entry(4), key: odd}, 7, {}, None]
        (tmp_path / f"rank-{number}").write_bytes(pickle.dumps(document(entries)))
        read_recorders([tmp_path / f"rank-{number}", HELD / "missing" / "rank-1"], processes=4)
    found = read_recorders(sorted(tmp_path.iterdir()))
    assert not any("\n" in one.text or "\x1b[31m;" in one.text for one in found.facts)


@pytest.mark.parametrize("odd", ODD)
def test_tables_that_are_odd_are_passed_over(tmp_path: Path, odd: object) -> None:
    for status in ({"0": odd}, {"0": {"last_enqueued_collective": odd}}, odd):
        for config in ({"default_pg": odd}, {"default_pg": {"ranks": odd}}, odd):
            dump = {**document(calls(3, 4)), "pg_status": status, "pg_config": config}
            (tmp_path / "rank-0").write_bytes(pickle.dumps(dump))
            read_recorders([tmp_path / "rank-0"])


def test_all_that_pythons_pickler_writes_of_plain_values_is_read(tmp_path: Path) -> None:
    values = [0, 1, 255, 256, 65535, 65536, -1, 1 << 40, -(1 << 40), 1.5, True, False, None, "é"]
    plain: list[Any] = [
        *values,
        [values],
        {"a": {"b": []}},
        (),
        (1,),
        (1, 2),
        (1, 2, 3),
        tuple(values),
    ]
    for protocol in (2, 3, 4, 5):
        data = pickle.dumps({**document(calls(1, 300)), "x": plain}, protocol)
        (tmp_path / "rank-0").write_bytes(data)
        assert looks_like_dump(tmp_path / "rank-0")
        (group,) = read_dump(tmp_path / "rank-0", 0).groups.values()
        assert (group.last, len(group.calls)) == (300, 34)


@pytest.mark.parametrize("as_json", [True, False])
def test_so_many_entries_are_read_and_more_refused(tmp_path: Path, *, as_json: bool) -> None:
    path = tmp_path / "rank-0"
    for count in (20_000, 100_000):
        text = document([{**entry(n), "frames": []} for n in range(count)])
        path.write_bytes(json.dumps(text).encode() if as_json else pickle.dumps(text, 2))
        if count == 20_000:
            (group,) = read_dump(path, 0).groups.values()
            assert (group.last, len(group.calls)) == (19_999, 33)
        else:
            with pytest.raises(NotADumpError):
                read_dump(path, 0)


def test_a_number_of_the_past_is_known_by_the_state_of_its_group(tmp_path: Path) -> None:
    behind = {**document([entry(1, DONE)], {"default_pg": "[0, 1]"})}
    behind["pg_status"] = {"0": {"last_enqueued_collective": 4}}
    (tmp_path / "rank-0").write_bytes(pickle.dumps(document(calls(3, 4), {"default_pg": "[0, 1]"})))
    (tmp_path / "rank-1").write_bytes(pickle.dumps(behind))
    found = read_recorders(sorted(tmp_path.iterdir()))
    assert not (fact(found) or "").startswith("collective-missing")


def test_cut_anywhere_it_is_a_line(tmp_path: Path) -> None:
    whole = (HELD / "missing" / "rank-0").read_bytes()
    path = tmp_path / "rank-0"
    for end in range(0, len(whole), 7):
        path.write_bytes(whole[:end])
        with pytest.raises(NotADumpError):
            read_dump(path, 0)


def test_with_any_byte_exchanged_it_is_read_or_a_line(tmp_path: Path) -> None:
    whole = (HELD / "missing" / "rank-2").read_bytes()
    path = tmp_path / "rank-2"
    for at in range(0, len(whole), 5):
        stream = io.BytesIO(whole)
        stream.seek(at)
        stream.write(struct.pack("B", whole[at] ^ (1 << at % 7)))
        path.write_bytes(stream.getvalue())
        read_recorders([path, HELD / "missing" / "rank-0"])
