"""What rules of rarer tools say: locks, MPI's own reasons, data sets, Spark, containers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clusterkit.observe.diagnose.verdict import Diagnosis, Finding

Say = Callable[[str], Diagnosis]

TRACEBACK = "Traceback (most recent call last):\n"
FILELOCK = """\
  File "/opt/env/lib/python3.11/site-packages/filelock/_unix.py", line 43, in _acquire
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
OSError: [Errno 5] Input/output error
"""
HDF5 = """\
  File "h5py/h5f.pyx", line 88, in h5py.h5f.open
OSError: Unable to open file (unable to lock file, errno = {}, error message = '{}')
"""


def cause(found: Diagnosis) -> Finding:
    assert found.cause is not None
    return found.cause


@pytest.mark.parametrize(
    ("log", "rule"),
    [
        (FILELOCK, "lock-refused"),
        (HDF5.format(5, "Input/output error"), "lock-refused"),
        (HDF5.format(11, "Resource temporarily unavailable"), "file-locked"),
        ("OSError: [Errno 5] Input/output error: '/data/a.h5'\n", "folder-lost"),
    ],
)
def test_a_lock_that_is_not_given_is_no_lost_folder(say: Say, log: str, rule: str) -> None:
    assert cause(say(TRACEBACK + log)).rule == rule


STACK = """\
Fatal error in MPI_Init: Other MPI error, error stack:
MPIR_Init_thread(805)...................: fail failed
MPID_Init(1831).........................: channel initialization failed
MPIDI_CH3_Init(147).....................: fail failed
MPID_nem_tcp_post_init(645).............: fail failed
MPID_nem_tcp_connect(1122)..............: fail failed
MPID_nem_tcp_get_addr_port(1346)........: no address in the business card
"""
OFI = """\
Abort(673306767): Fatal error in internal_Init_thread: Other MPI error, error stack:
internal_Init_thread(67).: MPI_Init_thread(argc=(nil), argv=(nil), required=0) failed
MPII_Init_thread(234)....:
MPID_Init(513)...........:
MPIDI_OFI_init_local(604):
create_vni_context(982)..: the endpoint was not opened (Cannot allocate memory)
"""


@pytest.mark.parametrize(
    ("log", "why"),
    [
        (STACK, "no address in the business card"),
        (OFI, "the endpoint was not opened (Cannot allocate memory"),
        (
            "[0] MPI startup(): tmi fabric is not available and fallback fabric is not enabled",
            "tmi fabric is not available and fallback fabric is not enabled",
        ),
    ],
)
def test_the_reason_of_mpi_is_the_deepest_of_its_stack(say: Say, log: str, why: str) -> None:
    found = cause(say(log))
    assert found.rule == "mpi-not-started"
    assert found.title.endswith(why)


def test_a_data_set_that_is_not_there_is_named(say: Say) -> None:
    log = f'{TRACEBACK}  File "train.py", line 9, in check\nException: Dataset not found.\n'
    there = "WARNING: Dataset not found, nonexistent paths: ['/data/birds/val']\n"
    assert "/data/birds/val" in cause(say(log + there)).says
    assert cause(say(log)).rule == "dataset-not-here"


SLOTS = (
    "26/11/22 14:0{0}:47 WARN DAGScheduler: Barrier stage in job 0 requires 2 slots, but only 0 \
are available. Will retry up to {1} more times\n"
)


def test_a_barrier_stage_that_never_got_its_slots(say: Say) -> None:
    waited = "".join(SLOTS.format(n, 11 - n) for n in range(5))
    assert cause(say(waited + "^CERROR: Aborting.\n")).rule == "spark-slots"
    steps = "".join(f"step {n}/900 loss 0.5\n" for n in range(1, 60))
    assert say(waited + steps).cause is None


def test_the_exception_of_a_barrier_task_is_told(say: Say) -> None:
    found = cause(
        say(
            "py4j.protocol.Py4JJavaError: An error occurred while calling o1.collect.\n"
            ": org.apache.spark.SparkException: Job aborted due to stage failure: Could not recover"
            " from a failed barrier ResultStage.\n"
            "org.apache.spark.api.python.PythonException: 'ValueError: the shelf has no floor.'. "
            "Full traceback below:\n"
        )
    )
    assert found.title == "a task of Spark failed: ValueError: the shelf has no floor"


@pytest.mark.parametrize(
    "path", ["csv/ab.incomplete/csv-train.arrow", "cache-0123456789abcdef.arrow"]
)
def test_a_cache_of_datasets_that_another_job_removed(say: Say, path: str) -> None:
    log = f"FileNotFoundError: [Errno 2] No such file or directory: '/home/ada/hf/{path}'"
    found = cause(say(f'{TRACEBACK}  File "train.py", line 9, in main\n{log}\n'))
    assert found.rule == "file-removed"
    assert "HF_DATASETS_CACHE" in found.do


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: Connection timed out",
        "RuntimeError: Connection refused",
    ],
)
def test_a_store_that_is_not_reached_is_no_wrong_call(say: Say, line: str) -> None:
    frame = '  File "/opt/env/lib/python3.9/site-packages/torch/distributed/rendezvous.py", line 95'
    found = cause(say(f"{TRACEBACK}{frame}, in _tcp\n    store = TCPStore(host, port)\n{line}\n"))
    assert found.rule in {"rendezvous-timeout", "connection-refused"}


def test_a_loss_scale_of_apex_that_is_gone(say: Say) -> None:
    scales = "".join(
        f"Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {scale}\n"
        for scale in ("1.1e-303", "2.9e-304", "0.0")
    )
    frame = (
        '  File "/opt/env/lib/python3.8/site-packages/apex/amp/scaler.py", line 193, in unscale\n'
    )
    log = f"{scales}{TRACEBACK}{frame}ZeroDivisionError: float division by zero\n"
    assert cause(say(log)).rule == "loss-scale"


def test_a_module_that_cann_does_not_find_is_no_other_version(say: Say) -> None:
    found = cause(
        say(
            "RuntimeError: [ERROR] HCCL error in: torch_npu/ProcessGroupHCCL.cpp:64\n"
            "[ERROR] 2026-11-22-10:06:30 (PID:7, Device:1, RankID:1) ERR02200 DIST call failed.\n"
            "EC0010: Failed to import Python module [ModuleNotFoundError: No module named "
            "'tbe.common.log'.].\n"
        )
    )
    assert found.rule == "accelerator-error"
    assert "tbe.common.log" in found.says
    assert "set_env.sh" in found.do


def test_a_pipe_that_another_process_left_is_no_broken_file(say: Say) -> None:
    frame = '  File "/usr/lib/python3.11/multiprocessing/connection.py", line 388, in _recv\n'
    assert cause(say(f"{TRACEBACK}{frame}EOFError\n")).rule == "process-pipe-closed"
    other = '  File "/home/ada/read.py", line 9, in read\n'
    assert cause(say(f"{TRACEBACK}{other}EOFError\n")).rule == "file-broken"


def test_blanks_are_no_other_version_of_python(say: Say) -> None:
    log = '  File "train.py", line 3\n    x = 1\nIndentationError: unexpected indent\n'
    assert "tabnanny" in cause(say(log)).do


def test_a_client_that_cannot_take_its_leave_had_failed_before(say: Say) -> None:
    left = (
        "2026-11-22 13:26:13.669308: E tsl/coordination_service_agent.cc:486] Failed to disconnect \
from coordination service with status: DEADLINE_EXCEEDED: Deadline Exceeded\n"
    )
    frame = '  File "/home/ada/save.py", line 9, in save\n'
    found = cause(say(f"{TRACEBACK}{frame}ValueError: the shelf is full\n{left}"))
    assert "the shelf is full" in found.says


def test_sbatch_tells_what_is_wrong_with_a_script(say: Say) -> None:
    found = cause(
        say(
            "sbatch: error: Batch script contains DOS line breaks (\\r\\n)\n"
            "sbatch: error: instead of expected UNIX line breaks (\\n).\n"
        )
    )
    assert found.rule == "batch-script-refused"
    assert "sed -i" in found.do
