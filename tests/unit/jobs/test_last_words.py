"""Which rank failed, and its last words: from the log of a node to what the user reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterkit.core import files
from clusterkit.core.data import data_dir
from clusterkit.core.model import NodeResult
from clusterkit.executors.node import Identity
from clusterkit.executors.node.failure import (
    LINES,
    SIZE,
    RankFailure,
    explain,
    last_words,
    read_rank_failure,
)
from clusterkit.executors.run import node_results, runfolder
from clusterkit.executors.run.runfolder import RunFolder
from tests.helpers.plans import environment, make_cluster

RANK = data_dir("templates/frameworks/deepspeed") / "rank.sh"
TRACEBACK = """\
Traceback (most recent call last):
  File "train.py", line 9, in <module>
    raise ValueError("loss is NaN")
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
ValueError: loss is NaN
"""
TORCHRUN = """\
W1121 10:00:01.1 71 .venv/lib/torch/distributed/elastic/multiprocessing/api.py:1010] Sending process 72 closing signal SIGTERM
E1121 10:00:01.2 71 .venv/lib/torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: -9) local_rank: 0 (pid: 73)
Traceback (most recent call last):
  File "/tmp/agent.py", line 80, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
"""  # noqa: E501
DEEPSPEED = """\
[2026-11-21 10:00:01,123] [INFO] [launch.py:335:sigkill_handler] Killing subprocess 73
[2026-11-21 10:00:01,456] [ERROR] [launch.py:341:sigkill_handler] ['sh'] exits with return code = 7
"""


def ending(**how: Any) -> NodeResult:
    return NodeResult(node_rank=0, node="n1", started_at=0.0, ended_at=0.0, **how)


def ranked(text: str, rank: int) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "node-0.log"


@pytest.mark.parametrize("report", [TORCHRUN, DEEPSPEED, ""])
def test_the_traceback_of_the_rank_is_told_from_the_others(log: Path, report: str) -> None:
    others = ranked("Traceback (most recent call last):\nRuntimeError: Connection closed", 1)
    log.write_text(f"step 6\n{ranked(TRACEBACK, 0)}{others}{report}")
    assert last_words(log, rank=0) == (
        "Traceback (most recent call last):",
        '  File "train.py", line 9, in <module>',
        '    raise ValueError("loss is NaN")',
        "ValueError: loss is NaN",
    )
    assert last_words(log, rank=1)[-1] == "RuntimeError: Connection closed"


@pytest.mark.parametrize("report", [TORCHRUN, DEEPSPEED, ""])
def test_of_a_killed_rank_the_last_lines_before_the_launchers_report(
    log: Path, report: str
) -> None:
    others = ranked(TRACEBACK, 1)
    log.write_text(f"[rank0]: a word of long ago\nstep 6\nstep 7\n{others}\n{report}")
    assert last_words(log, rank=0) == ("[rank0]: a word of long ago", "step 6", "step 7")


def test_a_launcher_that_fails_itself_is_quoted(log: Path) -> None:
    log.write_text(f"{TORCHRUN}now the agent itself\n")
    assert last_words(log)[-1] == "now the agent itself"


def test_bytes_of_any_kind_and_what_terminals_act_on(log: Path) -> None:
    log.write_bytes(
        b"\xff\xfe bad\n\x1b[31mred\x1b[0m \x1b]0;title\x07\x00bell\x07\n"
        b"  1%\r 50%\r100%\r\n\xf0\x9f\x98"
    )
    assert last_words(log) == ("\ufffd\ufffd bad", "red  bell", "100%", "\ufffd")


def test_lines_keep_their_indentation(log: Path) -> None:
    log.write_text(TRACEBACK)
    assert last_words(log)[1:3] == (
        '  File "train.py", line 9, in <module>',
        '    raise ValueError("loss is NaN")',
    )


def test_what_an_earlier_attempt_said_is_left_out(log: Path) -> None:
    log.write_text("first\nsecond\n")
    assert last_words(log, since=6) == ("second",)
    assert last_words(log, since=99) == ()
    assert last_words(log.with_name("none")) == ()


def test_it_is_bounded_whatever_the_size_of_the_log(log: Path) -> None:
    with log.open("w") as stream:
        stream.writelines(f"line {number}\n" for number in range(100_000))
        stream.write("ü" * 300_000 + "\nend\n")
    words = last_words(log)
    assert words == ("end",), "the first line of what is read is not whole"
    log.write_text(("ü" * 1000 + "\n") * 50)
    words = last_words(log)
    assert 0 < len("\n".join(words).encode()) <= SIZE
    assert all(word.endswith("…") for word in words)
    log.write_text("x\n" * 50)
    assert len(last_words(log)) == LINES


def test_what_others_say_after_the_end_of_the_rank_is_left_out(log: Path) -> None:
    log.write_text("step 7\nRuntimeError: connection closed\n")
    inode = log.stat().st_ino
    assert last_words(log, rank=0, until=(inode, 7)) == ("step 7",)
    assert last_words(log, rank=0, until=(inode, 999))[-1] == "RuntimeError: connection closed"
    assert len(last_words(log, rank=0, until=(inode + 1, 7))) == 2, "that of another file"


# Which rank it was ----------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = runfolder.create(make_cluster(tmp_path), "toy")
    run.log(0).write_text("step 7\n")
    return run


def me(rank: int = 0, attempt: int = 0) -> Identity:
    return Identity.from_environment(environment(rank, 2, CK_RESTART_COUNT=str(attempt)))


def test_the_rank_gives_the_exit_code_and_the_other_nodes_are_no_cause(run: RunFolder) -> None:
    word = {"node": "node-0", "rank": 3, "local_rank": 1, "exit_code": 137, "message": None}
    files.write_json(run.rank_failure(0), word)
    own = explain(run, me(0), ending(exit_code=1), since=0)
    assert own == ending(exit_code=137, rank=3, tail=("step 7",))
    other = explain(run, me(1), ending(exit_code=1), since=0)
    assert other == ending(exit_code=137, reason="peer")
    later = explain(run, me(0, attempt=1), ending(exit_code=1), since=0)
    assert later == ending(exit_code=1, tail=("step 7",))


@pytest.mark.parametrize(
    ("ended", "after_s", "before"),
    [
        ({"node": "node-1", "rank": 2}, -1, "rank 2 on node-1"),
        ({"node": "node-1", "rank": 2}, 1, None),  # told to end, it ended well
        ({"node": "x\n", "rank": "2"}, -1, None),
    ],
)
def test_a_rank_that_ended_well_before_it_is_named(
    run: RunFolder, ended: dict[str, object], after_s: float, before: str | None
) -> None:
    failure = run.rank_failure(0)
    files.write_json(failure, {"node": "node-0", "rank": 3, "exit_code": 1})
    files.write_json(failure.with_name(f"{failure.name}.ended"), ended)
    moment = failure.stat().st_mtime + after_s
    os.utime(failure.with_name(f"{failure.name}.ended"), (moment, moment))
    assert explain(run, me(0), ending(exit_code=1), since=0).ended_before == before


@pytest.mark.parametrize("reason", ["cancelled", "timeout", "peer", "terminated"])
def test_ranks_that_were_ended_by_others_are_not_blamed(run: RunFolder, reason: str) -> None:
    files.write_json(run.rank_failure(0), {"node": "node-0", "rank": 3, "exit_code": 143})
    ended = ending(exit_code=143, reason=reason)
    assert explain(run, me(), ended, since=0) == ended
    assert explain(run, me(), ending(exit_code=0), since=0) == ending(exit_code=0)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "\0", '{"rank": 3}', '{"rank": "3", "exit_code": 1}', '{"rank": 1}'],
)  # fmt: skip
def test_a_torn_word_is_none(run: RunFolder, text: str) -> None:
    run.rank_failure(0).write_text(text)
    assert read_rank_failure(run, 0) is None
    assert explain(run, me(), ending(exit_code=1), since=0).exit_code == 1


def test_blame_names_the_rank_where_it_is_known() -> None:
    def said(code: int, rank: int | None) -> str:
        result = NodeResult(
            node_rank=1, node="n2", exit_code=code, started_at=0, ended_at=1, rank=rank
        )
        return node_results.failure_text(result)

    assert said(137, 3) == "n2: rank 3 was ended by signal 9"
    assert said(7, 0) == "n2: rank 0 exited with 7"
    assert said(137, None) == "n2 was ended by signal 9"
    assert said(255, 3) == "n2: rank 3 exited with 255"


@pytest.mark.parametrize(
    ("what", "code"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137), ("pass", 0)]
)
def test_a_rank_of_deepspeed_tells_how_it_ended_unless_another_was_first(
    run: RunFolder, tmp_path: Path, what: str, code: int
) -> None:
    script = tmp_path / "rank.py"
    script.write_text(f"import os, sys\n{what}\n")
    argv = ["sh", RANK, "2", sys.executable, script]
    known = {"CK_NODE_NAME": "node-0", "RANK": "3", "LOCAL_RANK": "1"}
    told = {**os.environ, **known, "CK_FAILURE": str(run.rank_failure(0))}
    log = run.log(0)
    with log.open("ab") as stream:
        done = subprocess.run(argv, env=told, stdout=stream, stderr=stream, check=False)
    assert done.returncode == code
    about = log.stat()
    where = (about.st_ino, about.st_size)
    expected = RankFailure(node="node-0", rank=3, exit_code=code, log=where) if code else None
    assert read_rank_failure(run, 0) == expected
    subprocess.run(argv, env={**told, "RANK": "4"}, check=False)
    assert read_rank_failure(run, 0) == expected
    there = {path.name for path in run.failures.iterdir()}
    assert there == {"rank-0.json" if code else "rank-0.json.ended"}


@pytest.mark.parametrize("pause", [None, "sleep 0.3"])
def test_a_rank_of_deepspeed_passes_sigterm_on(
    run: RunFolder, tmp_path: Path, pause: str | None
) -> None:
    script = tmp_path / "rank.py"
    script.write_text(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        "print('ready', flush=True)\ntime.sleep(60)\n"
    )
    shell = tmp_path / "rank.sh"
    sends = 'kill -TERM "$child" 2>/dev/null'
    assert RANK.read_text().count(sends) == 1
    # On a busy machine the rank has ended before the shell comes to its next command.
    shell.write_text(RANK.read_text().replace(sends, f"{sends}; {pause}" if pause else sends))
    argv = ["sh", shell, "2", sys.executable, script]
    known = {"CK_NODE_NAME": "node-0", "RANK": "0", "LOCAL_RANK": "0"}
    told = {**os.environ, **known, "CK_FAILURE": str(run.rank_failure(0))}
    with subprocess.Popen(argv, env=told, stdout=subprocess.PIPE) as rank:
        assert rank.stdout is not None
        assert rank.stdout.readline() == b"ready\n"
        rank.terminate()
        assert rank.wait(50) == 5


def test_the_first_nodes_answer_holds_the_longest_words() -> None:
    # One call between nodes over ssh is a line of 64 KiB at most.
    worst = NodeResult(
        node_rank=0, node="n1", exit_code=1, started_at=0.0, ended_at=1.0, rank=0,
        message="\u2026" * 1000, tail=("\u07ff" * 2000,),
    )  # fmt: skip
    assert len(json.dumps(files.plain(worst))) < 1 << 15
