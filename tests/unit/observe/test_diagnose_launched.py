"""A traceback behind each launcher's prefix, and the rank that the launcher names after it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clusterkit.observe.diagnose.verdict import Diagnosis

Say = Callable[[str], Diagnosis]

RAISED = """\
Traceback (most recent call last):
  File "/home/ada/train.py", line 9, in main
    model.fit(data)
  File "/env/lib/python3.11/site-packages/shelf/core.py", line 71, in fit
    raise ValueError(text)
ValueError: the model has a head too many
"""
CLEANED = """
During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/home/ada/train.py", line 12, in main
    writer.close()
AttributeError: 'NoneType' object has no attribute 'close'
"""
SPAWNED = "\n-- Process 1 terminated with the following error:\n"
OF_MPIRUN = """\
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[4711,1],3]
  Exit code:    1
"""
OF_TORCHRUN = """\
E1129 01:00:13.000000 139 torch/distributed/elastic/multiprocessing/api.py:833] failed \
(exitcode: 1) local_rank: 3 (pid: 4714) of binary: /env/bin/python3
"""
OF_SRUN = """\
srun: error: n2: task 3: Exited with exit code 1
srun: error: n1: tasks 0-2: Terminated
"""


@pytest.mark.parametrize("prefix", ["[1,3]<stderr>:", "[1,3]<stderr>: ", "[3]<stderr>:", "[3]: "])
def test_the_frames_behind_a_prefix_keep_their_own_spaces(say: Say, prefix: str) -> None:
    found = say("".join(f"{prefix}{line}\n" for line in RAISED.splitlines())).cause
    assert found is not None
    assert found.rank == 3
    assert "/home/ada/train.py:9, in shelf/core.py:71" in found.says


@pytest.mark.parametrize(
    ("log", "where"),
    [
        (RAISED + OF_MPIRUN, "rank 3"),
        (RAISED + OF_SRUN, "n2 rank 3"),
        (RAISED + "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD\n", "rank 3"),
        (SPAWNED + RAISED, "local rank 1"),
        (RAISED + OF_SRUN + "srun: error: n3: task 4: Exited with exit code 1\n", ""),
        (RAISED + OF_TORCHRUN + "srun: error: n2: task 1: Exited with exit code 1\n", "n2"),
    ],
)
def test_an_exception_without_a_rank_is_of_the_one_that_the_launcher_names(
    say: Say, log: str, where: str
) -> None:
    found = say(log).cause
    assert found is not None
    assert found.where == where


def test_the_first_exception_counts_whatever_the_form_of_its_name(say: Say) -> None:
    raised = RAISED.replace("ValueError", "subprocess.TimeoutExpired")
    found = say(raised + CLEANED).cause
    assert found is not None
    assert "TimeoutExpired" in found.says


QUOTED = """\
Traceback (most recent call last):
  File "/home/ada/train.py", line 9, in main
    load(state)
  File "/env/lib/python3.11/site-packages/shelf/core.py", line 71, in load
    raise result
ShelfException: ranks:dict_keys([0])
Traceback (most recent call last): (RANK 0)
  File "/env/lib/python3.11/site-packages/shelf/plan.py", line 7, in plan
    raise RuntimeError(key)
RuntimeError: Missing key in checkpoint state_dict: head.weight.
"""
LONGER = RAISED.replace("ValueError: ", "ShelfException: You asked for a GPU.\n But ").replace(
    "the model has a head too many", "your machine only has: [0]"
)


@pytest.mark.parametrize("log", [QUOTED, LONGER])
def test_a_line_of_a_longer_message_is_told_with_the_line_of_the_script(say: Say, log: str) -> None:
    found = say(log).cause
    assert found is not None
    assert found.rule not in {"python-exception", "framework-error"}
    assert "/home/ada/train.py:9" in found.says


def test_a_later_exception_is_told_with_its_message_on_the_next_line(say: Say) -> None:
    later = CLEANED.replace("'NoneType' object", "\n    'NoneType' object")
    found = say(RAISED + later).cause
    assert found is not None
    assert "that led to AttributeError: 'NoneType' object has no attribute" in found.says


IN_DATA = """\
Traceback (most recent call last):
  File "/home/ada/data.py", line 19, in __next__
    raise StopIteration
"""


def test_the_exception_of_the_rank_that_others_wait_for_is_the_cause(say: Say) -> None:
    stalled = "W horovod/stall_inspector.cc:107] One or more tensors were submitted to be reduced"
    log = f"[1,0]<stderr>:{stalled}, gathered or broadcasted by subset of ranks\n"
    log += "[1,0]<stderr>:Missing ranks:\n[1,0]<stderr>:3: [grad.0]\n"
    log += "".join(f"[1,3]<stderr>:{line}\n" for line in (*IN_DATA.splitlines(), "StopIteration"))
    found = say(log).cause
    assert found is not None
    assert (found.rank, found.rule) == (3, "exception-named")
    assert "/home/ada/data.py:19" in found.says


def test_an_exception_of_a_task_of_spark_has_the_node_on_which_the_task_failed(say: Say) -> None:
    end = "org.apache.spark.SparkException: Job aborted due to stage failure: Task 4 in stage 7.0"
    lost = "failed 4 times, most recent failure: Lost task 4.3 in stage 7.0 (TID 9)"
    found = say(
        f"{IN_DATA}ValueError: no rows\n{end} {lost} (10.1.1.9 executor 2): PythonException\n"
    ).cause
    assert found is not None
    assert found.node == "10.1.1.9"


def test_a_network_card_without_room_is_no_full_disk(say: Say) -> None:
    found = say(
        "n1:7:9 [1] net.c:291 WARN NET/OFI no fabric domain: No space left on device\n"
    ).cause
    assert found is None or found.rule != "disk-full"


def test_keys_below_a_validation_error_are_told(say: Say) -> None:
    says = "  Input should be a valid number [type=float_parsing, input_value='le-4']"
    error = f"pydantic_core.ValidationError: 1 validation error for Settings\noptim.lr\n{says}\n"
    found = say(IN_DATA + error).cause
    assert found is not None
    assert "optim.lr Input should be a valid number" in found.title
