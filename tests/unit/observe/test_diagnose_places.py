"""Where a failure was, and in which run of a file: what prefixes and lines around it tell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from clusterkit.observe.diagnose.events import Source
from clusterkit.observe.diagnose.rules import own_rules
from clusterkit.observe.diagnose.verdict import Diagnosis, Finding, diagnose
from tests.helpers.diagnose_rules import root_cause

BAR = "\rtraining:  14%|█▍        | 3/22 [00:06<00:38,  2.02s/it{more}]"
LIMIT = (
    "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-22T14:05:02 DUE TO TIME LIMIT ***\n"
)
HYDRA = """\
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   {rank}PID 4711 RUNNING AT n2
{end}
"""
INIT = "Abort(1091471) on node 5 (rank 5 in comm 0): Fatal error in PMPI_Init: Other MPI error\n"
PORT = "[W socket.cpp:436] The server socket has failed to bind (Address already in use).\n"
LAUNCH = (
    "[2026-11-22 13:59:12,440] [INFO] [runner.py:571:main] cmd = /usr/bin/python3 -u train.py\n"
)
ENDED = "[ERROR] [launch.py:321:sigkill_handler] ['train.py'] exits with return code = 1\n"
ASSERTED = 2 * (
    "/build/Indexing.cu:22: pick: block: [1,0,0], thread: [5,0,0] Assertion `i < n` failed.\n"
)
KNOWN = "Warning: Permanently added 'n7' (ED25519) to the list of known hosts.\n"
SRUN = "srun: error: n7: tasks 0-7: Exited with exit code 255\n"
RAISED = """\
Traceback (most recent call last):
  File "/home/ada/train.py", line 9, in main
    model.fit(data)
ValueError: the model has a head too many
"""
REPORT = root_cause("n7", 5)
SIGNALLED = """\
E1 api.py:1] failed (exitcode: -11) local_rank: 2 (pid: 4711) of binary: /usr/bin/python3
Failures:
[1]:
  time      : 2026-11-22_13:59:12
  host      : n7
  rank      : 7 (local_rank: 3)
  exitcode  : -11 (pid: 4712)
  traceback : Signal 11 (SIGSEGV) received by PID 4712
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_13:59:12
  host      : n7
  rank      : 6 (local_rank: 2)
  exitcode  : -11 (pid: 4711)
  traceback : Signal 11 (SIGSEGV) received by PID 4711
"""
PEER = "An MPI communication peer process has unexpectedly disconnected.  This\nis a failure.\n"
NOTICED = "noticed that process rank 3 with PID 0 on node n7"


def cause(folder: Path, log: str) -> Finding:
    """Return the cause in a log."""
    path = folder / "train.log"
    path.write_text(log)
    found = diagnose(own_rules(), [Source(path=path)]).cause
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("log", "where"),
    [
        ("[default3]:ValueError: x\n", "local rank 3"),
        (
            "E1 api.py:1] failed (exitcode: -11) local_rank: 2 (pid: 1) of binary: x\n",
            "local rank 2",
        ),
        ("Tue Nov 24 12:25:59 2026[1]<stderr>:Segmentation fault (core dumped)\n", "rank 1"),
        ("Tue Nov 24 12:25:59 2026[1,7]<stderr>:Segmentation fault (core dumped)\n", "rank 7"),
        ("Process 3 exit with status code 139.\n", "rank 3"),
        (HYDRA.format(rank="", end="=   EXIT CODE: 139"), "n2"),
        (HYDRA.format(rank="RANK 3 ", end="=   KILLED BY SIGNAL: 9 (Killed)"), "n2 rank 3"),
        (f"{INIT}MPIDI_OFI_mpi_init_hook(1382): OFI get address vector map failed\n", "rank 5"),
        (f"{ASSERTED}[rank3]: Traceback (most recent call last):\n", "rank 3"),
        (f"{ASSERTED}[rank3]: Traceback (most recent call last):\n[rank2]: x\n", ""),
        (f"{ASSERTED}step 3 of 4\n[rank3]: Traceback (most recent call last):\n", ""),
        (f"{RAISED}{RAISED}{REPORT}", "n7 rank 5"),
        (SIGNALLED, "n7 rank 6"),
        (SIGNALLED.replace("-11", "-9").replace("11 (SIGSEGV)", "9 (SIGKILL)"), "n7 rank 6"),
        (SIGNALLED.partition("\n")[2], "n7 rank 6"),
        (
            SIGNALLED.replace("rank: 2 (pid: 4711) of", "rank: 1 (pid: 9) of"),
            "local rank 1",
        ),
        ("".join(f"0: {line}\n" for line in SIGNALLED.splitlines()), "n7 rank 6"),
        ("10.0.0.7: bash: torchrun: command not found\n", "10.0.0.7"),
        ("2026-11-22 13:59:12.4 | (Worker pid=7, ip=10.0.0.2) ValueError: x\n", "10.0.0.2"),
        (f"{RAISED}{RAISED.replace('a head', 'no head')}{REPORT}", ""),
        ("localhost: [rank3]: ValueError: x\nn2: [rank5]: ValueError: y\n", "localhost rank 3"),
        (f'FATAL:   "train": executable file not found in $PATH\n{SRUN}', "n7"),
        (f"{LIMIT}{SRUN}", ""),
        (f"{PEER}\n  Local host: n6\n  Local PID:  4711\n  Peer host:  n7\n", "n7"),
        (f"mpirun {NOTICED} exited on signal 4 (Illegal instruction: 4).\n", "n7 rank 3"),
        ("salloc: error: Node failure on n7\n", "n7"),
        (f"{KNOWN}bash: /opt/mpi/bin/orted: No such file or directory\n", "n7"),
        (f"{BAR.format(more='')}{LIMIT.replace(' DUE TO TIME LIMIT', '')}", "n1"),
    ],
)
def test_prefixes_and_the_lines_around_a_find_tell_where_it_was(
    log: str, where: str, tmp_path: Path
) -> None:
    assert cause(tmp_path, log).where == where


@pytest.mark.parametrize("end", ["Killed", "[rank: 0] Received SIGTERM: 15"])
@pytest.mark.parametrize("more", ["", ", v_num=7" * 40])
def test_a_process_that_ends_in_the_middle_of_a_bar_is_heard(
    end: str, more: str, tmp_path: Path
) -> None:
    found = cause(tmp_path, f"step 1\n{BAR.format(more=more)}{end}\n")
    assert found.rule == ("rank-killed" if end == "Killed" else "interrupted")


def test_steps_within_the_seconds_that_a_scheduler_leaves_raise_no_doubt(tmp_path: Path) -> None:
    found = cause(tmp_path, f"step 1\n{LIMIT}step 2\nstep 3\nstep 4\n")
    assert (found.rule, "But steps" in found.says) == ("time-limit", False)


def test_a_second_run_of_deepspeed_in_the_same_file_has_failures_of_its_own(tmp_path: Path) -> None:
    first = f"{LAUNCH}{PORT}{ENDED}"
    assert cause(tmp_path, first).rule == "address-in-use"
    assert cause(tmp_path, f"{first}{LAUNCH}ValueError: x\n").rule == "python-exception"
    assert cause(tmp_path, f"{LAUNCH}{PORT}{LAUNCH}").rule == "address-in-use"


JAVA = """\
java.lang.NullPointerException
\tat org.apache.spark.rdd.ParallelCollectionRDD$.slice(ParallelCollectionRDD.scala:152)
\tat example.train.Steps$$anonfun$main$4.apply(Steps.scala:78)
\tat java.base/java.lang.Thread.run(Thread.java:748)
"""
WINDOWS = """\
Traceback (most recent call last):
  File "C:\\Users\\ada\\train.py", line 7, in main
    print(text)
  File "C:\\Python313\\Lib\\encodings\\cp1252.py", line 19, in encode
    return codecs.charmap_encode(input, self.errors, encoding_table)[0]
UnicodeEncodeError: 'charmap' codec can't encode character '\\u2713' in position 2
"""
IMPORTED = """\
Traceback (most recent call last):
  File "/home/ada/train.py", line 7, in <module>
    import torch
  File "/env/lib/python3.11/site-packages/torch/serialization.py", line 18, in <module>
    from lossy import Self
ModuleNotFoundError: No module named 'lossy'
"""
COMPILED = """\
Traceback (most recent call last):
  File "/home/ada/model.py", line 7, in forward
    return net(x)
  File "/tmp/torchinductor_ada/yn/cyn.py", line 4003, in call
    buf = empty((64, 256), device='cuda')
RuntimeError: the shape is not known
"""
INTERRUPTED = """\
Traceback (most recent call last):
  File "/home/ada/model.py", line 7, in forward
    return net(x)
  File "/env/lib/python3.11/site-packages/torch/utils/data/_utils/signal_handling.py", line 66, in f
    _error_if_any_worker_fails()
RuntimeError: DataLoader worker (pid 2978) is killed by signal: Killed.
"""


@pytest.mark.parametrize(
    ("log", "told", "not_told"),
    [
        (JAVA, "(at Steps.scala:78)", "ParallelCollection"),
        (WINDOWS, "at C:/Users/ada/train.py:7", "cp1252.py"),
        (IMPORTED, "at /home/ada/train.py:7, in torch/serialization.py:18", "a checkpoint"),
        (COMPILED, "at /home/ada/model.py:7", "inductor"),
        (INTERRUPTED, "process 2978", "model.py"),
    ],
)
def test_an_exception_is_at_the_code_of_its_user(
    log: str, told: str, not_told: str, tmp_path: Path
) -> None:
    says = cause(tmp_path, log).says
    assert (told in says, not_told in says) == (True, False), says


def test_the_run_after_one_that_failed_counts_where_it_went_well(tmp_path: Path) -> None:
    start = "2026-11-22 16:09:24.6: I tensorflow/core/platform/cpu_feature_guard.cc:193] Built.\n"
    failed = f"{start}Serving the model\nAddress already in use\n"
    served = "".join(f"POST /extract {n} 200\n" for n in range(40))
    served += "/env/rank.py:161: RuntimeWarning: Mean of empty slice\n  norm(axis=0)\nPOST 200\n"
    log = tmp_path / "x.log"
    for text, found in ((failed, True), (failed + served, True), (failed + start + served, False)):
        log.write_text(text)
        diagnosis = diagnose(own_rules(), [Source(path=log)])
        assert (diagnosis.cause is not None) is found, text
    assert "x.log:3: an earlier run in it had ended with: Address" in diagnosis.notes[0]


@pytest.mark.parametrize(
    ("later", "where", "rule"),
    [
        ("13:59:43", "n7 rank 6", "torchrun-report"),
        ("13:59:14", "", "rank-killed"),  # the kernel may have killed it and the first at once
    ],
)
def test_a_rank_that_torchrun_killed_after_another_had_failed_is_not_the_cause(
    later: str, where: str, rule: str, tmp_path: Path
) -> None:
    report = SIGNALLED.partition("\n")[2].replace("11", "9").replace("SIGSEGV", "SIGKILL")
    others, _, root = report.partition("Root Cause")
    root = root.replace("exitcode  : -9", "exitcode  : 1").rpartition("  traceback")[0]
    log = f"{others.replace('13:59:12', later)}Root Cause{root}"
    error = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    found = cause(tmp_path, error + log.replace("2026-9-22", "2026-11-22"))
    assert (found.rule, found.where) == (rule, where)


@pytest.mark.parametrize(
    ("step", "rule"), [("14:00:02", "slurm-report"), ("14:05:01", "cancelled")]
)
def test_tasks_that_had_failed_long_before_a_job_was_cancelled_are_told(
    step: str, rule: str, tmp_path: Path
) -> None:
    log = (
        f"srun: error: n1: tasks 1-2: Exited with exit code 1\n"
        f"slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-22T{step} ***\n"
        f"slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-22T14:05:02 ***\n"
    )
    assert cause(tmp_path, log).rule == rule


BUS = "srun: error: n1: task 0: Bus error (core dumped)\n"
KILLED = "[99.1] Out of memory: Killed process 7 (python) total-vm:1kB, anon-rss:2kB\n"
SHORT = "srun: error: n2: task 5: Out Of Memory\n"


@pytest.mark.parametrize(
    ("log", "place", "also"),
    [
        (BUS + KILLED + SHORT, ("bus-error", "n1"), "On n2 memory was not enough"),
        (KILLED + SHORT + BUS, ("oom-killer", "n2"), "On n1 shared memory was not enough"),
        (SHORT + BUS, ("slurm-memory-limit", "n2"), "On n1 shared memory was not enough"),
        (BUS + SHORT.replace("n2", "n1"), ("slurm-memory-limit", "n1"), ""),
    ],
)
def test_of_memory_and_shared_memory_the_first_is_told_and_both(
    say: Callable[[str], Diagnosis], log: str, place: tuple[str, str], also: str
) -> None:
    cause = say(log).cause
    assert cause is not None
    assert (cause.rule, cause.node) == place
    assert also in cause.says
    assert ("both hold" in cause.says) == bool(also)
