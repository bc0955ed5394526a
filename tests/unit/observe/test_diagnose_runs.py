"""Of a file that more than one run has written to, the last run is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clusterkit.observe.diagnose.verdict import Diagnosis

Say = Callable[[str], Diagnosis]

END = "slurmstepd: error: *** JOB {} ON n1 CANCELLED AT 2026-11-22T14:05:02{} ***\n"
LIMIT = " DUE TO TIME LIMIT"
BEGINS = "Loading the vocabulary of the model\n"
STEPS = "".join(f"step {n}/100 loss 2.{n}\n" for n in range(3))


def told(found: Diagnosis) -> str | None:
    return None if found.cause is None else f"{found.cause.rule} {found.cause.evidence.line}"


@pytest.mark.parametrize("first", ["KeyError: 'lr'\n", "", STEPS])
def test_of_several_jobs_that_slurm_ended_the_last_is_told(say: Say, first: str) -> None:
    lines = first.count("\n")
    log = f"{first}{END.format(7, LIMIT)}{STEPS}{END.format(8, '')}"
    assert told(say(log)) == f"cancelled {lines + 5}"
    failed = f"{first}{END.format(7, '')}ValueError: x\n{END.format(8, LIMIT)}"
    assert told(say(failed)) == f"python-exception {lines + 2}"


def test_what_one_job_prints_before_and_after_its_end_is_told_together(say: Say) -> None:
    late = "RuntimeError: DataLoader worker (pid 7) is killed by signal: Terminated.\n"
    log = f"ValueError: x\n{END.format(7, LIMIT)}{late}{END.format(7, '')}"
    assert told(say(log)) == "python-exception 1"


def test_a_first_line_that_stands_there_again_begins_another_run(say: Say) -> None:
    usage = "usage: train.py [-h] [--lr LR] [--steps STEPS]\n"
    log = "".join(
        f"{usage}train.py: error: argument --{name}: invalid choice: 'x'\n"
        for name in ("lr", "steps")
    )
    assert told(say(log)) == "wrong-arguments 4"
    runs = f"{BEGINS}KeyError: 'lr'\n{BEGINS}{STEPS}ValueError: x\n"
    assert told(say(runs)) == "python-exception 7"


def test_a_first_line_that_every_process_prints_begins_none(say: Say) -> None:
    reset = "RuntimeError: Connection reset by peer\n"
    log = f"{BEGINS}{BEGINS}KeyError: 'lr'\n{BEGINS}{reset}"
    assert told(say(log)) == "python-exception 3"
    ranked = f"{BEGINS}[rank1]: KeyError: 'lr'\n{BEGINS}[rank0]: {reset}"
    assert told(say(ranked)) == "python-exception 2"


def test_a_run_under_nohup_begins_another_one_below_what_was_killed(say: Say) -> None:
    log = f"{BEGINS}{STEPS}Killed\nnohup: ignoring input\n{BEGINS}{STEPS}Killed\n"
    found = say(log)
    assert told(found) == f"rank-killed {log.count(chr(10))}"
    assert "steps stand after it" not in (found.cause.says if found.cause else "")


@pytest.mark.parametrize("first", ["a b c", "warning: some of it is not known", "-" * 40])
def test_a_first_line_that_says_little_begins_none(say: Say, first: str) -> None:
    log = f"{first}\nKeyError: 'lr'\n{first}\nRuntimeError: Connection reset by peer\n"
    assert told(say(log)) == "python-exception 2"


def test_a_first_line_that_stands_again_far_behind_any_failure_begins_a_run(say: Say) -> None:
    filler = "loading the next part of the data set\n"
    runs = f"{BEGINS}KeyError: 'lr'\n{filler * 20_000}{BEGINS}{filler * 20_000}ValueError: x\n"
    assert told(say(runs)) == "python-exception 40004"


def test_a_first_line_with_another_time_begins_another_run(say: Say) -> None:
    begins = "- INFO - loading the settings of the run\n"
    log = (
        f"2026-11-22 08:00:01 {begins}OSError: [Errno 98] Address already in use\n"
        f"2026-11-22 09:30:44 {begins}ValueError: x\n"
    )
    assert told(say(log)) == "python-exception 4"


OTHER = "PROJ: the grid of the model is ready now\n"
TF = "2026-11-22 09:30:44.1: I core/port.cc:153] oneDNN custom operations are on. You may see\n"
MISSING = "ModuleNotFoundError: No module named 'tables'\n"


@pytest.mark.parametrize(
    ("log", "line", "earlier"),
    [
        (f"Sun Nov 22 08:00:01 2026\n{OTHER}KeyError: 'lr'\n{OTHER}ValueError: x\n", 5, [3]),
        (f"{MISSING}{TF}{STEPS}ValueError: x\n", 6, [1]),
        (f"{MISSING}Namespace(lr=1)\nValueError: x\n", 3, [1]),
        (f"{OTHER}{OTHER}KeyError: 'lr'\n{OTHER}RuntimeError: Connection reset by peer\n", 3, []),
        (f"{OTHER}KeyError: 'lr'\n{STEPS}ValueError: x\n", 2, []),
        (f"[rank1]: KeyError: 'lr'\n{TF}[rank0]: ValueError: x\n", 1, []),
    ],
)
def test_what_programs_print_as_they_start_begins_a_run(
    say: Say, log: str, line: int, earlier: list[int]
) -> None:
    found = say(log)
    assert told(found) == f"python-exception {line}" or line == 1
    places = [note.partition(": an earlier run in it had ended with: ") for note in found.notes]
    assert [int(place.rpartition(":")[2]) for place, _, _ in places] == earlier


@pytest.mark.parametrize("last", ["Saved the table", "Error with mp-7, confirm existence"])
def test_what_is_said_of_many_things_in_turn_is_no_end(say: Say, last: str) -> None:
    refused = "main.py: error: unrecognized arguments: --lr\n"
    turns = "".join(
        f"{'built the graph of' if n % 9 else 'Error with'} mp-{n}, confirm existence\n"
        for n in range(400)
    )
    assert (say(f"{refused}{turns}{last}\n").cause is None) == last.startswith("Saved")


WORKS = "".join(f"{n} of the tasks in the table were read\n" for n in range(200))
RAISED = (
    "Traceback (most recent call last):\n"
    '  File "score.py", line 7, in <module>\n'
    "    task = tasks[name]\n"
    "KeyError: 'winograd'\n"
)


@pytest.mark.parametrize(
    "first",
    ["score.py: error: unrecognized arguments: --tables x\n", RAISED.replace("winograd", "wino")],
)
def test_of_the_programs_of_a_script_the_last_that_failed_is_told(say: Say, first: str) -> None:
    lines = (first + WORKS + RAISED).count("\n")
    found = say(first + WORKS + RAISED)
    assert told(found) == f"python-exception {lines}"
    assert [note.rpartition(" with: ")[2] for note in found.notes] == [first.splitlines()[-1]]
    some = "".join(WORKS.splitlines(keepends=True)[:40])
    assert (told(say(first + some + RAISED)) == f"python-exception {lines - 160}") == (
        ": error: " in first
    )
    at_once = say(first + RAISED)
    assert told(at_once) != f"python-exception {(first + RAISED).count(chr(10))}"


def test_what_a_rank_raised_before_others_is_no_end_of_an_earlier_program(say: Say) -> None:
    report = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    late = RAISED.replace("KeyError: 'winograd'", "RuntimeError: Connection reset by peer")
    assert told(say(RAISED + WORKS + late + report)) == "python-exception 4"
    assert told(say(f"[rank1]: ValueError: x\n{WORKS}{late}")) == "python-exception 1"


@pytest.mark.parametrize(
    ("bar", "last"),
    [
        ("Training loss: 2.69e+00 lr: 4.09e-05", None),
        ("Reading the shards of the lesser table", "KeyError"),
    ],
)
def test_a_bar_that_tells_of_its_training_at_length_is_one_of_steps(
    say: Say, bar: str, last: str | None
) -> None:
    steps = "".join(
        f"{bar}:   1%|1   | {n}/10000 [02:24<7:15:32,  2.63s/it]\n" for n in range(1, 9)
    )
    found = say(RAISED + steps)
    assert (found.cause is None) == (last is None)


def raised(script: str, error: str) -> str:
    frame = f'  File "{script}", line 3, in <module>\n    main()\n'
    return f"Traceback (most recent call last):\n{frame}{error}\n"


def test_another_script_that_had_begun_to_work_is_told_before_the_one_that_failed_first(
    say: Say,
) -> None:
    first = raised("/home/u/plot.py", "ModuleNotFoundError: No module named 'plots'")
    last = raised("/home/u/eval.py", "ValueError: no rows")
    work = "reading the rows\nscoring the rows\nwriting the rows\n"
    assert told(say(f"{first}{work}{last}")) == "python-exception 11"
    # A parent tells of its child, and a rank of a launcher runs the same script.
    assert told(say(f"{first}{last}")) == "module-missing 4"
    same = raised("/home/u/plot.py", "ValueError: no rows")
    assert told(say(f"{first}{work}{same}")) == "module-missing 4"
    launcher = raised("/opt/env/bin/launch", "ValueError: no rows")
    assert told(say(f"{first}{work}{launcher}")) == "module-missing 4"


def test_lines_without_a_node_are_compared_with_those_of_no_other(say: Say) -> None:
    missing = "FileNotFoundError: [Errno 2] No such file or directory: 'data/train.bin'"
    comm = "n1:4711:4719 [0] NCCL INFO comm 0x41b2af60 rank 0 nranks 1 cudaDev 0 - Abort COMPLETE"
    assert told(say(f"[rank0]: {missing}\n{comm}\n")) == "file-not-found 1"
    of_nodes = "".join(f"[node-{node}] step {step}\n" for step in (1, 2) for node in (0, 1))
    assert told(say(f"{of_nodes}[node-1] {missing}\n")) == "file-missing-here 5"


STOPPED = raised("/home/u/train.py", "KeyboardInterrupt")


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (f"^CError executing job with overrides: ['lr=1']\n{STOPPED}", 5),
        (f"[2026-11-22 13:59:12,440][HYDRA] Error executing job with overrides: []\n{STOPPED}", 5),
        (f"Error in sys.excepthook:\n{STOPPED}\nOriginal exception was:\n{STOPPED}", 5),
        (f"could not count the tokens\n{STOPPED}", 5),
        (f"{STOPPED}wandb: waiting for the upload (failed 255)\n", 4),
        (f"{STOPPED}{raised('/home/u/train.py', 'NameError: name x is not defined')}", 4),
    ],
)
def test_after_a_ctrl_c_it_is_what_ended_the_program(say: Say, log: str, line: int) -> None:
    assert told(say(f"{STEPS}{log}")) == f"interrupted {line + STEPS.count(chr(10))}"


@pytest.mark.parametrize(
    "between",
    [
        f"{STOPPED}$ python train.py\nstep 1 loss 0.5\nstep 2 loss 0.4\n",
        "KeyboardInterrupt received, saving a checkpoint and going on\nstep 8\nstep 9\n",
    ],
)
def test_what_goes_on_after_a_ctrl_c_fails_of_itself(say: Say, between: str) -> None:
    failed = raised("/home/u/train.py", "KeyError: 'labels'")
    lines = (STEPS + between + failed).count("\n")
    assert told(say(f"{STEPS}{between}{failed}")) == f"python-exception {lines}"


@pytest.mark.parametrize(
    ("error", "ranks", "rule"),
    [
        ("KeyError: 'labels'", 3, "python-exception"),
        ("KeyError: 'labels'", 2, "bus-error"),
        ("RuntimeError: the peer has gone", 3, "bus-error"),
    ],
)
def test_what_several_ranks_raise_themselves_goes_before_the_crash_of_another(
    say: Say, error: str, ranks: int, rule: str
) -> None:
    log = "".join(
        f"[rank{rank}]: {line}\n"
        for rank in range(ranks)
        for line in raised("/home/u/train.py", error).splitlines()
    )
    end = "E1122 13:59:12.540000 4711 torch/distributed/elastic/multiprocessing/api.py:1002] "
    found = say(f"{log}{end}failed (exitcode: -7) local_rank: 3 (pid: 4719) of binary: /bin/py\n")
    assert (told(found) or "").split()[0] == rule


STARTS = (
    "process 1{0} of the trainer\nreading the settings {0}\nthe model has 217{0} weights\n"
    "resuming from step 0{0}\n"
)
MISSED = raised(
    "/home/u/train.py", "FileNotFoundError: [Errno 2] No such file or directory: 'first.pth'"
)
SAVED = raised(
    "/home/u/train.py", "FileNotFoundError: [Errno 2] No such file or directory: 'last.pth'"
)
REPORTED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"


def test_a_script_that_was_started_again_is_told_by_its_last_end(say: Say) -> None:
    first, last = STARTS.format(1) + MISSED, STARTS.format(2) + STOPPED
    lines = (first + first + last).count("\n")
    found = say(first + first + last)
    assert told(found) == f"interrupted {lines}"
    assert [note.rpartition(" with: ")[2] for note in found.notes] == [MISSED.splitlines()[-1]]
    # Of a script that says nothing as it starts nobody knows whether these are two of its ranks.
    other = "reading more of the rows\nscoring the rows\nwriting the rows\n"
    assert told(say(f"{first}{other}{STOPPED}")) == f"file-not-found {first.count(chr(10))}"
    for report in (f"{last}{REPORTED}", last.replace("Keyboard", "[rank1]: Keyboard")):
        assert told(say(first + report)) == f"file-not-found {first.count(chr(10))}"


def test_of_the_same_kind_in_two_runs_the_line_of_the_last_is_told(say: Say) -> None:
    for between in (STARTS.format(2), WORKS):
        log = STARTS.format(1) + MISSED + between + SAVED
        found = say(log)
        assert told(found) == f"file-not-found {log.count(chr(10))}"
        assert "last.pth" in (found.cause.title if found.cause else "")


def test_arguments_that_were_refused_are_of_a_run_before(say: Say) -> None:
    refused = "train.py: error: unrecognized arguments: 400--data_root\n"
    log = f"{refused}the number of GPUs is 2\n{SAVED}"
    assert told(say(log)) == f"file-not-found {log.count(chr(10))}"
    assert told(say(refused + SAVED)) == "wrong-arguments 1"
    assert told(say(refused * 2)) == "wrong-arguments 1"


WARNED = "/opt/env/io/image.py:13: UserWarning: Failed to load the image extension\n"


def test_a_warning_of_each_process_tells_of_its_start(say: Say) -> None:
    ordinal, full = "ValueError: the ordinal is invalid\n", "KeyError: 'key'\n"
    assert told(say(f"{WARNED * 2}{ordinal * 2}{WARNED * 2}{full}")) == "python-exception 7"
    assert told(say(f"{WARNED * 2}{ordinal}{WARNED}{full}")) == "python-exception 3"


def test_a_run_of_wandb_after_the_report_of_a_launcher_is_the_next_one(say: Say) -> None:
    wandb = "wandb: Tracking run with wandb version 0.12.16\n"
    death = "WARNING:torch.distributed.elastic.agent.server.api:Received 1 death signal, shutting\n"
    log = f"{wandb}{MISSED}{REPORTED}{wandb}{STEPS}{death}"
    assert told(say(log)) == f"hangup {log.count(chr(10))}"
    assert told(say(f"{MISSED}{wandb}{STEPS}ValueError: x\n")) == "python-exception 9"


def test_what_was_printed_since_the_start_of_the_last_run_is_told_as_well(say: Say) -> None:
    unfit = "A40 with CUDA capability sm_86 is not compatible with the current PyTorch\n"
    log = f"{STARTS.format(1)}{MISSED}{unfit}{STARTS.format(2)}{SAVED}"
    found = say(log)
    assert told(found) == f"file-not-found {log.count(chr(10))}"
    assert [other.rule for other in found.others] == ["gpu-not-in-build"]
