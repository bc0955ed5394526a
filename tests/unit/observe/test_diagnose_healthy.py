"""A job that was well has no failure, whatever it has printed; what ended others comes first."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clusterkit.observe.diagnose.events import Fact, Source
from clusterkit.observe.diagnose.rules import own_rules
from clusterkit.observe.diagnose.verdict import Diagnosis, diagnose
from tests.helpers.recordings import recordings_in

Say = Callable[..., Diagnosis]

TRACEBACK = """\
Traceback (most recent call last):
  File "a.py", line 3, in f
    g()
ModuleNotFoundError: No module named 'triton'
"""
LIMIT = (
    "slurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2024-05-03T10:10:10 DUE TO TIME LIMIT ***\n"
)


def cause(found: Diagnosis) -> tuple[str, int | None] | None:
    return (found.cause.rule, found.cause.rank) if found.cause is not None else None


def steps(prefix: str, count: int = 6) -> str:
    return "".join(f"{prefix}step {n} loss 2.1\n" for n in range(1, count + 1))


REACHED = (
    '0: :::MLLOG {"event_type": "INTERVAL_END", "key": "run_stop", "value": null, '
    '"metadata": {"lineno": 315, "status": "success", "samples_count": 3072}}\n'
)
ABORTED = "terminate called after throwing an instance of 'c10::DistBackendError'\n"
CLOSED = """\
30: [E511 01:46:13.812290483 ProcessGroupNCCL.cpp:541] [Rank 30] found async exception when \
checking for NCCL errors: NCCL error: unhandled system error, NCCL version 2.22.3
30: ncclSystemError: System call (e.g. socket, malloc) or external library call failed.
30: Last error:
30: [Proxy Service 30] Failed to execute operation Close from rank 30, retcode 3
"""
SIDE = "srun: error: n1: task 0: Exited with exit code 1\n"
FINALIZERS = """\
Traceback (most recent call last):
  File "/usr/lib/python3.10/multiprocessing/util.py", line 300, in _run_finalizers
    finalizer()
  File "/usr/lib/python3.10/multiprocessing/synchronize.py", line 87, in _cleanup
    sem_unlink(name)
FileNotFoundError: [Errno 2] No such file or directory
"""
GOOD = "".join(f"0: layer {n:3} is ready\n" for n in range(400))
SOME = GOOD[: len(GOOD) // 4]


@pytest.mark.parametrize("log", [CLOSED, ABORTED, LIMIT, SIDE, TRACEBACK])
def test_of_a_run_that_reached_its_goal_nothing_is_told(say: Say, log: str) -> None:
    summed_up = '0: :::MLLOG {"key": "status", "value": "success", "metadata": {"epoch_num": 4}}\n'
    assert cause(say(f"{steps('0: ')}{REACHED}{summed_up}{log}")) is None
    assert cause(say(f"{log}{REACHED}")) is None
    assert cause(say(REACHED, log)) is None
    assert cause(say(f"{REACHED}{steps('0: ')}{log}")) is not None, "another run begins"
    assert cause(say(f"{REACHED}{log}".replace("success", "aborted"))) is not None
    begun = REACHED.replace("run_stop", "run_start")
    assert cause(say(f"{REACHED}{begun}{log}")) is not None
    assert cause(say(f"{REACHED}{log}", failed=True)) is not None, "its scheduler knows better"


def test_ranks_that_fail_after_the_goal_and_leave_one_to_the_time_limit_are_told(say: Say) -> None:
    assert cause(say(REACHED + VNIC)) is None
    assert cause(say(REACHED + LIMIT)) is None
    assert cause(say(REACHED + VNIC + LIMIT)) == ("nccl-virtual-nic", 3)
    assert cause(say(TRACEBACK + REACHED + VNIC + LIMIT)) == ("nccl-virtual-nic", 3)


@pytest.mark.parametrize(
    "said",
    [
        "Training complete.",
        "{'train_runtime': 38.1, 'train_loss': 2.1}",
        "`Trainer.fit` stopped: `max_steps=100` reached.",
        "I1122 10:00:00 7 api.py:932] [default] All workers finished successfully.",
    ],
)
def test_of_one_that_says_it_is_through_how_processes_leave_is_not_told(
    say: Say, said: str
) -> None:
    assert cause(say(f"{steps('')}{said}\n{ABORTED}{CLOSED}")) is None
    assert cause(say(f"{said}\n{TRACEBACK}")) == ("module-missing", None), "it saves or evaluates"
    assert cause(say(f"{said}\n{steps('')}{ABORTED}")) == ("process-aborted", None)
    assert cause(say(f"{ABORTED}{said}\n")) == ("process-aborted", None)


def test_a_side_step_that_fails_at_the_beginning_is_no_part_of_the_job(say: Say) -> None:
    assert cause(say(SIDE + GOOD)) is None
    assert cause(say(SIDE + SOME)) == ("slurm-report", 0)
    assert cause(say(SOME + SIDE + GOOD)) == ("slurm-report", 0)
    assert cause(say(SIDE + steps("", 9))) is None, "others do not wait for its rank"
    assert cause(say(SIDE + GOOD + "0: KeyError: 'labels'\n")) == ("python-exception", 0)
    sudo = "run.sh: line 13: sudo: command not found\n"
    assert cause(say(sudo + GOOD)) is None
    assert cause(say(sudo)) == ("command-missing-in-script", None)


def test_steps_at_the_end_of_a_log_show_that_it_went_on(say: Say) -> None:
    warned = "n1:1:9 [3] transport/nvls.cc:598 NCCL WARN Cuda failure 1 'invalid argument'\n"
    late = warned + "loading a shard of the data\n" * 4000 + steps("", 9)
    assert cause(say(late)) is None
    assert cause(say(late.replace("step", "part"))) == ("nccl-nvls", None)
    samples = "".join(f'0: {{"key": "loss", "samples_count": {n}}}\n' for n in range(6))
    assert cause(say(warned + samples)) is None
    settings = "".join(f"{n}_steps={n * 100},\n" for n in ("save", "eval", "log", "warm", "max"))
    assert cause(say(warned + settings)) is not None


def test_what_multiprocessing_and_logging_print_and_go_on_after_is_no_failure(say: Say) -> None:
    assert cause(say(FINALIZERS * 10)) is None
    assert cause(say("".join(f"[rank{n}]: {line}\n" for line in FINALIZERS.splitlines()
                             for n in (0, 1)))) is None  # fmt: skip
    assert cause(say(f"{FINALIZERS}KeyError: 'labels'\n")) == ("python-exception", None)
    assert cause(say(f"--- Logging error ---\n{TRACEBACK}")) is None


# What a job was ended after -----------------------------------------------------------------------

VNIC = """\
3: n1:41:90 [3] transport/net_ib.cc:700 NCCL WARN NET/IB : Requested properties for vNic 4, only 4 vNics have been created
3: ncclInvalidUsage: This usually reflects invalid usage of NCCL library.
"""  # noqa: E501


def test_what_failed_before_a_time_limit_is_its_cause(say: Say) -> None:
    usage = VNIC.splitlines()[1] + "\n"
    early = f"0: 2024-05-03 08:00:00 began\n{usage}{LIMIT}"
    assert cause(say(usage + LIMIT)) == ("nccl-invalid-usage", 3)
    assert cause(say(early)) == ("nccl-invalid-usage", 3)
    assert cause(say(LIMIT + usage)) == ("time-limit", None)
    assert cause(say(usage, facts=(Fact(text="clusterkit fact: state=timeout"),))) == (
        "nccl-invalid-usage",
        3,
    )
    assert cause(say(f"3: KeyError: 'x'\n{LIMIT}")) == ("python-exception", 3)
    assert cause(say(f"3: KeyError: 'x'\n{steps('3: ')}{LIMIT}")) == ("time-limit", None)
    assert cause(say(f"3: {ABORTED}{LIMIT}")) == ("time-limit", None), "as it was told to end"
    assert cause(say(f"3: {ABORTED}{GOOD}{LIMIT}")) == ("process-aborted", 3)


def test_what_slurmstepd_says_is_of_no_rank(say: Say) -> None:
    assert cause(say(f"0: {LIMIT}")) == ("time-limit", None)


# Which of those that failed -----------------------------------------------------------------------

WAITS = (
    "[rank{rank}]:[E321 02:07:0{rank}.4 ProcessGroupNCCL.cpp:607] [{group}Rank {rank}] Watchdog "
    "caught collective operation timeout: WorkNCCL(SeqNum={number}, OpType={op}, NumelIn={size}, "
    "NumelOut={size}, Timeout(ms)=600000) ran for 600060 milliseconds before timing out.\n"
)


def waits(*ranks: tuple[int, str, int], group: str = "") -> str:
    return "".join(
        WAITS.format(rank=rank, number=number, op=op, size=size, group=group)
        for rank, (number, op, size) in enumerate(ranks)
    )


def test_ranks_in_different_collectives_are_each_told(say: Say) -> None:
    found = say(waits((7, "ALLREDUCE", 1), (8, "BROADCAST", 112), (8, "BROADCAST", 112)))
    assert found.cause is not None
    assert found.cause.rule == "collective-mismatch-timeout"
    assert "ALLREDUCE, NumelIn=1 (number 7) on rank 0, BROADCAST, NumelIn=112 (number 8) on " in (
        found.cause.says
    )
    assert cause(say(waits((7, "ALLREDUCE", 1), (7, "ALLREDUCE", 2)))) == (
        "collective-mismatch-timeout",
        0,
    )


@pytest.mark.parametrize(
    "log",
    [
        waits((7, "ALLREDUCE", 1), (7, "ALLREDUCE", 1)),
        waits((7, "ALLREDUCE", 1), (8, "ALLREDUCE", 2)),  # one was slower
        waits((7, "ALLREDUCE", 1), (90, "BROADCAST", 1)),  # no one knows of what group
        waits((7, "SEND", 1), (7, "RECV", 1)),
        waits((7, "ALLREDUCE", 1), group="PG ID 1 PG GUID 1(tp) ")
        + waits(
            (7, "ALLREDUCE", 1), (7, "BROADCAST", 1), group="PG ID 2 PG GUID 2(dp) "
        ).splitlines(keepends=True)[1],
    ],
)
def test_ranks_that_may_wait_in_the_same_collective_are_no_mismatch(say: Say, log: str) -> None:
    assert cause(say(log)) == ("nccl-watchdog-timeout", 0)


def test_a_rank_that_failed_is_not_hidden_by_those_that_waited_for_it(say: Say) -> None:
    log = "[rank2]: KeyError: 'x'\n" + waits((7, "ALLREDUCE", 1), (8, "BROADCAST", 1))
    assert cause(say(log)) == ("python-exception", 2)
    memory = "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    assert cause(say(memory + waits((7, "ALLREDUCE", 1), (8, "BROADCAST", 1)))) == (
        "cuda-out-of-memory",
        2,
    )


def test_the_host_of_the_store_is_gone_and_those_that_noticed_did_not_fail(say: Say) -> None:
    noticed = """\
torch.distributed.DistNetworkError: Connection reset by peer

The above exception was the direct cause of the following exception:

torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d \
store has failed. See inner exception for details.
"""
    found = say(noticed, "ConnectionResetError: [Errno 104] Connection reset by peer\n")
    assert cause(found) == ("rendezvous-lost", None)
    assert cause(say(noticed.partition("\n")[2])) == ("rendezvous-failed", None)
    assert cause(say(noticed, "[rank0]: KeyError: 'x'\n")) == ("python-exception", 0)


def test_what_nccl_warned_of_says_more_than_its_error(say: Say) -> None:
    assert cause(say(VNIC + LIMIT)) == ("nccl-virtual-nic", 3)
    efa = "NET/OFI Unable to insert remote address into address vector for device 1. RC: -22\n"
    log = "ncclInternalError: Internal check failed.\nLast error:\n"
    assert cause(say(log + efa)) == ("nccl-efa", None)
    assert cause(say(log)) == ("nccl-internal-error", None)


WARNED = "n1:41:90 [3] misc/x.cc:18 NCCL WARN gdr_map(handle 7f, size 65536) failed: 22\n"
GAVE_UP = "ncclSystemError: System call (e.g. socket, malloc) or external library call failed.\n"


def test_a_warning_of_nccl_that_no_rule_knows_is_told_beside_its_error_only(say: Say) -> None:
    found = say(WARNED + GAVE_UP)
    assert found.cause is not None
    assert found.cause.rule == "nccl-warning"
    assert "gdr_map(handle 7f, size 65536) failed: 22" in found.cause.title
    assert "may be the reason" in found.cause.says
    assert cause(say(WARNED)) is None
    assert cause(say(WARNED + GAVE_UP + steps(""))) is None
    missing = WARNED.replace("gdr_map(handle 7f, size 65536) failed: 22", 'Missing "iommu=pt"')
    assert cause(say(missing + GAVE_UP)) == ("nccl-system-error", None)
    closed = WARNED.replace("gdr_map(handle 7f, size 65536)", "[Proxy Service 3] Operation Setup")
    assert cause(say(closed + GAVE_UP)) == ("nccl-system-error", None)
    shm = "n1:41:90 [3] shmutils.cc:71 NCCL WARN Error: failed to extend /dev/shm/x to 9 bytes\n"
    assert cause(say(WARNED + shm + GAVE_UP)) == ("shared-memory", None)


BARS = {
    "PyTorch's ImageNet example": "Epoch: [3][{:4}/5004]\tTime 0.31 (0.4)\tLoss 2.1\n",
    "OpenMMLab": "2026-11-22 13:59:12,440 - mmdet - INFO - Epoch(train) [1][{}/1234] lr: 1e-3\n",
    "DETR": "Epoch: [0]  [{:5}/29571]  eta: 2:11:09  lr: 0.0001  loss: 36.1\n",
    "YOLO": "  298/299   11G  0.012  0.0076   0   0.020   165   640:  3%|▎   | {}/38 [00:01<\n",
    "Keras": "  {}/1875 [>.............................] - ETA: 4:05 - loss: 2.31\n",
    "Megatron": " iteration {:8}/     300 | consumed samples: 10240 |\n",
    "Lightning": "Epoch 0:  12%|█▏        | {}/88 [00:11<01:20,  0.98it/s]\n",
}


@pytest.mark.parametrize("bar", BARS.values(), ids=BARS)
def test_steps_are_known_by_the_words_of_many_trainers(say: Say, bar: str) -> None:
    assert cause(say(TRACEBACK + "".join(bar.format(n) for n in range(1, 7)))) is None
    assert cause(say(TRACEBACK + bar.format(1) * 6)) == ("module-missing", None)


def test_what_counts_no_steps_hides_no_failure(say: Say) -> None:
    for bar in ("[{}/12] c++ -MMD -MF a.o\n", "Loading shards:  33%|███  | {}/33 [00:09<00:19]\n"):
        after = "".join(bar.format(n) for n in range(1, 7))
        assert cause(say(TRACEBACK + after)) == ("module-missing", None), bar


def test_a_run_is_killed_by_hand_or_from_outside(say: Say) -> None:
    assert cause(say(steps("") + "Killed\n")) == ("rank-killed", None)
    assert cause(say("Killed\n" + steps(""))) is None
    stopped = "[launch.py:319:sigkill_handler] Killing subprocess 12\n"
    by_hand = "[launch.py:328:sigkill_handler] Main process received SIGINT, exiting\n"
    assert cause(say(steps("") + stopped + by_hand)) == ("cancelled", None)
    assert cause(say("KeyError: 'x'\n" + stopped + by_hand)) == ("python-exception", None)


def test_a_loss_that_is_a_number_again_in_the_end_is_none_that_stays_so(say: Say) -> None:
    nan = "".join(f"step {n} loss inf\n" for n in range(4))
    assert cause(say(nan)) == ("nan-loss", None)
    assert cause(say(nan + "step 5 loss 2.1\n")) == ("nan-loss", None)
    assert cause(say(nan + steps(""))) is None
    assert cause(say(nan + steps("") + nan)) == ("nan-loss", None)


def test_a_closed_terminal_and_a_quoted_error(say: Say) -> None:
    heard = "api.py:719] Received 1 death signal, shutting down workers\n"
    sent = "api.py:900] Sending process 85005 closing signal SIGHUP\n"
    ended = "elastic.multiprocessing.api.SignalException: Process 7 got signal: 1\n"
    assert cause(say(steps("") + heard + sent + ended)) == ("hangup", None)
    assert cause(say("KeyError: 'x'\n" + heard + sent)) == ("python-exception", None)
    warned = "/env/trainer.py:160: RuntimeWarning: NCCL Error 2: unhandled system error\n"
    assert cause(say(warned)) is None


# Recordings ---------------------------------------------------------------------------------------

FAILED = {
    "python-exception__v5.0_Dell__16xXE9712x4GB200": "python-exception",
    "time-limit__v5.0_Dell__9xXE9712x4GB200": "time-limit",
}
"""Two of these runs did not reach their goal; their logs say why."""


def test_logs_of_runs_that_went_well_hold_no_failure() -> None:
    paths = recordings_in("fresh-2026-11/mlperf")
    told = {p.name: cause(diagnose(own_rules(), [Source(path=p)])) for p in paths}
    wrong = {
        name: found
        for name, found in told.items()
        if (found and found[0])
        != next((rule for start, rule in FAILED.items() if name.startswith(start)), None)
    }
    assert not wrong


STAMP = "26/11/22 14:05:02"
LOGGED = (
    f"{STAMP} WARN DataNode: IOException in offerService\njava.io.EOFException: it ended\n",
    f"{STAMP} INFO Server: reading threw exception [x]\njava.io.IOException: it was reset\n",
    f"{STAMP} ERROR ShutdownHookManager: Exception\njava.io.IOException: Failed to delete: x\n",
    "java.io.IOException: it failed\nSTARTUP_MSG: Starting DataNode\nit runs\n",
    "ValueError: no such flag\n====== Modified FLAGS detected ======\nglobal step 1\n",
    f"12it [00:07,  1.39it/s]--- Logging error ---\n{TRACEBACK}",
)


@pytest.mark.parametrize("log", LOGGED)
def test_an_exception_that_was_only_logged_or_is_of_an_earlier_run_is_none(
    say: Say, log: str
) -> None:
    assert say(f"{log}{GOOD}").cause is None
    raised = f"{STAMP} ERROR SparkContext: Error\njava.io.IOException: it failed\n"
    assert cause(say(f"{log}{raised}")) is not None


def test_an_exception_of_an_earlier_run_in_the_same_file_is_none_of_the_last(say: Say) -> None:
    raised = TRACEBACK.replace("ModuleNotFoundError: No module named 'triton'", "KeyError: 'x'")
    later = "reading the next picture\n" * 200
    assert cause(say(raised + later)) is None
    for log in (raised + later[:2000], f"{later}{raised}"):
        assert cause(say(log)) == ("python-exception", None)
    assert cause(say(f"{raised}{later}{SIDE}")) == ("python-exception", 0)
    ranked = "".join(f"[rank3]: {line}\n" for line in raised.splitlines())
    assert cause(say(ranked + later)) == ("python-exception", 3)


def test_what_a_shell_cannot_do_after_the_work_or_beside_it_is_no_end(say: Say) -> None:
    missing = "run.sh: line 41: loader.workers=0: command not found\n"
    assert cause(say(steps("", 9) + "the table is written\n" + missing)) is None
    assert cause(say(f"Scoring: 100%|###| 30/30 [00:09<00:00]\nscore 0.4\n{missing}")) is None
    assert cause(say(f"the table is read\n{missing}")) is not None
    conda = "CondaError: Run 'conda init' before 'conda activate'\n"
    warned = "/opt/lib/store.py:34: FutureWarning: it goes in 1.5\n"
    assert cause(say(conda)) is not None
    assert cause(say(conda + warned)) is None


def test_an_error_that_a_program_prints_often_as_it_goes_on_is_not_its_end(say: Say) -> None:
    said = "Error retrieving the area of candidate {}\n"
    work = "a candidate is looked at\n" * 99
    assert cause(say("".join(said.format(n) + work for n in range(9)))) is None
    assert cause(say(work * 9 + said.format(1))) is not None


@pytest.mark.parametrize("end", ["Terminated", "train.py: error: unrecognized arguments: --lr"])
def test_what_ended_a_process_before_a_later_one_went_through_is_no_end(say: Say, end: str) -> None:
    assert cause(say(f"{end}\n")) is not None
    assert cause(say(f"{end}\n" + "a part of the data is read\n" * 200)) is None


def test_what_a_shell_of_debian_cannot_do_before_python_warns_is_no_end(say: Say) -> None:
    missing = "./run.sh: 2: ./run.sh: source: not found\n"
    warned = "/opt/lib/store.py:34: FutureWarning: it goes in 1.5\n"
    assert cause(say(missing)) is not None
    assert cause(say(missing + warned + "prediction_loop marked as finished\n")) is None


def test_a_download_that_a_program_tells_of_and_goes_on_has_not_failed(say: Say) -> None:
    failed = "ConnectionPool(host='api.example', port=443): Max retries exceeded with url: /x\n"
    said, raised = f"failed: HTTPS{failed}", f"requests.exceptions.SSLError: HTTPS{failed}"
    work, last = "the next month is read\n" * 40, "all months are there\n"
    begins = "1: a\n2: b\n3: c\n4: d\n"
    for log in (said + work, begins + said + work + said + last):
        assert cause(say(log)) is None
    for log in (work + said, work + said + last, raised + work, said + work + "it was aborted\n"):
        assert cause(say(log)) == ("download-failed", None)


REFUSED = "srun: unrecognized option '--wrap=hostname'\n"
REPORTED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"


@pytest.mark.parametrize(
    "said",
    ["[default] worker group successfully finished. Waiting\n", "[after training is done] now\n"],
)
def test_what_a_job_went_on_well_after_until_it_was_through_is_no_failure(
    say: Say, said: str
) -> None:
    assert cause(say(REFUSED + SOME + said)) is None
    refused = ("slurm-step-refused", None)
    assert cause(say(REFUSED + SOME)) == refused
    assert cause(say(REFUSED + said)) == refused, "a script says so whatever has happened"
    assert cause(say(REFUSED + SOME + said + TRACEBACK)) is not None
    assert cause(say(REFUSED + REPORTED + SOME + said)) is not None, "a launcher knows better"


def test_an_error_just_before_a_program_says_that_all_went_well_is_none(say: Say) -> None:
    error = "[2026-11-22 13:59:12,440] [ERROR] [main.py:99] the folder is empty\n"
    work = "a row of the table is written\n" * 2
    assert cause(say(error + work)) == ("error-line", None)
    for well in ("INFO: All workers finished successfully\n", "# Out of bounds values : 0 OK\n"):
        assert cause(say(error + work + well)) is None
    bad = "# Out of bounds values : 8 FAILED\n"
    for said in (bad, "Training is complete\n"):  # a script says so whatever has happened
        assert cause(say(error + work + said)) == ("error-line", None)


def test_steps_of_an_evaluation_after_the_training_begin_no_other_run(say: Say) -> None:
    done = "[after training is done] now\n"
    closed = "run.sh: line 44: 4711 Hangup                  deepspeed train.py\n"
    evaluated = "".join(f"Evaluating iter {n}/10\n" for n in range(1, 9))
    assert cause(say(done + evaluated + closed)) is None
    trained = evaluated.replace("Evaluating iter", "iteration")
    assert cause(say(done + trained + closed)) == ("hangup", None)


SNIPPET = """\
Traceback (most recent call last):
  File "<stdin>", line 5, in <module>
  File "/usr/lib/python3.10/os.py", line 680, in __getitem__
    raise KeyError(key) from None
KeyError: 'GPU_IDS'
"""


def test_what_a_shell_gave_python_to_read_long_before_the_end_is_not_what_ended_it(
    say: Say,
) -> None:
    out = "[rank4]: NotImplementedError: no layer of this kind\n"
    assert cause(say(SNIPPET + GOOD + out)) == ("python-exception", 4)
    unset = ("environment-variable-missing", None)
    assert cause(say(SNIPPET + out)) == unset
    assert cause(say(SNIPPET.replace("<stdin>", "/home/ada/train.py") + GOOD + out)) == unset


def test_an_indented_line_or_a_warning_at_the_end_tells_of_no_failure(say: Say) -> None:
    fetched = """\
Traceback (most recent call last):
  File "/home/ada/setup.py", line 30, in <module>
    urlretrieve(URL, "x.zip")
  File "/usr/lib/python3.11/urllib/request.py", line 643, in http_error_default
    raise HTTPError(req.full_url, code, msg, hdrs, fp)
urllib.error.HTTPError: HTTP Error 503: Service Unavailable
"""
    end = """\
      Successfully uninstalled x-2.1.2
WARNING: Running pip as root can result in broken permissions: https://pip.example/warnings/venv
Welcome. If authentication fails, try again.
"""
    assert cause(say(fetched + GOOD + end)) is None
    told = ("download-http-error", None)
    assert cause(say(fetched + GOOD + end.replace("If", "The"))) == told
    assert cause(say(fetched + GOOD + "      cannot be installed\n" + end)) == told
