"""A GPU that others hold, and what libraries and watchdogs print in other ways than most."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clusterkit.observe.diagnose.held import held_by_others
from clusterkit.observe.diagnose.verdict import Diagnosis

Say = Callable[..., Diagnosis]

BEFORE = (
    "RuntimeError: CUDA out of memory. Tried to allocate 64.00 MiB (GPU 2; 31.75 GiB total"
    " capacity; {own} GiB already allocated; 20.00 MiB free; {kept} {kind})"
)
NOW = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB. GPU 2 has a total"
    " capacity of 31.75 GiB of which 20.00 MiB is free. Including non-PyTorch memory, this process"
    " has {own} GiB memory in use."
)

LISTED = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB. GPU 2 has a total"
    " capacity of 31.75 GiB of which 20.00 MiB is free. Process 4711 has {one} GiB memory in use."
    " Process 4712 has 11.00 GiB memory in use. Of the allocated memory {own} GiB is allocated by"
    " PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated."
)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (BEFORE.format(own="1.50", kept="2.00 GiB", kind="reserved in total by PyTorch"), "30 GiB"),
        (BEFORE.format(own="1.50", kept="512.00 MiB", kind="cached"), "30 GiB"),
        (BEFORE.format(own="29.00", kept="30.00 GiB", kind="reserved in total by PyTorch"), ""),
        (NOW.format(own="4.00"), "28 GiB"),
        (NOW.format(own="31.00"), ""),
        (NOW.format(own="1.2.3"), ""),
        (LISTED.format(one="20.00", own="9.00"), "22 GiB"),
        (LISTED.format(one="2.00", own="28.00"), ""),
        ("RuntimeError: CUDA error: out of memory", ""),
    ],
)
def test_what_others_hold_of_a_gpu_is_what_is_neither_free_nor_ones_own(
    text: str, told: str
) -> None:
    said = held_by_others(text)
    assert said.endswith(f"about {told}.") if told else said == ""


def test_freeing_a_gpu_that_others_hold_comes_before_the_micro_batch(say: Say) -> None:
    found = say(f"step 1\n{NOW.format(own='4.00')}\n").cause
    assert found is not None
    assert "other processes hold about 28 GiB." in found.says
    assert found.do.startswith("Free the GPU first")
    assert found.advice is None
    alone = say(f"step 1\n{NOW.format(own='31.00')}\n").cause
    assert alone is not None
    assert (alone.do[:21], alone.advice) == ("Lower the micro batch", "estimate")


CAUGHT = (
    "[rank{rank}]:[E1122 13:59:12.440000123 ProcessGroupNCCL.cpp:607] [Rank {rank}]"
    " Watchdog caught collective operation timeout:{end}WorkNCCL(SeqNum=31, OpType=ALLGATHER,"
    "{within}NumelIn=8, NumelOut=64, Timeout(ms)=600000) ran for 600031 milliseconds before timing"
    " out.\n"
)


@pytest.mark.parametrize(("end", "within"), [(" \n", " "), ("\n", " "), (" ", " \n")])
def test_a_line_of_the_watchdog_that_was_broken_is_one_line(
    say: Say, end: str, within: str
) -> None:
    log = "".join(CAUGHT.format(rank=rank, end=end, within=within) for rank in (5, 6))
    found = say(log).cause
    assert found is not None
    assert (found.rule, found.ranks) == ("nccl-watchdog-timeout", (5, 6))
    assert "600000" in found.says
    assert found.evidence.line == 1


def test_the_number_of_a_line_below_a_broken_one_is_its_own(say: Say) -> None:
    log = CAUGHT.format(rank=5, end="\n", within=" ") + "x\nRuntimeError: CUDA out of memory. Tried"
    found = say(f"{log} to allocate 2.00 GiB\n").cause
    assert found is not None
    assert (found.rule, found.evidence.line) == ("cuda-out-of-memory", 4)


READ = "Error: the clip was not read\nclip 17\n"
SAVED = "the answers were saved to out.json\n"


def evaluated(*numbers: int) -> str:
    return "".join(f"Test  [{n:3}/90]  eta: 0:00:30  time: 0.31\n" for n in numbers)


def test_an_error_after_which_a_program_went_on_each_time_ended_nothing(say: Say) -> None:
    log = evaluated(10, 20) + READ + evaluated(30, 40, 50, 60, 70) + READ + evaluated(80) + SAVED
    assert say(log).cause is None


@pytest.mark.parametrize(
    "log",
    [
        evaluated(10, 20) + READ + evaluated(30, 40, 50, 60, 70) + READ,  # it ended with it
        evaluated(10, 20) + READ + READ + evaluated(80),  # it stands there twice at once
        evaluated(10, 20, 30, 40, 50, 60) + READ + evaluated(80),  # it was the only one
    ],
)
def test_an_error_without_a_way_on_counts(say: Say, log: str) -> None:
    found = say(log).cause
    assert found is not None
    assert found.rule == "error-line"


PRINTED = """\
Traceback (most recent call last):
  File "/env/lib/python3.12/site-packages/board/client.py", line 90, in _send
    self._post(message)
  File "/env/lib/python3.12/site-packages/board/http.py", line 31, in _post
    sock.connect(address)
ConnectionRefusedError: [Errno 111] Connection refused
"""
CANCELLED = "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-11-22T14:05:02 ***\n"
LIMIT = CANCELLED.replace(" ***\n", " DUE TO TIME LIMIT ***\n")


@pytest.mark.parametrize(("end", "rule"), [(CANCELLED, "cancelled"), (LIMIT, "time-limit")])
def test_what_a_library_printed_of_its_own_comes_after_the_end_from_outside(
    say: Say, end: str, rule: str
) -> None:
    found = say(f"a new session\n{PRINTED}{end}")
    assert found.cause is not None
    assert found.cause.rule == rule
    assert "connection-refused" in {other.rule for other in found.others}


def test_an_exception_of_the_script_comes_before_the_end_from_outside(say: Say) -> None:
    own = PRINTED.replace("/env/lib/python3.12/site-packages/board/client.py", "/home/ada/train.py")
    found = say(f"a new session\n{own}{CANCELLED}").cause
    assert found is not None
    assert found.rule == "connection-refused"


def test_the_end_from_outside_counts_though_a_library_printed_it(say: Say) -> None:
    """The signal came again, as Python's logging was telling of the first."""
    ended = (
        "Traceback (most recent call last):\n"
        '  File "/env/lib/python3.12/site-packages/torch/distributed/run.py", line 9, in run\n'
        "    result = agent.run()\n"
        '  File "/env/lib/python3.12/site-packages/torch/distributed/api.py", line 6, in _end\n'
        '    raise SignalException(f"Process {os.getpid()} got signal: {sigval}", sigval=sigval)\n'
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 71 got signal: 1\n"
    )
    during = "\nDuring handling of the above exception, another exception occurred:\n\n"
    logging = (
        "Traceback (most recent call last):\n"
        '  File "/usr/lib/python3.12/logging/__init__.py", line 1697, in isEnabledFor\n'
        "    return self._cache[level]\n"
        "KeyError: 30\n"
    )
    found = say(f"a new session\n{ended}{during}{logging}{during}{ended}").cause
    assert found is not None
    assert found.rule == "hangup"


def test_the_entity_that_wandb_does_not_know_is_quoted(say: Say) -> None:
    found = say(
        'ERROR SenderThread:7 [api.py:9] {"errors":[{"message":"entity blue-lab not found during'
        ' upsertBucket"}]}\n'
        "wandb.errors.CommError: Permission denied, ask the project owner to grant you access\n"
    ).cause
    assert found is not None
    assert found.rule == "wandb-refused"
    assert "entity blue-lab not found" in found.says


def test_ranks_in_different_collectives_get_nothing_from_each_other(say: Say) -> None:
    empty = (
        "RuntimeError: DDP expects same model across all ranks, but Rank 3 has 77 params, while"
        " rank 0 has inconsistent 0 params.\n"
    )
    apart = (
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 3 is running"
        " collective: CollectiveFingerPrint(SequenceNumber=7, OpType=ALLGATHER), but Rank 0 is"
        " running collective: CollectiveFingerPrint(SequenceNumber=7, OpType=ALLREDUCE).\n"
    )
    found = say(empty + apart)
    assert found.cause is not None
    assert "collective-empty" not in {found.cause.rule, *(other.rule for other in found.others)}


CHECK = """\
Traceback (most recent call last):
  File "/env/lib/python3.12/site-packages/torch/utils/data/_utils/fetch.py", line 32, in fetch
    data = next(self.dataset_iter)
  File "/home/ada/stream.py", line 41, in __iter__
    {code}
{raised}
"""


@pytest.mark.parametrize(
    ("code", "raised", "look"),
    [
        ("assert self._ring is not None", "AssertionError: the ring is not open", "which check"),
        ("return self.rows[at]", "IndexError: list index out of range", "Look for the sample"),
    ],
)
def test_a_check_of_the_script_is_looked_up_where_it_stands(
    say: Say, code: str, raised: str, look: str
) -> None:
    found = say(CHECK.format(code=code, raised=raised)).cause
    assert found is not None
    assert look in found.do


def test_the_node_of_an_error_of_slurmstepd_is_the_one_whose_task_ended(say: Say) -> None:
    found = say(
        "slurmstepd: error: pyxis: child 4711 failed with error code: 1\n"
        "slurmstepd: error: pyxis:     mkdir: cannot create directory '/run/x': Permission denied\n"
        "slurmstepd: error: write to unblock task 0 failed: Broken pipe\n"
        "srun: error: n7: task 0: Exited with exit code 1\n"
    )
    assert found.cause is not None
    assert (found.cause.rule, found.cause.node) == ("container-failed", "n7")
    assert "gloo-connection-lost" not in {other.rule for other in found.others}


def test_the_runs_of_a_sweep_that_failed_alike_are_counted(say: Say) -> None:
    run = (
        "wandb: Tracking run with wandb version 0.19.1\n{raised}\n"
        "subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit"
        " status 1.\n"
    )
    memory = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    missing = "FileNotFoundError: [Errno 2] No such file or directory: '/data/model_2.pt'"
    found = say("".join(run.format(raised=raised) for raised in (memory,) * 3 + (missing,)))
    assert found.cause is not None
    assert found.cause.rule == "file-not-found"
    assert [note.partition("with: ")[2] for note in found.notes] == [f"{memory} (3 lines like it)"]
