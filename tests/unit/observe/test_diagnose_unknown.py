"""What is told of failures that no rule knows: the first exception or error, and its place."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clusterkit.observe.diagnose.verdict import Diagnosis
from tests.helpers.diagnose_rules import root_cause

Say = Callable[[str], Diagnosis]
ELSEWHERE = (
    "slurmstepd: error: couldn't chdir to `/work/x': No such file or directory: going to /tmp "
    "instead\n"
)
LEFT = "[rank0]:[W124 14:24:02.3 P.cpp:12] Warning: WARNING: process group has NOT been destroyed "
LEFT += "before we destruct it."
TABLE = "a row of a table\n" * 40
REPORT = "srun: error: n1: task 0: Exited with exit code 1"
STEPS = "".join(f"step {n}/100 loss 2.{n}\n" for n in range(20))
TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/opt/x/train.py", line 7, in step',
    "    run()",
    "ValueError: the batch is empty",
)


def told(found: Diagnosis) -> str:
    assert found.cause is not None
    return f"{found.cause.title}: {found.cause.says}"


@pytest.mark.parametrize(
    "prefix",
    [
        *("Worker 0: ", "gpu-12 ", "[INFO] ", "0: [rank3]: ", "train-0 0 ", "10.0.0.2: ", "| "),
        *("[NeMo E 2026-11-22 07:39:42 exp_manager:423] ", "(TrainActor pid=950, ip=10.0.0.2) "),
        *("ERROR:root:", "[2026-11-22 10:00:00,123] [ERROR] ", "E1122 10:00:00.000000 1234 "),
        *("2026-11-22T16:40:02.222-07:00 | ", "  | 2026-11-22T16:40:02.222-07:00 | ", "      "),
        *("\x1b[36mray::step()\x1b[0m ", "3%|# | 3/99 [00:01<00:09, 1.2it/s]\r[rank0]: "),
    ],
)
def test_what_stands_before_each_line_of_a_traceback_hides_nothing(say: Say, prefix: str) -> None:
    words = told(say("".join(f"{prefix}{line}\n" for line in TRACEBACK)))
    assert "ValueError: the batch is empty (at /opt/x/train.py:7)" in words


def test_a_warning_before_each_line_is_no_prefix(say: Say) -> None:
    log = "".join(f"WARNING:root:{line}\n" for line in TRACEBACK)
    assert say(log).cause is None


@pytest.mark.parametrize(
    "line",
    [
        '{"log":"ValueError: the batch is empty\\n","stream":"stderr","time":"14:05Z"}',
        '{"levelname": "ERROR", "name": "root", "message": "ValueError: the batch is empty"}',
        "Epoch 1:  12%|#8  | 12/100 [00:10<01:10,  1.25it/s]ValueError: the batch is empty",
    ],
)
def test_an_exception_is_found_inside_of_a_line(say: Say, line: str) -> None:
    assert "ValueError: the batch is empty" in told(say(line))


def test_what_a_logger_tells_as_a_warning_is_none(say: Say) -> None:
    assert say('{"level": "warning", "message": "ValueError: row skipped"}').cause is None


def test_an_assertion_without_words_is_told_by_its_code(say: Say) -> None:
    log = "\n".join(
        (*TRACEBACK[:2], "    assert world % tp == 0", "           ^^^^^", "AssertionError")
    )
    assert "AssertionError: assert world % tp == 0 (at /opt/x/train.py:7)" in told(say(log))


def test_the_place_is_the_innermost_of_no_library(say: Say) -> None:
    library = '  File "/env/lib/python3.11/site-packages/x/y.py", line 3, in z\n    z()\n'
    log = "\n".join(TRACEBACK[:3]) + "\n" + library + TRACEBACK[3]
    assert "(at /opt/x/train.py:7, in x/y.py:3)" in told(say(log))


@pytest.mark.parametrize(
    ("frame", "doing"),
    [
        (
            'site-packages/torch/utils/data/_utils/fetch.py", line 3, in fetch',
            "a sample or a batch",
        ),
        ('site-packages/torch/serialization.py", line 3, in _load', "a checkpoint was read"),
        ('site-packages/x/models.py", line 3, in from_pretrained', "a model or its parts"),
        ('site-packages/torch/distributed/a.py", line 3, in init_process_group', "were to meet"),
        ('site-packages/torch/autograd/__init__.py", line 3, in backward', "the backward pass"),
        ('site-packages/torch/optim/adam.py", line 3, in step', "in a step of the optimizer"),
    ],
)
def test_an_exception_is_told_with_what_the_program_was_doing(
    say: Say, frame: str, doing: str
) -> None:
    outer = f'  File "/env/lib/python3.11/{frame}\n    run()\n'
    log = f"{TRACEBACK[0]}\n{outer}" + "\n".join(TRACEBACK[1:])
    assert doing in told(say(log))
    nested = "\n".join(TRACEBACK[:3]) + f"\n{outer}{TRACEBACK[3]}"
    assert doing in told(say(nested))


def test_a_function_that_loads_shards_of_data_is_no_checkpoint(say: Say) -> None:
    for name in ("load_shard", "load_shard_index", "load_checkpoint_list"):
        own = f'  File "/opt/x/data.py", line 3, in {name}\n    return INDEX[name]\nKeyError: 3'
        words = told(say("\n".join(TRACEBACK[:3]) + f"\n{own}"))
        assert "a checkpoint could" not in words, name
        assert "KeyError: 3" in words


def test_a_rule_that_tells_no_place_is_given_that_of_the_script(say: Say) -> None:
    raised = "RuntimeError: each element in list of batch should be of equal size"
    library = '  File "/env/lib/python3.11/site-packages/x/y.py", line 3, in z\n    z()\n'
    words = told(say("\n".join(TRACEBACK[:3]) + f"\n{library}{raised}"))
    assert words.endswith("It came up at /opt/x/train.py:7, in x/y.py:3.")
    assert "came up" not in told(say(f"{TRACEBACK[0]}\n{library}{raised}"))
    launcher = '  File "/env/bin/torchrun", line 8, in <module>\n    sys.exit(main())\n'
    assert "came up" not in told(say(f"{TRACEBACK[0]}\n{launcher}{library}{raised}"))


BOXED = """\
\u256d\u2500 Traceback (most recent call last) \u2500\u2500\u256e
\u2502 /opt/x/train.py:7 in step          \u2502
\u2502                                    \u2502
\u2502 \u2771  7 \u2502   fetch()                  \u2502
\u2502    8 \u2502                            \u2502
\u2502                                    \u2502
\u2502 /env/lib/python3.11/site-packages/ \u2502
\u2502 torch/utils/data/a.py:12 in read   \u2502
\u2502                                    \u2502
\u2502   11 \u2502                            \u2502
\u2502 \u2771 12 \u2502   assert size > 0          \u2502
\u2570\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u256f
{raised}
"""


def test_the_place_is_found_in_the_box_of_rich(say: Say) -> None:
    place = "at /opt/x/train.py:7, in torch/utils/data/a.py:12, as a sample or a batch"
    assert f"KeyError: 'x' ({place}" in told(say(BOXED.format(raised="KeyError: 'x'")))
    assert "assert size > 0" in told(say(BOXED.format(raised="AssertionError")))


def test_the_hint_of_tensorflow_1_hides_no_exception(say: Say) -> None:
    assert "the batch is empty" in told(
        say("ValueError (see above for traceback): the batch is empty")
    )


@pytest.mark.parametrize("codes", [(1, 1), (-6, -6)])
def test_of_a_report_alone_the_first_rank_is_told(say: Say, codes: tuple[int, int]) -> None:
    first = root_cause("n7", 5).replace("exitcode  : 1", f"exitcode  : {codes[0]}")
    head = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
    aborted = "  traceback : Signal 6 (SIGABRT) received by PID 4711\n" if codes[0] < 0 else ""
    found = say(head + 2 * aborted + first).cause
    assert found is not None
    assert found.where == "n7 rank 5"


def test_an_exception_is_told_with_what_it_led_to(say: Say) -> None:
    chain = "During handling of the above exception, another exception occurred:"
    second = (*TRACEBACK[:3], "RuntimeError: could not build it")
    words = told(say("\n".join((*TRACEBACK[:3], "KeyError: 'hidden'", "", chain, "", *second))))
    assert "KeyError: 'hidden' (at /opt/x/train.py:7); that led to RuntimeError: could not" in words


def test_an_exception_that_was_caught_is_not_the_later_one(say: Say) -> None:
    caught = "\n".join((*TRACEBACK[:3], "ValueError: not uploaded, never mind"))
    assert "the batch is empty" in told(say(f"{STEPS}{caught}\n{STEPS}" + "\n".join(TRACEBACK)))


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (f"{STEPS}[main.py:99] [ERROR] no shard is left", "no shard is left"),
        (f"CRITICAL:root:no shard is left\n{REPORT}", "no shard is left"),
        ("usage: train.py [-h]\ntrain.py: error: ambiguous option: --l", "ambiguous option: --l"),
        ("run.sh: line 5: MASTER_ADDR: unbound variable", "MASTER_ADDR: unbound variable"),
        ("panic: runtime error: index out of range [3]\n\ngoroutine 1:", "index out of range"),
        ("thread 'main' panicked at src/x.rs:42:9:\nindex out of bounds", "src/x.rs:42:9"),
        (f"the vocabulary could not be read\n{REPORT}", "the vocabulary could not be read"),
        ("terminate called after throwing an instance of 'E'\n  what():  no shard", "no shard"),
        ("  FATAL: no shard is left", "no shard is left"),
        ("F1122 13:59:12.6 7 x.cc:9] Non-OK-status: s\nStatus: INTERNAL: no kernel", "no kernel"),
    ],
)
def test_the_last_error_is_told_where_no_rule_knows_one(say: Say, log: str, words: str) -> None:
    assert words in told(say(log))


@pytest.mark.parametrize(
    "log",
    [
        f"ERROR: the cache was not found\n{STEPS}",
        "[1] PMIX ERROR in file x.c at line 1\n" + "a row of a table\n" * 20,
        "the vocabulary could not be read",
        f"{ELSEWHERE}{TABLE}{LEFT}",
        "srun: error: spank: x11.so: Plugin file not found" + "\na row of a table" * 20,
    ],
)
def test_an_error_after_which_all_goes_on_is_none(say: Say, log: str) -> None:
    assert say(log).cause is None


def test_a_daemon_of_slurm_is_of_its_node(say: Say) -> None:
    refused = "slurmstepd-n1: error: couldn't chdir to `/home/x': "
    for why, rule in (
        ("No such file or directory", "working-folder-missing"),
        ("Permission denied", "slurm-step-failed"),
    ):
        found = say(refused + why)
        assert found.cause is not None
        assert (found.cause.rule, found.cause.node) == (rule, "n1")


@pytest.mark.parametrize(
    ("head", "place"),
    [
        (TRACEBACK[:3], "/opt/x/train.py:7"),
        (
            (
                "ray.exceptions.RayTaskError: ray::f() (pid=7, ip=10.0.0.2)",
                '  File "python/ray/_raylet.pyx", line 5, in ray._raylet.execute_task',
                *TRACEBACK[1:3],
                '  File "python/ray/_raylet.pyx", line 9, in ray._raylet.x',
            ),
            "/opt/x/train.py:7",
        ),
    ],
)
@pytest.mark.parametrize(
    "last",
    [
        *("Exception: no shard is left", "KeyError: no shard is left"),
        *("cv2.error: no shard is left", "x.BrokenProcessPool: no shard is left"),
        "grpc._channel._InactiveRpcError: no shard is left",
    ],
)
def test_a_bare_exception_and_one_below_rays_are_told(
    say: Say, head: tuple[str, ...], place: str, last: str
) -> None:
    assert f"{last} (at {place})" in told(say("\n".join((*head, last))))


def test_what_tensorflow_puts_below_its_exception_is_its_cause(say: Say) -> None:
    log = "x.InternalError: 2 root error(s) found.\n  (0) Internal: no output from node y\n"
    assert "Internal: no output from node y" in told(say(log))


def test_a_cause_before_some_steps_is_in_doubt(say: Say) -> None:
    raised = "\n".join(TRACEBACK)
    rows = [f"Train Epoch: 1 [{n}00/600 ({n}%)]\tLoss: 0.{n}\n" for n in range(7)]
    doubt = "it may not be what ended the job"
    assert doubt in told(say(f"{raised}\n{''.join(rows[:3])}"))
    assert doubt not in told(say(f"{''.join(rows)}{raised}\n"))
    assert doubt not in told(say(f"{raised}\n{rows[0]}"))
    assert say(f"{raised}\n{''.join(rows)}").cause is None


def test_a_step_that_slurm_ended_need_not_have_failed(say: Say) -> None:
    line = "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-22T14:05:02 ***"
    assert "somebody or a limit ended the step" in told(say(f"{STEPS}{line}"))


def test_the_word_of_a_spawner_is_no_exception_of_the_script(say: Say) -> None:
    spawned = "\n".join((*TRACEBACK[:3], "Exception: process 1 terminated with exit code 1"))
    found = say(spawned)
    assert found.cause is not None
    assert found.cause.rule == "launcher-report"
    words = told(say("\n".join((*TRACEBACK[:3], "Exception: ", "", "-- Process 0:", *TRACEBACK))))
    assert "ValueError: the batch is empty" in words


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ValueErrorValueError: : no lrno lr", "no lr"),
        ("ValueErrorValueError: : no lrno step", "no lrno step"),
    ],
)
def test_an_exception_that_two_ranks_print_at_once_is_told_once(
    say: Say, line: str, said: str
) -> None:
    cause = say(f"{line}\n").cause
    assert cause is not None
    assert f": {said}" in cause.says


REPORT_OF_ONE = f"Failures:\n{{others}}\n{'-' * 60}\n{root_cause('n2', 5)}"


@pytest.mark.parametrize(
    ("log", "rank"),
    [
        ("ValueError: no lr\n" + REPORT_OF_ONE.format(others="  <NO_OTHER_FAILURES>"), 5),
        ("ValueError: no lr\n" * 2 + REPORT_OF_ONE.format(others="  <NO_OTHER_FAILURES>"), None),
        ("ValueError: no lr\n" + REPORT_OF_ONE.format(others="[1]:\n  rank : 6"), None),
    ],
)
def test_what_is_printed_once_is_of_the_only_rank_that_failed(
    say: Say, log: str, rank: int | None
) -> None:
    cause = say(log).cause
    assert cause is not None
    assert (cause.rule, cause.rank, cause.node) == ("python-exception", rank, rank and "n2")


def test_a_summary_of_the_job_hides_no_error_before_it(say: Say) -> None:
    summary = "Job ID: 7\nState: FAILED (exit code 1)\n" + "Cores: 8\n" * 12
    found = say(f"run.sh: line 14: /usr/bin/python: Argument list too long\n{summary}")
    assert "Argument list too long" in told(found)
    done = summary.replace("FAILED (exit code 1)", "COMPLETED (exit code 0)")
    assert say(f"run.sh: line 14: ls: Argument list too long\n{done}").cause is None


@pytest.mark.parametrize(
    "time", ["2026-11-22T10:00:0{}.123Z ", "[2026-11-22 10:00:0{}] ", "Nov 22 10:00:0{} "]
)
def test_a_time_before_each_line_hides_nothing(say: Say, time: str) -> None:
    for lines in (
        ("loading", "run.sh: line 47: syntax error: unexpected end of file"),
        ("Lmod has detected the following error: no x/3", "", "run.sh: line 9: nn: not found"),
    ):
        plain = say("\n".join(lines))
        dated = say("\n".join(f"{time.format(n)}{line}" for n, line in enumerate(lines)))
        assert told(dated) == told(plain)
        assert dated.cause is not None
        assert dated.cause.time is not None


def test_a_traceback_of_a_notebook_tells_its_place(say: Say) -> None:
    frames = (
        "File ~/lib/python3.8/site-packages/frames/base.py:36, in Index.loc(self)\n"
        "     35 try:\n---> 36     return self.engine.loc(key)\n"
    )
    head = f"KeyError{' ' * 34}Traceback (most recent call last)\n"
    own = "File ~/fit.py:47, in fit(data)\n     46 data = 1\n---> 47 for one in data['lr']:\n\n"
    chained = "\nThe above exception was the direct cause of the following exception:\n\n"
    found = say(f"{head}{frames}\nKeyError: 'lr'\n{chained}{head}{own}{frames}\nKeyError: 'lr'\n")
    assert found.cause is not None
    assert "(at ~/fit.py:47, in frames/base.py:36)" in found.cause.says
    assert "Traceback" not in found.cause.says
