"""What stands beside the line that was found: the rank, the reason, the run that it is of."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clusterkit.cli.diagnose.report import answer
from clusterkit.observe.diagnose.verdict import Diagnosis, Finding

Say = Callable[[str], Diagnosis]

FIELDS = "consumed samples: 64 |{} loss scale: {} | grad norm: {} | number of skipped iterations: "
ITERATION = " iteration {:7}/ 100 | " + FIELDS + " {} | number of nan iterations:   0 |\n"
GOOD = ITERATION.format(11, " lm loss: 7.1E-01 |", "1.0", "0.741", 0)
LOST = ITERATION.format(12, "", "1.0", "nan", 0)
SKIPPED = ITERATION.format(12, "", "65536.0", "nan", 1)
KILLED = "failed (exitcode: -9) local_rank: 4 (pid: 4711) of binary: /usr/bin/python3\n"
CALLS = (
    "RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: "
    "Print(SequenceNumber=3, OpType=ALLREDUCE, TensorShape=[4]), but Rank 0 is running collective: "
    "Print(SequenceNumber=3, OpType=BROADCAST, TensorShape=[1]).\n"
)
TEED = "steps-0/0 [default6]:[rank6]: "
PTXAS = (
    f"{TEED}RuntimeError: Internal Triton PTX codegen error:\n"
    f"{TEED}ptxas fatal   : Value 'sm_999' is not defined for option 'gpu-name'\n"
)
MESH = """\
Failed to connect to client mesh master: n1.site.test:52997
Traceback (most recent call last):
  File "train.py", line 9, in <module>
    spawn(main)
torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with exit code 17
"""
POD = """\
mpirun -mca plm_rsh_agent /etc/mpi/kubexec.sh
command terminated with exit code 137
ORTE has lost communication with a remote daemon.
  HNP daemon   : [[27407,0],0] on node fit-launcher
  Remote daemon: [[27407,0],1] on node fit-worker-1
"""
USAGE = """\
usage: train.py [-h] [--data FOLDER] [--epochs N]
train.py: error: unrecognized arguments: --local_rank={}
"""
THROWN = "terminate called after throwing an instance of 'std::out_of_range'\n  what():  map::at\n"


def told(found: Diagnosis) -> Finding:
    assert found.cause is not None
    return found.cause


def shown(found: Diagnosis) -> str:
    return " ".join(" ".join(answer(told(found))).split())


def test_a_step_that_was_taken_with_gradients_that_are_no_numbers_is_told(say: Say) -> None:
    cause = told(say(GOOD + LOST))
    assert (cause.rule, cause.evidence.line) == ("gradients-lost", 2)
    assert "iteration 12 " in cause.says


@pytest.mark.parametrize("log", [GOOD + SKIPPED, LOST + GOOD, GOOD + LOST + GOOD, 9 * GOOD])
def test_a_step_that_was_skipped_or_did_no_harm_is_none(say: Say, log: str) -> None:
    assert say(log).cause is None


@pytest.mark.parametrize(
    ("log", "where"),
    [
        (KILLED, "local rank 4"),
        (CALLS, "ranks 0-1"),
        (PTXAS, "rank 6"),
        (MESH, "local rank 2"),
        (POD, "fit-worker-1"),
    ],
)
def test_the_rank_or_node_that_is_named_beside_is_where_it_was(
    say: Say, log: str, where: str
) -> None:
    assert f"where {where} do" in shown(say(log))


@pytest.mark.parametrize(
    ("log", "rule", "parts"),
    [
        (PTXAS, "compile-exception", ["Value 'sm_999' is not defined", "TRITON_PTXAS_PATH"]),
        (MESH, "xla-mesh-master", ["n1.site.test:52997", "process 0"]),
        (POD, "rank-killed", ["kubectl describe pod"]),
    ],
)
def test_the_line_beside_it_tells_the_reason(
    say: Say, log: str, rule: str, parts: list[str]
) -> None:
    found = say(log)
    assert told(found).rule == rule
    assert [part for part in parts if part not in shown(found)] == []


@pytest.mark.parametrize("log", ["".join(map(USAGE.format, (2, 0, 1))), 3 * THROWN])
def test_ranks_of_one_run_that_end_alike_are_no_earlier_runs(say: Say, log: str) -> None:
    launcher = "subprocess.CalledProcessError: Command '['python', 'train.py']' died.\n"
    found = say(f"{log}{launcher}")
    assert told(found).count == 3
    assert found.notes == ()


def test_what_a_script_says_before_it_refuses_its_arguments_again_is_of_another_run(
    say: Say,
) -> None:
    refused = USAGE.replace("=", " is no ")
    found = say("".join(f"pid: {n}\n{refused.format(n)}" for n in (41, 42)))
    assert told(found).evidence.text.endswith("is no 42")
    assert len(found.notes) == 1


def errors(said: str, count: int) -> str:
    return count * f"Error in the part of rows: {said}\n"


def test_of_runs_that_left_only_errors_the_last_is_told_and_its_lines_are_counted(say: Say) -> None:
    rest = 7 * "Error making the table: name 'put' is not there\n"
    cause = told(say(errors("the path is no list", 75) + errors("name 'rows' is bad", 9) + rest))
    assert cause.title.endswith("Error making the table: name 'put' is not there")
    assert (cause.evidence.line, cause.count) == (85, 7)


def test_of_fewer_errors_the_first_is_told(say: Say) -> None:
    cause = told(say(errors("the path is no list", 8) + errors("name 'rows' is bad", 9)))
    assert (cause.evidence.line, cause.count) == (1, 8)
