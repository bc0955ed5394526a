"""What did not end a job, or came after its end, is no cause; nor does odd input end diagnose."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clusterkit.cli.diagnose.report import answer, others
from clusterkit.cli.frame.main import app
from clusterkit.observe.diagnose.events import Fact, Source
from clusterkit.observe.diagnose.evidence import took_steps
from clusterkit.observe.diagnose.lines import time_of
from clusterkit.observe.diagnose.order import Place
from clusterkit.observe.diagnose.rules import own_rules
from clusterkit.observe.diagnose.verdict import Diagnosis, diagnose, everybody

Say = Callable[..., Diagnosis]

TRITON = "ModuleNotFoundError: No module named 'triton'\n"
TRACEBACK = f'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\n{TRITON}'
LIMIT = (
    "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2024-05-03T10:10:10 DUE TO TIME LIMIT ***\n"
)
LOADER = "RuntimeError: DataLoader worker (pid 41234) is killed by signal: Terminated.\n"
KILLED = (
    "[2024-05-03 10:10:{second},123] [ERROR] [launch.py:322:sigkill_handler] ['python', 'x.py'] "
    "exits with return code = -9\n"
)
IGNORED = """\
Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f>
Traceback (most recent call last):
  File "/env/torch/utils/data/dataloader.py", line 1461, in _shutdown_workers
    if w.is_alive():
AssertionError: can only test a child process
"""
RAY = """\
WARNING autoscaling_coordinator_client.py:76 -- Failed to send resource request for train-7f. \
If this only happens transiently during network partition or CPU being overloaded, it's safe to \
ignore this error. If this error persists, file a GitHub issue.
Traceback (most recent call last):
  File "/env/ray/_private/worker.py", line 3008, in get
    values, debugger_breakpoint = worker.get_objects(
                                  ^^^^^^^^^^^^^^^^^^^
  File "python/ray/includes/common.pxi", line 107, in ray._raylet.check_status
ray.exceptions.GetTimeoutError: Get timed out: some object(s) not ready.
"""
TASK = """\
ERROR:asyncio:Task exception was never retrieved
future: <Task finished name='Task-7' coro=<close() done> exception=RuntimeError('loop is closed')>
Traceback (most recent call last):
  File "/env/client.py", line 85, in close
    await self.pool.aclose()
RuntimeError: loop is closed
"""


def cause(found: Diagnosis) -> tuple[str, int | None] | None:
    return (found.cause.rule, found.cause.rank) if found.cause is not None else None


def steps(prefix: str, count: int = 6) -> str:
    return "".join(f"{prefix}step {n} loss 2.1\n" for n in range(1, count + 1))


# A failure that was handled -----------------------------------------------------------------------


def test_what_another_rank_has_handled_is_handled_on_one_that_prints_no_steps(say: Say) -> None:
    handled = f"0: {TRITON}1: {TRITON}{steps('0: ')}"
    assert cause(say(f"{handled}0: KeyError: 'labels'\n")) == ("python-exception", 0)
    assert cause(say(handled)) is None
    assert cause(say(f"1: {TRITON}0: {TRITON}{steps('0: ')}")) is None


def test_who_dies_while_the_others_go_on_is_told(say: Say) -> None:
    assert cause(say(f"0: x\n1: {TRITON}{steps('0: ', 9)}")) == ("module-missing", 1)
    other = TRITON.replace("triton", "apex")
    assert cause(say(f"0: {other}1: {TRITON}{steps('0: ')}")) == ("module-missing", 1)
    late = f"0: {TRITON}{steps('0: ', 9)}1: {TRITON}{steps('0: ', 3)}"
    assert cause(say(late)) == ("module-missing", 1), "they stop at the next collective"
    own = f"0: {TRITON}1: {TRITON}1: step 1\n{steps('0: ')}"
    assert cause(say(own)) == ("module-missing", 1), "it prints steps, and has stopped to"


def test_what_was_handled_on_one_node_is_handled_at_that_moment_on_others(say: Say) -> None:
    began, later = "2026-11-21 10:00:00 began\n", "2026-11-21 11:00:00 saved\n"
    first = f"{began}{TRITON}{steps('')}"
    assert cause(say(first, f"{began}{TRITON}")) is None
    assert cause(say(f"{TRITON}{steps('')}", TRITON)) is None
    assert cause(say(first, f"{began}{'x' * 9}\n{later}{TRITON}")) == ("module-missing", None)
    twice = f"{began}{TRITON}" + "x\n" * 50 + f"{later}{TRITON}"
    assert cause(say(first, twice)) == ("module-missing", None), "the last one ended it"


def test_a_bare_exit_code_of_the_first_node_to_end_tells_less_than_a_cause_on_another(
    say: Say,
) -> None:
    missing = "clusterkit: no mpirun of Open MPI on n1: install it (openmpi-bin)\n"
    ended = Fact(text="clusterkit fact: exit=127", node="n2", time=1.0)
    found = say(missing, "", facts=(ended,), first=Place(node="n2"))
    assert cause(found) == ("mpi-missing", None)


def test_progress_bars_without_a_word_are_steps(say: Say) -> None:
    bars = "".join(
        f"\r {n // 10}%|#   | {n}/1000 [{n // 60:02}:{n % 60:02}<06:40,  2.42it/s]"
        for n in range(1, 300)
    )
    assert cause(say(f"{TRACEBACK}{bars}\n")) is None
    hours = bars.replace("[00:", "[1:00:")
    assert cause(say(f"{TRACEBACK}{hours}\n")) is None
    assert cause(say(f"{TRACEBACK}{bars[:180]}\n")) == ("module-missing", None)
    one_line = bars.replace("\r", " ")
    assert cause(say(f"{TRACEBACK}{one_line}\n")) is None, "as a copied log has them"
    shards = "".join(f"\rLoading shards:  {n}%|# | {n}/9 [00:0{n}<00:09]" for n in range(9))
    assert cause(say(f"{TRACEBACK}{shards}\n")) == ("module-missing", None), "others still load"


# What comes after the end -------------------------------------------------------------------------


def test_a_time_limit_is_not_what_it_leads_to(say: Say) -> None:
    for log in (LIMIT + LOADER, LOADER + LIMIT, LIMIT + KILLED.format(second=41)):
        assert cause(say(log)) == ("time-limit", None)
    limit = Fact(text="clusterkit fact: state=timeout")
    killed = "/var/spool/slurm_script: line 12: 12345 Killed                  python x.py\n"
    assert cause(say(killed, facts=(limit,))) == ("time-limit", None)
    ended = Fact(text="clusterkit fact: signal=9", node="n1", time=1.0)
    assert cause(say(killed, facts=(limit, ended))) == ("time-limit", None)


def test_ranks_that_torchrun_ended_as_it_was_told_to_had_not_failed(say: Say) -> None:
    """And where each is, is said once."""
    api = "W1122 13:59:12.440000 4711 torch/distributed/elastic/"
    told = f"{api}agent/server/api.py:753] Received 15 death signal, shutting down workers\n"
    ends = f"{api}multiprocessing/api.py:888] Sending process 4720 closing signal SIGTERM\n"
    found = say(told + ends, facts=(Fact(text="clusterkit fact: state=timeout"),))
    assert [one.rule for one in found.others] == ["torchrun-stopped"]
    found = say(ends + told, facts=(Fact(text="clusterkit fact: state=timeout"),))
    assert "torchrun-report" in [one.rule for one in found.others], "a rank failed before"


def test_where_it_was_is_said_once(say: Say) -> None:
    lines = "".join(f"[rank{rank}]: ValueError: no such column\n" for rank in (3, 0, 1))
    found = say(f"{lines}").cause
    assert found is not None
    text = " ".join(answer(found))
    assert re.search(r"rank (\d); the same on ranks ((?!\1)\d)[,-]((?!\1)\d)", text), text


@pytest.mark.parametrize(
    "abort",
    [
        "terminate called without an active exception\n",
        "terminate called after throwing an instance of 'c10::Error'\n  what():  x\n",
        "Fatal Python error: Aborted\n",
        "",
    ],
)
def test_a_process_that_aborts_as_it_leaves_had_failed_before(say: Say, abort: str) -> None:
    """Such as in an exit handler: only the signal is known of it then, and no exit code."""
    raised = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\nValueError: x\n'
    died = Fact(text="clusterkit fact: signal=6", node="n1", rank=1, time=9.0)
    known = {"facts": (died,), "first": Place(node="n1", rank=1)}
    assert cause(say(raised + abort, steps(""), **known)) == ("python-exception", 1)
    aborted = "threads-left" if "without" in abort else "process-aborted"
    assert cause(say(steps("") + abort, steps(""), **known)) == (aborted, 1)


def test_an_exception_long_before_an_abort_is_not_what_it_comes_from(say: Say) -> None:
    early = "ImportError: no such extension\n" + "reading shards\n" * 60
    assert cause(say(f"{early}Fatal Python error: Aborted\n")) == ("process-aborted", None)


def test_what_was_killed_long_before_the_time_limit_is_the_cause(say: Say) -> None:
    early = LIMIT.replace("10:10:10", "12:10:10")
    assert cause(say(KILLED.format(second=41) + early)) == ("rank-killed", None)
    found = say(LIMIT.replace(" DUE TO TIME LIMIT", "") + KILLED.format(second=41))
    assert cause(found) == ("cancelled", None)


def test_a_worker_that_was_told_to_end_has_not_died(say: Say) -> None:
    step = LIMIT.replace("JOB 4711", "STEP 4711.0").replace(" DUE TO TIME LIMIT", "")
    assert cause(say(step + LOADER)) == ("slurm-report", None)
    assert cause(say(f"[rank1]: KeyError: 'x'\n{LOADER}")) == ("python-exception", 1)
    assert cause(say(LOADER)) == ("interrupted", None)
    assert cause(say(LOADER.replace("Terminated", "Aborted"))) == ("data-loader", None)


# What Python ignores ------------------------------------------------------------------------------

CHAINED = "\nDuring handling of the above exception, another exception occurred:\n\n"


@pytest.mark.parametrize(
    "log",
    [
        IGNORED,
        IGNORED * 3,
        "".join(f"{line}\n" * 2 for line in IGNORED.splitlines()),
        "".join(f"[rank{n}]: {line}\n" for line in IGNORED.splitlines() for n in (0, 1)),
        f"Error in atexit._run_exitfuncs:\n{TRACEBACK}",
        f"Exception ignored in atexit callback <function f at 0x7f>:\n{TRACEBACK}",
        "Exception ignored in: <_io.TextIOWrapper>\nBrokenPipeError: [Errno 32] Broken pipe\n",
        IGNORED + CHAINED + TRACEBACK,
        TASK * 3,
        RAY,
        "".join(f"(TrainController pid=4711) {line}\n" for line in RAY.splitlines()),
    ],
)
def test_what_python_says_it_ignores_did_not_end_the_job(say: Say, log: str) -> None:
    assert cause(say(f"Training finished\n{log}")) is None
    found = say(f"Training finished\n{log}KeyError: 'labels'\n")
    assert found.cause is not None
    assert found.cause.evidence.text == "KeyError: 'labels'"


def test_what_stands_after_an_ignored_exception_is_told(say: Say) -> None:
    for log in (
        IGNORED + TRACEBACK,
        RAY + TRACEBACK,
        TASK * 2 + TRACEBACK,
        IGNORED + "x\n" + TRACEBACK,
        IGNORED + TRACEBACK + CHAINED + TRACEBACK,
        f"Exception ignored in: <x>\nnone\n{TRACEBACK}",
        f"[rank0]: Exception ignored in: <x>\n[rank1]: {TRITON}",
    ):
        found = say(log)
        assert found.cause is not None, log
        assert found.cause.rule == "module-missing", log


def test_memory_that_a_task_of_asyncio_did_not_get_is_told(say: Say) -> None:
    short = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    found = say(TASK.replace("RuntimeError: loop is closed", short))
    assert cause(found) == ("cuda-out-of-memory", None)


def test_many_ignored_exceptions_hide_no_later_failure(say: Say) -> None:
    assert cause(say(IGNORED * 5000 + f"[rank3]: {TRITON}")) == ("module-missing", 3)
    assert cause(say(IGNORED * 5000)) is None


def test_a_thread_that_lost_its_socket_is_not_the_cause(say: Say) -> None:
    log = """\
[rank0]: ValueError: no such luck
Exception in thread Thread-1 (_pin_memory_loop):
Traceback (most recent call last):
  File "/usr/lib/python3.11/multiprocessing/connection.py", line 507, in Client
    c = SocketClient(address)
FileNotFoundError: [Errno 2] No such file or directory
"""
    found = say(log)
    assert cause(found) == ("python-exception", 0)
    assert "no such luck" in (found.cause.says if found.cause else "")
    missing = "FileNotFoundError: [Errno 2] No such file or directory: '/data/x.bin'\n"
    assert cause(say(missing)) == ("file-not-found", None)


# What a thread raised -----------------------------------------------------------------------------

THREAD = """\
Exception in thread Thread-5 (watch):
Traceback (most recent call last):
  File "/usr/lib/python3.11/threading.py", line 1045, in _bootstrap_inner
    self.run()
  File "/env/a.py", line 255, in watch
    self._send(ready_chunks)
"""
SENT = "TypeError: 'NoneType' object is not subscriptable\n"
PINNED = THREAD.replace("/env/a.py", "/env/torch/utils/data/_utils/pin_memory.py").replace(
    "in watch", "in _pin_memory_loop"
)
SHARED = """\
  File "/usr/lib/python3.11/multiprocessing/resource_sharer.py", line 86, in get_connection
    c = Client(address, authkey=process.current_process().authkey)
"""
RESET = "ConnectionResetError: [Errno 104] Connection reset by peer\n"
BAR = "  5%|#   | 50/1000 [00:50<16:40,  1.00it/s]"


def test_python_goes_on_without_a_thread(say: Say) -> None:
    assert cause(say(f"Epoch 6\n{THREAD}{SENT}Epoch 7\n")) is None
    assert cause(say(f"{BAR}{THREAD}{SENT}\r{BAR}\n")) is None
    assert cause(say(f"{THREAD}\n")) is None, "what it raised is missing"


def both(text: str) -> str:
    """Return what two processes print that end at the same time."""
    return "".join(line + line for line in text.splitlines(keepends=True))


QUEUE = """\
Traceback (most recent call last):
  File "/usr/lib/python3.11/threading.py", line 1045, in _bootstrap_inner
    self.run()
  File "/opt/board/writer.py", line 20, in run
    self._queue.get()
OSError: handle is closed
"""


def test_threads_of_two_processes_that_leave_at_once_ended_nothing(say: Say) -> None:
    log = "step 6\n" + both("Exception in thread Thread-1:\n") + "all is saved\n"
    assert say(log + both(QUEUE)).cause is None
    main = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    f()\n'
    found = say(f"{log}{both(QUEUE)}{main}OSError: handle is closed\n").cause
    assert found is not None


BARS = """\
Scoring answers:  {done}/40 [00:02<00:03, 9.31it/s]
{error}
Scoring answers: {then}/40 [00:08<00:00, 9.76it/s]
{end}
"""


@pytest.mark.parametrize(
    ("then", "end", "survived"),
    [
        ("100%|██████████| 40", "the mean is 0.5", True),
        (" 80%|████████  | 32", "the mean is 0.5", False),
        ("100%|██████████| 40", "[launch.py] exits with return code = 1", False),
    ],
)
def test_a_bar_that_comes_to_its_end_shows_that_an_error_was_survived(
    then: str, end: str, survived: bool, say: Say
) -> None:
    log = BARS.format(
        done="37%|███▋      | 15", error="RuntimeError: the answer is empty", then=then, end=end
    )
    assert (say(log).cause is None) == survived


def test_what_a_thread_raised_counts_where_nothing_else_is_known(say: Say) -> None:
    assert cause(say(THREAD + SENT)) == ("thread-exception", None)
    ended = Fact(text="clusterkit fact: exit=1")
    assert cause(say(f"{THREAD}{SENT}Epoch 7\n", facts=(ended,), failed=True)) == (
        "thread-exception",
        None,
    )
    for log in (f"{THREAD}{SENT}KeyError: 'labels'\n", f"KeyError: 'labels'\n{THREAD}{SENT}"):
        found = say(log)
        assert found.cause is not None
        assert found.cause.evidence.text == "KeyError: 'labels'"
    assert cause(say(f"{THREAD}{SENT}[rank3]: {TRITON}")) == ("module-missing", 3)


def test_what_a_thread_has_met_of_a_gpu_or_a_disk_is_told(say: Say) -> None:
    for error, rule in (
        ("RuntimeError: CUDA error: out of memory", "cuda-out-of-memory"),
        ("OSError: [Errno 28] No space left on device", "disk-full"),
    ):
        assert cause(say(f"{THREAD}{error}\n")) == (rule, None)


def test_java_names_its_threads_in_quotes(say: Say) -> None:
    log = 'Exception in thread "main" java.lang.Exception: x\n\tat a.b\nValueError: no such luck\n'
    assert cause(say(log)) == ("python-exception", None)


@pytest.mark.parametrize(
    "log",
    [
        PINNED + RESET,
        PINNED + SHARED + RESET,
        PINNED.partition("\n")[2] + SHARED + RESET,
        PINNED + "EOFError\n",
        f"{RESET}{IGNORED}",
        "".join(f"{line}\n" * 2 for line in (PINNED + SHARED + RESET).splitlines()),
    ],
)
def test_a_worker_of_a_data_loader_that_ended_with_the_run_is_no_rank(say: Say, log: str) -> None:
    assert cause(say(f"Training finished\n{log}")) is None


def test_a_worker_of_a_data_loader_that_is_lost_in_the_middle_is_no_rank(say: Say) -> None:
    for error in (RESET, "FileNotFoundError: [Errno 2] No such file or directory\n", "EOFError\n"):
        found = say(f"Traceback (most recent call last):\n{SHARED}{error}")
        assert (cause(found), found.others) == (("data-loader-lost", None), ())
    assert cause(say(RESET)) == ("gloo-connection-lost", None)


# What nobody has thought of -----------------------------------------------------------------------


def test_a_file_is_not_taken_for_a_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    paths = [Path("rank 0.log"), Path("rank 1.log")]
    for path, version in zip(paths, ("2.18.1+cuda12.1", "2.20.5+cuda12.4"), strict=True):
        path.write_text(f"NCCL version {version}\n")
    found = diagnose(own_rules(), [Source(path=path) for path in paths])
    assert found.cause is not None
    assert "rank 0.log" in found.cause.says


@pytest.mark.parametrize(
    "log",
    [
        "mpirun noticed that process rank \u00b2 with PID 12 on node n1 exited on signal 15\n",
        "Root Cause (first observed failure):\n[0]:\n  host : n2\n  rank      : \u00b2 (local)\n",
        "0001-01-01 00:00:00+23:59 OSError: [Errno 28] No space left on device\n",
        "9999-12-31 23:59:59-23:59 OSError: [Errno 28] No space left on device\n",
    ],
)
def test_numbers_that_are_none_end_nothing(tmp_path: Path, log: str) -> None:
    path = tmp_path / "x.log"
    path.write_text(f"{log}ValueError: x\n")
    answer = CliRunner().invoke(app, ["diagnose", str(path)])
    assert (answer.exit_code, answer.exception and type(answer.exception)) == (1, SystemExit)
    assert answer.stdout.startswith("what ")


def test_a_year_that_no_clock_has_is_no_time() -> None:
    assert time_of("0001-01-01 00:00:00 x", year=2026) is None
    assert time_of("9999-12-31 23:59:59 x", year=2026) is None
    assert time_of("1970-01-02 00:00:00Z x", year=2026) == 86400.0


OMP = "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default"


@pytest.mark.parametrize("banner", ["nohup: ignoring input\n", f"W0705 run.py:757] {OMP}\n"])
def test_of_runs_appended_to_one_file_the_last_is_told(say: Say, banner: str) -> None:
    report = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    first = f"{banner}ModuleNotFoundError: No module named 'lossy'\n{report}"
    last = (
        f"{banner}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n{report}"
    )
    assert cause(say(first + last)) == ("cuda-out-of-memory", None)
    assert cause(say(banner + first + last.replace(banner, ""))) == ("module-missing", None)
    by_hand = (first + last).replace(report, "").replace(banner, "nohup: ignoring input\n")
    assert cause(say(by_hand)) == ("cuda-out-of-memory", None)


UNCUT = "train.sh: line 9: --steps: command not found\n"
FIRST = (
    "  what():  [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, "
    "OpType=BROADCAST, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600081 milliseconds\n"
)


def test_what_the_shell_says_after_a_crash_is_not_its_cause(say: Say) -> None:
    aborted = "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    log = f"{aborted}{FIRST.format(0)}{aborted}{FIRST.format(1)}"
    found = say(log + UNCUT)
    assert cause(found) == ("nccl-first-timeout", 0)
    assert "line-not-continued" in {one.rule for one in found.others}
    raised = TRACEBACK.replace(TRITON, "ValueError: no steps\n")
    assert cause(say(raised + UNCUT)) == ("line-not-continued", None)
    taken = "[W socket.cpp:436] The server socket has failed to bind (Address already in use).\n"
    assert cause(say(taken + UNCUT)) == ("line-not-continued", None), "it had no --master_port"
    assert cause(say(taken)) == ("address-in-use", None)


@pytest.mark.parametrize(
    ("none", "one"),
    [
        ("Epoch 0:   0%|    | 0/356 [00:13<?, ?it/s]", "Epoch 0:   0%|    | 1/356 [00:13<9:00]"),
        ("slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-22", "*** a STEP 7.0"),
        ("srun: Terminating job step 7.2", "srun: Terminating step 7.2"),
    ],
)
def test_no_step_is_taken_by_a_bar_at_its_beginning_or_by_slurm(none: str, one: str) -> None:
    assert (took_steps(none.encode()), took_steps(one.encode())) == (False, True)


def test_what_stood_before_an_end_from_outside_is_told_beside_it(say: Say) -> None:
    found = say(f"CondaError: Run 'conda init' before 'conda activate'\nstep 1\n{LIMIT}")
    assert found.cause is not None
    assert found.cause.rule == "time-limit"
    assert [other.rule for other in found.others] == ["environment-missing"]


def test_an_error_of_the_words_for_another_is_not_the_cause(say: Say) -> None:
    first = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\n'
    chained = "\nDuring handling of the above exception, another exception occurred:\n\n"
    second = (
        'Traceback (most recent call last):\n  File "a.py", line 9, in <module>\n    f()\n'
        '  File "<string>", line 3, in __repr__\n'
        "AttributeError: 'Config' object has no attribute 'step'\n"
    )
    found = say(f"{first}TypeError: the field motion is missing\n{chained}{second}")
    assert found.cause is not None
    assert found.cause.evidence.line == 4
    alone = say(second)
    assert alone.cause is not None
    assert alone.cause.evidence.text.startswith("AttributeError")


def test_what_srun_counts_are_its_tasks(say) -> None:
    step = "srun: error: n1: task 1: Exited with exit code 1\n"
    found = say(f"ValueError: no\n{step}{step.replace('1:', '2:')}")
    assert [everybody(one) for one in found.others if one.rule == "slurm-report"] == ["tasks 1-2"]


def test_what_another_finding_says_and_tells_more_of_is_not_told_twice(say: Say) -> None:
    limit = Fact(text="clusterkit fact: state=timeout")
    used = Fact(text="clusterkit fact: attempts=2 of 2, to the time limit")
    found = say("torch.OutOfMemoryError: CUDA out of memory.\n", facts=(limit, used))
    assert found.cause is not None
    every = (found.cause, *found.others)
    assert {"time-limit", "attempts-used-up"} <= {one.rule for one in every}
    said = "\n".join((found.cause.title, *others(found.others, found.cause)))
    assert said.count("the job reached its time limit") == 1
