"""The engine of diagnose: from logs to the cause, whatever the logs look like."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterkit.core import files
from clusterkit.observe.diagnose import hits, scan
from clusterkit.observe.diagnose.events import Fact, Source
from clusterkit.observe.diagnose.order import Place
from clusterkit.observe.diagnose.rules import Rule
from clusterkit.observe.diagnose.verdict import Diagnosis, diagnose, everybody
from tests.helpers.diagnose_rules import engine_rules

MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
CLOSED = "RuntimeError: Connection closed by peer [10.0.0.1]:29500"
TIMEOUT = "[E1121 12:10:00.000000 ProcessGroupNCCL.cpp:629] collective operation timeout: 600 s"


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> tuple[Rule, ...]:
    return engine_rules(tmp_path_factory.mktemp("rules"))


def cause(diagnosis: Diagnosis) -> str | None:
    return diagnosis.cause.rule if diagnosis.cause is not None else None


def test_nothing_is_found_in_a_healthy_log(say) -> None:
    found = say("step 1 loss 3.1\nRuntimeWarning: slow\n" * 1000)
    assert found.cause is None
    assert found.others == ()
    assert (found.files, found.bytes) == (1, 37000)


def test_the_cause_its_place_its_line_and_what_stands_around_it(say) -> None:
    log = (
        f"start\n[rank1]: step 6\n[rank3]: step 7\n[rank3]: Traceback\n[rank1]: other\n"
        f"[rank3]:   File x\n[rank3]: {MEMORY}\n[rank1]: {CLOSED}\n[rank3]: end\n"
    )
    found = say("step 1\n", log)
    assert found.cause is not None
    one = found.cause
    assert (one.rule, one.where, one.says) == ("gpu-memory", "n2 rank 3", "It wanted 2.00 GiB.")
    assert (one.evidence.line, one.evidence.text) == (7, MEMORY)
    assert one.evidence.before == ("Traceback", "  File x")
    assert one.evidence.after == ("end",)
    assert [other.title for other in found.others] == ["connection closed"]
    assert everybody(found.others[0]) == "rank 1"


def test_an_exception_shows_its_place_in_the_code_and_is_told_once(say) -> None:
    frame = '  File "a.py", line 3, in f\n    g(\n    ^^\n'
    found = say(
        f"[rank1]: x\nTraceback (most recent call last):\n{frame}OSError: No space left on device\n"
    )
    assert found.cause.evidence.before == ('  File "a.py", line 3, in f', "    g(", "    ^^")
    found = say(f"{frame}step 3\nNo space left on device\n")
    assert found.cause.evidence.before == ()
    found = say("ValueError: x\nOSError: No space left on device\nRuntimeError: y\n")
    assert (cause(found), found.others) == ("disk-full", ())


@pytest.mark.parametrize(
    "prefix",
    ["[rank5]: ", "[rank5]:", "5: ", "[1,5]<stdout>:", "[1,5]<stderr>: ", "[5]<stderr>:", "[5] ",
     "[node-1] [rank5]: ", "[node-1 n2] [rank5]: ",
     "0: [rank5]: ", "n2: [rank5]: ", "\x1b[31m[rank5]: \x1b[0m",
     "2026-11-22 13:00:00,123 [rank5]: ", "[2026-11-22T13:00:00.123456789Z] [rank5]: ",
     "2026-11-22T13:00:00.123456789+00:00 stderr F [rank5]: ", "Nov 22 13:00:00 [rank5]: ",
     "13:00:00 [rank5]: ", "2026-11-22 13:00:00 +0100 | [1,5]<stderr>:", "n2: 13:00:00 [rank5]: ",
     "Nov  2 13:00:00 [5]<stdout>:",
     "(RayTrainWorker pid=12, ip=10.0.0.7) [rank5]: ", "  0%|   | 0/9\r 11%|#  | 1/9\r[rank5]: "],
)  # fmt: skip
def test_prefixes_say_whose_line_it_is(say, prefix: str) -> None:
    found = say(f"hello\n{prefix}{MEMORY}\n")
    assert cause(found) == "gpu-memory"
    assert found.cause.rank == 5
    assert found.cause.evidence.line == 2
    assert found.cause.evidence.text == MEMORY


@pytest.mark.parametrize(
    "prefix",
    ["2026-11-22 13:00:00 [4711] ", "[2026-11-22 13:00:00 +0000] [4711] [INFO] ", "13:00:00 4711: ",
     "2026-11-22 13:00:00,123 12: ", "2026-11-22 13:00:00 after [rank1]: ", "4711 [rank1]: "],
)  # fmt: skip
def test_a_number_behind_a_time_is_no_rank(say, prefix: str) -> None:
    assert say(f"hello\n{prefix}{MEMORY}\n").cause.rank is None


def test_a_time_before_the_prefix_of_a_rank_is_that_of_its_line(say) -> None:
    disk = "OSError: [Errno 28] No space left on device"
    early, late = "2026-11-21 12:00:00,123", "2026-11-21 12:00:09.000"
    found = say(f"{late} [rank0]: {MEMORY}\n", f"{early} [rank1]: {disk}\n")
    assert (cause(found), found.cause.where) == ("disk-full", "n2 rank 1")
    assert found.cause.time is not None
    assert found.cause.evidence.text == disk
    found = say(f"{late} [rank0]: x\n{MEMORY}\n", f"{early} [rank1]: x\n{disk}\n")
    assert cause(found) == "disk-full", "times of lines nearby"
    found = say(f"{late} [rank0]: x\n{early} [rank1]: ValueError: x\n")
    assert (cause(found), found.cause.rank) == ("exception", 1)


def test_words_before_a_colon_are_no_nodes(say) -> None:
    for word, node in {"n2": "n2", "gpu-a-12": "gpu-a-12", "epoch3": None, "torch": None}.items():
        assert say(f"{word}: {MEMORY}\n").cause.node == node


@pytest.mark.parametrize(
    ("early", "late"),
    [
        ("2026-11-21 12:00:00,123 ", "2026-11-21 12:00:09,000 "),
        ("[2026-11-21T12:00:00Z] ", "[2026-11-21T12:00:09Z] "),
        ("E1121 12:00:00.123456 7 x.cc:1] ", "E1121 12:00:09.123456 7 x.cc:1] "),
        ("Nov 21 12:00:00 n1 kernel: ", "Nov 21 12:00:09 n1 kernel: "),
        ("26/11/21 12:00:00 ERROR x: ", "26/11/21 12:00:09 ERROR x: "),
        ("2026-11-21 12:00:00 began\n", "2026-11-21 12:00:09 began\n"),
    ],
)
def test_the_first_failure_in_time_wins_over_all_files(say, early: str, late: str) -> None:
    disk = "OSError: [Errno 28] No space left on device"
    found = say(f"{late}{MEMORY}\n", f"{early}{disk}\n")
    assert (cause(found), found.cause.where) == ("disk-full", "n2")
    found = say(f"{early}{MEMORY}\n", f"{late}{disk}\n")
    assert (cause(found), found.cause.where) == ("gpu-memory", "n1")


def test_a_cause_after_which_the_training_went_on_did_not_end_it(say) -> None:
    disk = "OSError: [Errno 28] No space left on device, kept the last checkpoint\n"
    steps = "".join(f"step {n} loss 2.1\n" for n in range(8, 14))
    handled = f"2026-11-21 10:00:00 began\n{disk}{steps}"
    ended = f"2026-11-21 12:00:00 step 14\n[rank1]: {MEMORY}\n"
    assert cause(say(handled + ended)) == "gpu-memory"
    assert cause(say(handled + "ValueError: bad sample\n")) == "exception"
    assert cause(say(handled)) is None, "nobody knows that it failed"
    assert cause(say(handled, failed=True)) == "disk-full", "nothing else is known"
    killed = Fact(text="clusterkit fact: signal=9")
    assert cause(say(handled, facts=[killed], failed=True)) == "disk-full", "a fact says less"
    others = steps.replace("step 8", "step 7")[: len(steps) // 2]
    log = f"2026-11-21 10:00:00 began\n{disk}{others}2026-11-21 10:10:00 {MEMORY}\n"
    assert cause(say(log)) == "disk-full", "others take a few steps more"
    log = f"{handled}2026-11-21 12:00:00 step 14\n{disk}2026-11-21 12:10:00 {MEMORY}\n"
    assert cause(say(log)) == "disk-full", "the last such line counts"
    steps = "".join(f"0: step {n}\n" for n in range(8, 14))
    log = f"2026-11-21 10:00:00 began\n1: {disk}{steps}2026-11-21 10:10:00 {MEMORY}\n"
    assert cause(say(log)) == "disk-full", "another rank went on"


def test_at_one_moment_the_more_precise_rule_wins(say) -> None:
    disk = "OSError: [Errno 28] No space left on device"
    found = say(f"2026-11-21 12:00:00 {disk}\n", f"2026-11-21 12:00:02 {MEMORY}\n")
    assert cause(found) == "gpu-memory"


def test_who_waits_is_not_who_fails(say) -> None:
    found = say(f"{TIMEOUT}\n{TIMEOUT}\n", "ValueError: bad sample\n")
    assert (cause(found), found.cause.where) == ("exception", "n2")
    assert [(other.rule, other.count) for other in found.others] == [("time-out", 2)]
    found = say(f"{TIMEOUT}\n", "step 3\n")
    assert (cause(found), found.cause.where) == ("time-out", "n1")
    found = say(f"{TIMEOUT}\nRuntimeError: {TIMEOUT}\n")
    assert cause(found) == "time-out", "the exception of the same rank says less"


def test_where_a_job_is_known_to_have_failed_first_counts_most(say) -> None:
    log = f"[rank1]: {MEMORY}\n[rank2]: OSError: No space left on device\n"
    assert cause(say(log, first=Place(node="n1", rank=2))) == "disk-full"
    assert cause(say(log, first=Place(node="n1", rank=1))) == "gpu-memory"
    log = f"[rank1]: {MEMORY}\n[rank2]: ValueError: bad sample\n"
    assert cause(say(log, first=Place(node="n1", rank=2))) == "exception"
    assert cause(say(log, first=Place(node="n1", rank=7))) == "gpu-memory"


def test_a_line_of_no_rank_is_of_the_one_that_failed_first_on_its_node(say) -> None:
    at = Place(node="n2", rank=3)
    assert say("step 1\n", f"{MEMORY}\n", first=at).cause.where == "n2 rank 3"
    assert say(f"{MEMORY}\n", "step 1\n", first=at).cause.where == "n1"
    assert say("step 1\n", f"[rank2]: {MEMORY}\n", first=at).cause.where == "n2 rank 2"
    of_ray = f"(RayTrainWorker pid=12, ip=10.0.0.7) {MEMORY}\n"
    assert say(of_ray, "step 1\n", first=at).cause.where == "n2 rank 3"
    ended = Fact(text="clusterkit fact: signal=9", node="n2", rank=3)
    found = say("step 1\n", f"{TIMEOUT}\n", facts=[ended], first=at)
    assert (cause(found), found.cause.where) == ("time-out", "n2 rank 3")


def test_torchruns_report_tells_who_failed_first(say) -> None:
    report = """\
E1121 12:00:01.2 71 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: 1)
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_12:00:{second:02}
  host      : {host}
  rank      : {rank} (local_rank: 1)
  exitcode  : {code} (pid: 73)
"""
    first = report.format(second=0, host="n2", rank=2, code=1)
    other = report.format(second=1, host="n1", rank=1, code=-6)
    ended = report.format(second=0, host="n1", rank=0, code=-15)
    log = f"[rank1]: {MEMORY}\n[rank2]: OSError: No space left on device\n"
    for text in (first, other + first, ended + first, first + other):
        assert cause(say(log + text)) == "disk-full", text
    assert cause(say(log + report.format(second=0, host="n2", rank="?", code=1))) == "gpu-memory"


def test_a_repeated_line_is_counted_and_not_kept(say) -> None:
    found = say(f"[rank1]: {MEMORY}\n" * 20_000)
    assert found.cause.count == 20_000
    assert found.cause.evidence.line == 1


def test_numbers_of_steps_are_no_ranks(say) -> None:
    nan = "".join(f"{step}: step {step} loss nan\n" for step in range(100, 103))
    found = say(f"step 99\n{nan}")
    assert (cause(found), found.cause.rank) == ("nan", None)
    assert say(f"98: x\n99: y\n100: {MEMORY}\n").cause.rank is None
    assert say(f"[98] x\n[99] y\n[100] {MEMORY}\n").cause.rank is None
    assert say(f"2: x\n0: x\n1: x\n5: {MEMORY}\n").cause.rank == 5
    assert say(f"98: x\n99: y\n[rank3]: {MEMORY}\n100: z\n").cause.rank == 3
    assert say(f"100: x\n3: {MEMORY}\n", processes=4).cause.rank == 3
    assert say(f"3: x\n3: y\n100: {MEMORY}\n", processes=4).cause.rank is None
    found = say(f"3: x\n3: y\n{nan}", processes=4)
    assert (cause(found), found.cause.rank) == ("nan", None)


def test_an_undated_find_is_not_before_what_its_file_told_until_there(say) -> None:
    disk = "OSError: [Errno 28] No space left on device"
    many = "".join(f"[rank{n}]: {disk}\nx\n" for n in range(80))
    late = f"2026-11-21 12:30:00 began\n{many}" + "y\n" * 100 + f"{MEMORY}\n"
    early = f"2026-11-21 12:00:00 {disk}, says n2\n"
    found = say(late, early)
    assert (cause(found), found.cause.where) == ("disk-full", "n2")


def test_lines_that_follow_use_up_no_look_for_a_time(say) -> None:
    disk = "OSError: [Errno 28] No space left on device"
    many = "".join(f"[rank{n}]: {CLOSED}\n" for n in range(80))
    found = say(f"{many}2026-11-21 12:30:00 x\n{MEMORY}\n", f"2026-11-21 12:00:00 {disk}\n")
    assert cause(found) == "disk-full"


def test_a_sequence_is_one_only_where_it_lasts(say) -> None:
    assert say("step 1 loss nan\nstep 2 loss 3.1\n").cause is None
    fine = "".join(f"step {n} loss 3.{n}\n" for n in range(20))
    assert say(f"step 1 loss nan\n{fine}step 21 loss nan\nstep 22 loss nan\n").cause is None
    found = say(f"{fine}step 20 loss nan\nstep 21 loss nan\nstep 22 loss nan\nstep 23 loss nan\n")
    assert found.cause.says == "From step 20 on."
    assert (found.cause.evidence.line, found.cause.count) == (21, 4)


def test_a_line_that_says_the_opposite_begins_a_sequence_anew(say) -> None:
    skips = "step 1 loss nan\nstep 2 loss 3.1\n"
    assert say(skips * 50).cause is None
    stays = "step 7 loss nan\nstep 8 loss nan\nstep 9 loss nan\n"
    found = say(f"{skips * 50}{stays}{skips * 50}")
    assert (found.cause.says, found.cause.evidence.line) == ("From step 7 on.", 101)
    bars = stays.replace("\n", "\r")
    assert cause(say(skips.replace("\n", "\r") * 50 + bars)) == "nan"
    assert say(skips.replace("\n", "\r") * 50).cause is None
    ranks = "".join(f"[rank0]: step {n} loss nan\n[rank1]: step {n} loss 3\n" for n in range(3))
    assert (cause(say(ranks)), say(ranks).cause.rank) == ("nan", 0), "another rank says it"
    ranks = ranks.replace("[rank1]", "[rank0]")
    assert say(ranks).cause is None
    far = "x" * (1 << 19)
    assert say(f"step 1 loss nan\n{far}\nstep 2 loss 3\n{far}\n" * 4).cause is None


def test_sequences_of_one_file_are_bounded(say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hits, "_MOST_HITS", 2)
    once = "".join(f"[rank{n}]: step 1 loss nan\n" for n in range(3))
    assert say(once * 2).cause is None
    found = say(once * 3)
    assert (cause(found), found.cause.ranks) == ("nan", (0, 1))


def test_nodes_are_compared(say) -> None:
    missing = "ModuleNotFoundError: No module named 'apex'\n"
    assert cause(say(missing, "step 1\n")) == "missing-on-some"
    assert cause(say(missing, missing)) == "missing"
    assert cause(say(missing)) == "missing"
    assert cause(say(missing, "")) == "missing", "a node without output says nothing"
    assert cause(say(f"n1: {missing}n2: step 1\n")) == "missing-on-some"
    assert cause(say(f"n1: {missing}n2: {missing}")) == "missing"
    found = say("NCCL version: 2.21\n", "NCCL version: 2.22\n", "NCCL version: 2.21\n")
    assert (found.cause.title, found.cause.says) == ("NCCL differs", "2.21 on n[1,3], 2.22 on n2.")
    assert say("NCCL version: 2.21\n", "NCCL version: 2.21\n").cause is None
    assert say("NCCL version: 2.21\nNCCL version: 2.22\n").cause is None
    found = say("[rank0]: a version: 1\n[rank1]: a version: 1\n[rank2]: a version: 2\n")
    assert found.cause.says == "1 on ranks 0-1, 2 on rank 2."


def test_facts_of_the_run_are_found_like_lines(say) -> None:
    ended = Fact(text="clusterkit fact: signal=9", node="n1", rank=4, time=1.0)
    found = say("step 3\n", facts=(ended,))
    assert (cause(found), found.cause.where) == ("killed", "n1 rank 4")
    assert found.cause.evidence.line == 0
    limit = Fact(text="clusterkit fact: state=timeout")
    assert cause(say(f"{TIMEOUT}\n", facts=(limit,))) == "time-limit"


def test_of_a_job_that_succeeded_only_silent_failures_are_told(say) -> None:
    assert say(f"{MEMORY}\n", succeeded=True).cause is None
    assert cause(say("step 1 loss nan\n" * 3 + MEMORY, succeeded=True)) == "nan"


def test_an_earlier_attempt_is_no_cause(say) -> None:
    again = "--- clusterkit: restart 1 on n1, 2026-11-21 12:00:00\n"
    assert say(f"{MEMORY}\n{again}step 1\n").cause is None
    assert cause(say(f"{MEMORY}\n{again}ValueError: x\n")) == "exception"


def test_a_log_that_cannot_be_read_is_told(tmp_path: Path, rules: tuple[Rule, ...]) -> None:
    found = diagnose(rules, [Source(path=tmp_path / "none.log"), Source(path=tmp_path)])
    assert [note.rpartition(": ")[2] for note in found.notes] == [
        "No such file or directory",
        "Is a directory",
    ]
    assert found.files == 0


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * (3 << 20) + MEMORY.encode(),
        b"step 1 loss 2.1\n" * 500
        + random.Random(1).randbytes(1 << 20)
        + b"\n"
        + MEMORY.encode()
        + b"\n\xff\xfe\x00",
        b"x" * (5 << 20) + b"\n" + MEMORY.encode(),
        b"\r".join(b"%d%%|###" % n for n in range(300_000)) + b"\r\n" + MEMORY.encode(),
        b"1\r2\r\n3\r4\n" * 10 + MEMORY.encode(),
        MEMORY.encode() + b" " + b"y" * 100_000,
        b"y" * 20_000 + MEMORY.encode() + b"y" * 20_000,
    ],
)
def test_bytes_of_any_kind(say, data: bytes) -> None:
    found = say(data)
    assert cause(found) == "gpu-memory"
    assert found.cause.evidence.line == data[: data.find(MEMORY.encode())].count(b"\n") + 1
    assert found.bytes == len(data)


def test_lines_are_found_across_the_ends_of_chunks(say) -> None:
    for before in range((1 << 20) - 60, (1 << 20) + 4, 7):
        assert cause(say("a" * 70 + "\n" + "b" * (before - 72) + f"\n{MEMORY}\n")) == "gpu-memory"


def test_large_logs_are_read_side_by_side_and_all_the_same(
    say, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = (f"{TIMEOUT}\n", f"step 1\n[rank3]: {MEMORY}\n", "step 1\n", f"[rank4]: {MEMORY}\n")
    alone = say(*logs)
    monkeypatch.setattr(scan, "_WORTH_IT", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert json.dumps(files.plain(say(*logs))) == json.dumps(files.plain(alone))


INTERRUPTED = """\
import os, sys
from pathlib import Path
from clusterkit.observe.diagnose import scan as side_by_side
from clusterkit.observe.diagnose.rules import own_rules

if __name__ == "__main__":
    side_by_side._WORTH_IT = 0
    os.sched_getaffinity = lambda _: {0, 1}
    side_by_side.scan_all(own_rules()[:2], [Path(word) for word in sys.argv[1:]])
"""


def readers(process: int, files: set[str]) -> set[int]:
    """Return the children of a process that read one of these files."""
    found = set()
    for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
        with contextlib.suppress(OSError):
            if files & {str(fd.readlink()) for fd in Path(f"/proc/{child}/fd").iterdir()}:
                found.add(int(child))
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_interrupt_ends_those_who_read_side_by_side(tmp_path: Path) -> None:
    script = tmp_path / "scans.py"
    script.write_text(INTERRUPTED)
    logs = [tmp_path / name for name in ("a", "b")]
    for log in logs:
        log.touch()
        os.truncate(log, 1 << 40)  # nothing of it is on the disk; to read it takes long
    process = subprocess.Popen(
        [sys.executable, script, *logs], start_new_session=True, stderr=subprocess.PIPE
    )
    try:
        wait_until(lambda: len(readers(process.pid, set(map(str, logs)))) == len(logs))
        children = readers(process.pid, set(map(str, logs)))
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGINT
        wait_until(lambda: not any(Path(f"/proc/{child}").exists() for child in children))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


# Whatever else is printed, the cause stays ------------------------------------------------------

STORY = (
    "[rank0]: step 7 loss 1.2",
    "[rank3]: Traceback (most recent call last):",
    f"[rank3]: {MEMORY}",
    f"[rank0]: {CLOSED}",
    f"[rank1]: {CLOSED}",
    f"[rank2]:{TIMEOUT}",
)
NOISE = st.one_of(
    st.binary(max_size=200).filter(lambda raw: b"Error" not in raw),
    st.sampled_from(
        [b"step 1 loss nan", b"", b"\r 10%|#\r 20%|##", b"\x1b[31mred\x1b[0m", b"\xf0\x9f",
         b"INFO CUDA out of memory. retrying", b"[rank1]: hello", b"1: 2: 3: "]
    ),
)  # fmt: skip
ANSI = st.sampled_from([b"", b"\x1b[0m", b"\x1b[1;31m", b"\x1b]0;title\x07", b"\x1b[2K"])


@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_noise_order_colours_and_a_torn_end_never_change_the_cause(say, data) -> None:
    lines = [line.encode() for line in STORY]
    lines += data.draw(st.lists(NOISE, max_size=12))
    lines = data.draw(st.permutations(lines))
    coloured = []
    for line in lines:
        at = data.draw(st.integers(0, len(line))) if line.startswith(b"[rank3]") else 0
        coloured.append(line[:at] + data.draw(ANSI) + line[at:])
    end = data.draw(st.sampled_from([b"\n", b"\r\n"]))
    log = end.join(coloured) + end
    log += data.draw(st.binary(max_size=40)) + STORY[0].encode()[: data.draw(st.integers(0, 20))]
    found = say(log)
    assert (cause(found), found.cause.rank) == ("gpu-memory", 3)


@given(log=st.binary(max_size=2000))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_noise_alone_has_no_cause(say, log: bytes) -> None:
    assert say(log).cause is None


def test_beside_a_bare_exit_code_a_lost_connection_says_more(say) -> None:
    bare = Fact(text="clusterkit fact: exit=1", node="n1", rank=0)
    lost = say(CLOSED, facts=(bare,), first=Place(node="n1", rank=0))
    assert cause(lost) == "closed"
    both = say(f"KeyError: 'x'\n{CLOSED}", facts=(bare,), first=Place(node="n1", rank=0))
    assert cause(both) == "exception"
    assert cause(say("done", facts=(bare,))) == "exit-code"
