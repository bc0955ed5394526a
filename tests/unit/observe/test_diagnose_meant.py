"""Which file, signal, rank or address a line is about is told, and not who printed it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clusterkit.observe.diagnose.verdict import Diagnosis, Finding

Say = Callable[[str], Diagnosis]

HEAD = "Traceback (most recent call last):\n"
KILLING = "Killing subprocess 4711\nKilling subprocess 4712\n"
DEEPSPEED = "[2026-11-22 13:59:12,440] [ERROR] [launch.py:321:sigkill_handler] ['train.py'] "
BARRIER = "[E ProcessGroupGloo.cpp:138] "
WAITED = "successfully reached monitoredBarrier, but received errors while waiting for send/recv"


def cause(found: Diagnosis) -> Finding:
    assert found.cause is not None
    return found.cause


def raised(frames: str, error: str) -> str:
    return f"{HEAD}{frames}{error}\n"


def frame(path: str, line: str) -> str:
    return f'  File "{path}", line 7, in read\n    {line}\n'


# Signals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "rule"),
    [
        (f"{KILLING}Main process received SIGTERM, exiting\n", "launcher-stopped"),
        (f"{KILLING}Main process received SIGTERM, exiting\nTerminated\n", "launcher-stopped"),
        (f"{DEEPSPEED}exits with return code = -15\n", "launcher-stopped"),
        (f"{DEEPSPEED}exits with return code = -2\n", "cancelled"),
        (f"{DEEPSPEED}exits with return code = -1\n", "hangup"),
        (f"{DEEPSPEED}exits with return code = 1\n", "deepspeed-report"),
        (f"KeyError: 'a'\n{DEEPSPEED}exits with return code = -15\n", "python-exception"),
        ("10:20 - LOGS - image 41 is possibly corrupt\nTerminated\n", "interrupted"),
    ],
)
def test_a_negative_code_of_a_launcher_is_the_signal_that_ended_a_rank(
    say: Say, log: str, rule: str
) -> None:
    assert cause(say(f"{{'loss': 1.2}}\n{log}")).rule == rule


def test_torchrun_s_code_of_sigterm_is_told_as_one_from_outside(say: Say) -> None:
    report = "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: {}) local_rank"
    for code, told in ((-15, True), (1, False)):
        found = cause(say(f"{report.format(code)}: 1 (pid: 4711) of binary: /usr/bin/python3\n"))
        assert (found.rule, "SIGTERM" in found.do) == ("torchrun-report", told)


# Ranks and addresses ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log", "rank", "says"),
    [
        (f"{BARRIER}[Rank 0]: Rank 2 failed to pass monitoredBarrier in 30 ms", 2, "Rank 2 did"),
        ("[rank0]: RuntimeError: Ranks 1, 3 failed to pass monitoredBarrier in 9 ms", None, "1, 3"),
        (
            f"RuntimeError: Rank 3 {WAITED} from rank 0. Please check rank 0 logs for faulty rank.",
            None,
            "Please check rank 0 logs for faulty rank. Another rank did not",
        ),
    ],
)
def test_the_rank_that_did_not_come_to_a_barrier_counts(
    say: Say, log: str, rank: int | None, says: str
) -> None:
    found = cause(say(f"{log}\n"))
    assert (found.rule, found.rank) == ("monitored-barrier", rank)
    assert says in found.says


REFUSED = "ipv4:10.0.0.9:13305: Failed to connect to remote host: Connection refused"
WATCH = "[rank3] WatchTasksAsync failed for task 3: UNAVAILABLE: failed to connect to all addresses"
HEARTBEAT = "E1122 a.cc:7] UNAVAILABLE: Task /job:jax_worker/replica:0/task:1 heartbeat"
FAILED = "This indicates that the remote task has failed, got preempted, or crashed."


@pytest.mark.parametrize(
    ("log", "where", "told"),
    [
        (f"UNAVAILABLE: last error: UNKNOWN:\n{REFUSED}\n{WATCH}", "10.0.0.9", "10.0.0.9:13305"),
        (f"[rank0]: {HEARTBEAT} timeout. {FAILED}", "rank 1", "task:1"),
    ],
)
def test_the_process_that_did_not_answer_counts(say: Say, log: str, where: str, told: str) -> None:
    found = cause(say(f"{log}\n"))
    assert (found.rule, found.where) == ("tensorflow-worker-lost", where)
    assert told in found.title


def test_the_coordinator_that_refused_is_named(say: Say) -> None:
    error = "jaxlib.xla_extension.XlaRuntimeError: UNAVAILABLE: failed to connect to all addresses"
    assert "10.0.0.9:13305" in cause(say(f"{error}; last error: UNKNOWN: {REFUSED}\n")).title


# Files --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "words", "rule"),
    [
        (28, "No space left on device", "disk-full"),
        (122, "Disk quota exceeded", "quota"),
        (30, "Read-only file system", "read-only"),
    ],
)
def test_of_a_copy_that_failed_the_target_is_named(
    say: Say, number: int, words: str, rule: str
) -> None:
    found = cause(say(f"OSError: [Errno {number}] {words}: '/data/model.bin' -> '/stage/x'\n"))
    assert found.rule == rule
    assert "/stage/x" in found.says
    assert "/data" not in found.says


DATA = frame("/home/ada/data/words.py", "meta = pickle.load(handle)")
TRITON = "/opt/env/lib/python3.11/site-packages/triton/runtime/cache.py"


@pytest.mark.parametrize(
    ("log", "rule"),
    [
        (f"saved a checkpoint\n{raised(DATA, 'EOFError: Ran out of input')}", "file-broken"),
        (
            f"resume: no\n{raised(DATA, '_pickle.UnpicklingError: pickle data was truncated')}",
            "file-broken",
        ),
        (
            raised(
                frame("/home/ada/train.py", "state = pickle.load(open('checkpoint-7', 'rb'))"),
                "EOFError: Ran out of input",
            ),
            "checkpoint-broken",
        ),
        (
            raised(
                frame(TRITON, "return get(path)") + frame("/usr/lib/python3.11/pathlib.py", "f()"),
                "OSError: [Errno 116] Stale file handle",
            ),
            "cache-replaced",
        ),
        (
            "OSError: [Errno 116] Stale file handle: '/n/u/.cache/huggingface/hub/models--a/b'\n",
            "cache-replaced",
        ),
        ("OSError: [Errno 116] Stale file handle: '/n/data/a.bin'\n", "folder-lost"),
        (raised(DATA, "OSError: [Errno 116] Stale file handle"), "folder-lost"),
    ],
)
def test_which_sort_of_file_it_is_is_told_by_its_own_traceback(
    say: Say, log: str, rule: str
) -> None:
    assert cause(say(log)).rule == rule


SPACE = "AttributeError: 'types.SimpleNamespace' object has no attribute 'rate'"
YACS = frame("/opt/env/lib/python3.11/site-packages/yacs/config.py", "raise AttributeError(name)")


@pytest.mark.parametrize(
    ("log", "rule", "told"),
    [
        (raised(frame("/home/ada/a.py", "cfg.rate"), SPACE), "configuration-key", "YAML"),
        (raised(YACS, "AttributeError: RATE"), "python-exception", "The configuration has no RATE"),
        ("AttributeError: 'Loop' object has no attribute 'rate'\n", "call-unfit", "pip show"),
        (
            "train.py: error: argument --c: can't open 'a.yaml': [Errno 2] No such: 'a.yaml'\n",
            "wrong-arguments",
            "look for a.yaml there",
        ),
        ("ValueError: Config file conf/a.yaml does not exist\n", "file-not-found", "ls -l"),
        ("ImportError: cannot import name 'a' from 'b' (/x/b.py)\n", "code-unfit", "git log"),
        (
            "ImportError: cannot import name 'a' from 'b' (/e/site-packages/b.py)\n",
            "version-differs",
            "install the version",
        ),
        ("AttributeError: module 'models' has no attribute 'a'\n", "code-unfit", "git log"),
        (
            raised(
                frame("/opt/env/lib/python3.11/site-packages/torch/utils/data/fetch.py", "get()")
                + frame("/home/ada/data.py", "answer = table[key]"),
                "NameError: name 'table' is not defined",
            ),
            "python-exception",
            "misspelt",
        ),
    ],
)
def test_what_the_user_s_own_files_lack_is_looked_for_in_them(
    say: Say, log: str, rule: str, told: str
) -> None:
    found = cause(say(log))
    assert found.rule == rule
    assert told in found.do
