"""What an error comes from is told where the lines around it tell it, and not only its words."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clusterkit.observe.diagnose.verdict import Diagnosis, Finding

Say = Callable[[str], Diagnosis]
TRACE = 'Traceback (most recent call last):\n  File "/home/ada/train.py", line 12, in main\n'
NONE = "a string, a bytes-like object or a real number, not 'NoneType'"
FRAMES = (
    "[n1:4711] [ 0] /lib/x86_64-linux-gnu/libc.so.6(+0x3ef10)[0x7fd1]\n"
    "[n1:4711] [ 1] /env/lib/site-packages/fastio/core/reader.cpython-311.so(+0x2)\n"
)


def cause(found: Diagnosis) -> Finding:
    assert found.cause is not None
    return found.cause


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ('width = int(os.environ.get("WIDTH"))', f"TypeError: int() argument must be {NONE}"),
        ("rate = 3 / float (os.getenv ('WIDTH'))", f"TypeError: float() argument must be {NONE}"),
        (
            'open(os.getenv("WIDTH"))',
            "TypeError: expected str, bytes or os.PathLike object, not NoneType",
        ),
        (
            'os.environ.get("WIDTH").split(",")',
            "AttributeError: 'NoneType' object has no attribute 'split'",
        ),
    ],
)
def test_a_variable_that_is_not_set_is_named(say: Say, code: str, error: str) -> None:
    found = cause(say(f"{TRACE}    {code}\n{error}\n"))
    assert found.rule == "environment-variable-missing"
    assert "WIDTH" in found.title
    assert "--env WIDTH=" in found.do


@pytest.mark.parametrize("code", ["width = int(args.width)", 'int(os.getenv("WIDTH", size))'])
def test_nothing_is_said_of_variables_where_none_is_read(say: Say, code: str) -> None:
    found = cause(say(f"{TRACE}    {code}\nTypeError: int() argument must be {NONE}\n"))
    assert found.rule != "environment-variable-missing"


@pytest.mark.parametrize(
    "message",
    [
        "batch2 must be a 3D tensor",
        "mat1 must be a matrix, got 1-D tensor",
        "1D tensors expected, but got 2D and 2D tensors",
        "linalg.inv: A must be a batch of square matrices",
        "both arguments to matmul need to be at least 1D, but they are 0D and 2D",
    ],
)
def test_shapes_are_those_of_the_code_and_no_setting(say: Say, message: str) -> None:
    found = cause(say(f"{TRACE}    y = f(x)\nRuntimeError: {message}\n"))
    assert found.rule == "tensors-unfit"
    assert message in found.title


@pytest.mark.parametrize("kind", ["MemoryError", "_ArrayMemoryError"])
def test_an_array_that_memory_does_not_hold_is_told_with_its_shape(say: Say, kind: str) -> None:
    wanted = "2.00 TiB for an array with shape (500000, 1024)"
    error = f"numpy.core._exceptions.{kind}: Unable to allocate {wanted} and data type float32\n"
    found = cause(say(f"{TRACE}    x = np.zeros(n)\n{error}"))
    assert found.rule == "host-out-of-memory"
    assert wanted in found.says


def test_a_crash_names_the_library_of_its_frames(say: Say) -> None:
    found = cause(say(f"[n1:4711] Signal: Segmentation fault (11)\n{FRAMES}"))
    assert found.rule == "segmentation-fault"
    assert found.title.endswith("in the library: fastio/core/reader.cpython-311.so")
    assert found.node == "n1"


def test_a_heap_that_was_corrupted_is_told_as_that(say: Say) -> None:
    text = f"malloc(): invalid size (unsorted)\n[n1:4711] Signal: Aborted (6)\n{FRAMES}"
    found = cause(say(text))
    assert found.rule == "heap-corrupted"
    assert "heap" in found.title
    assert found.title.endswith("fastio/core/reader.cpython-311.so")
    assert found.node == "n1"


def test_a_program_is_no_node(say: Say) -> None:
    found = cause(say("python3.11: can't open file '/x/trian.py': [Errno 2] No such file\n"))
    assert found.rule == "file-not-found"
    assert found.node is None


def test_the_name_of_a_configuration_is_no_file_of_a_node(say: Say) -> None:
    found = cause(say("Cannot find primary config 'small.out'. Check that it's in your path.\n"))
    assert found.rule == "wrong-arguments"
    assert "small.out" in found.title
    assert "--config-name" in found.do


def test_a_port_that_is_empty_is_of_the_launcher(say: Say) -> None:
    found = cause(
        say("launch.py: error: argument --master-port/--master_port: invalid int value: ''\n")
    )
    assert found.rule == "launcher-arguments"
    assert "no value" in found.do


def test_the_assertion_of_an_executor_goes_before_its_loss(say: Say) -> None:
    lost = (
        "ExecutorLostFailure (executor 18 exited caused by one of the running tasks) Reason: "
        "Container marked as failed. Exit status: 255. Diagnostics: container-launch\n"
        "Last 4096 bytes of stderr :\nlog4j:WARN no appenders\nAssertError:no room for 3 sockets\n"
    )
    found = cause(say(lost))
    assert found.rule == "native-assertion"
    assert "no room for 3 sockets" in found.title


def test_the_peer_that_was_lost_is_told(say: Say) -> None:
    text = "An MPI communication peer process has unexpectedly disconnected.  This\n\n"
    found = cause(say(f"{text}  Local host: n1\n  Peer host:  n2\n"))
    assert (found.rule, found.node) == ("mpi-peer-lost", "n2")
    assert "n2" in found.title


def test_an_exception_in_a_graph_keeps_its_message(say: Say) -> None:
    below = (
        "\n    /home/ada/run.py:60 step  *\n        add()\n\n    NameError: name 'add' is not it\n"
    )
    found = cause(
        say(f"{TRACE}    step()\nNameError: in converted code:\n{below}\nW1005 x.py:1] w")
    )
    assert found.title == "the script raised NameError"
    assert "/home/ada/run.py:60" in found.says
    assert "name 'add' is not it" in found.says


def test_a_damaged_file_system_is_no_mistake_of_the_package_on_it(say: Say) -> None:
    error = "OSError: [Errno 74] Bad message: '/usr/lib/python3.11/site-packages/tides/ops'"
    found = cause(say(f"{TRACE}    import tides\n{error}\n"))
    assert found.rule == "file-system-damaged"
    assert "/site-packages/tides/ops" in found.title


def test_why_a_tracker_was_not_reached_is_told(say: Say) -> None:
    pool = "HTTPSConnectionPool(host='api.wandb.ai', port=443): Max retries exceeded with url: /g"
    first = f"{pool} (Caused by E('<x>: [Errno -2] Name or service not known'))\n"
    last = "wandb.errors.CommError: Run initialization has timed out after 60.0 sec.\n"
    found = cause(say(first + TRACE + last))
    assert found.rule == "wandb-unreachable"
    assert found.title.endswith("Name or service not known")
    assert "WANDB_MODE=offline" in found.do
    assert cause(say(TRACE + last)).rule == "wandb-not-reached"


def test_a_worker_that_was_killed_goes_before_the_connection_lost_to_it(say: Say) -> None:
    lost = (
        'Traceback (most recent call last):\n  File "/usr/lib/python3.11/multiprocessing/'
        'resource_sharer.py", line 87, in get_connection\n    c = Client(address)\n'
        "ConnectionResetError: [Errno 104] Connection reset by peer\n"
    )
    last = (
        'Error in atexit._run_exitfuncs:\nTraceback (most recent call last):\n  File "/env/torch/'
        'utils/data/_utils/signal_handling.py", line 66, in handler\n    _error_if_any_fails()\n'
        "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed. \n"
    )
    found = cause(say(lost + last))
    assert found.rule == "rank-killed"
    assert "4711" in found.says


TASK = (
    "Traceback (most recent call last):\n"
    "ray.exceptions.RayTaskError({kind}): ray::Worker.roll() (pid=4711, ip=10.77.0.3)\n"
    '  File "/home/ada/roll.py", line 12, in roll\n    row = rows[turn]\n{kind}: {message}\n'
)
AFTER = (
    "(Worker pid=4711) the scheduler hit an exception: Traceback (most recent call last):\n"
    '(Worker pid=4711)   File "/env/site-packages/served/pool.py", line 7, in write\n'
    "(Worker pid=4711) RuntimeError: CUDA error: invalid argument\n"
)
DIED = (
    "(raylet) A worker died or was killed while executing a task by an unexpected system error. "
    "To troubleshoot the problem, check the logs for the dead worker. Worker IP address: 10.77.0.3 "
    "Worker port: 41 Worker PID: 4711 Worker exit type: SYSTEM_ERROR\n"
)


def test_the_exception_of_a_task_goes_before_what_its_worker_prints_as_it_is_ended(
    say: Say,
) -> None:
    task = TASK.format(kind="IndexError", message="list index out of range")
    found = cause(say(task + AFTER))
    assert found.rule == "python-exception"
    assert "list index out of range" in found.says
    assert cause(say(AFTER + task)).rule == "cuda-error"
    of_others = TASK.format(kind="RuntimeError", message="the peer is gone")
    assert cause(say(of_others + AFTER)).rule == "cuda-error"


def test_a_worker_that_said_why_it_ends_did_not_die_of_itself(say: Say) -> None:
    assert cause(say(AFTER + DIED)).rule == "cuda-error"
    assert cause(say(DIED + AFTER)).rule == "ray-worker-died"
    assert cause(say(DIED)).rule == "ray-worker-died"


def test_the_signal_that_ended_ray_goes_before_what_its_autoscaler_says_of_it(say: Say) -> None:
    text = (
        "step 200 loss 0.3\n*** SIGTERM received at time=1755416551 on cpu 8 ***\n"
        "(raylet) The autoscaler failed with the following error:\nTerminated with signal 15\n"
        '  File "/env/lib/python3.11/site-packages/ray/monitor.py", line 4, in <module>\n'
    )
    found = cause(say(text))
    assert found.rule == "terminated"
    assert "signal 15" in found.title


def test_the_prefix_of_a_launcher_is_read_before_the_error_of_a_rank(say: Say) -> None:
    at = "<>        [2026-11-22 13:59:12] 1d0c4711 [rank=3] || "
    found = cause(say(f"{at}step 7\n{at}app.errors.DataLossError: record 12 was cut off\n"))
    assert found.rank == 3
    assert "record 12 was cut off" in found.title + found.says


def test_a_thread_is_told_with_its_exception(say: Say) -> None:
    found = cause(
        say(f"Exception in thread Thread-3 (fill):\n{TRACE}    go()\nValueError: no row 7\n")
    )
    assert found.rule == "thread-exception"
    assert "ValueError: no row 7" in found.title


def test_the_reason_above_a_traceback_that_was_cut_off_is_told(say: Say) -> None:
    at = "2026-11-22 13:59:12 - [ERROR] - "
    found = cause(say(f"{at}An error occurred: the moon is full\n{at}{TRACE}"))
    assert found.rule == "traceback-cut"
    assert "the moon is full" in found.title
    said = "World size 6 must be divisible by the tensor parallel size 4"
    assert cause(say(f"{at}An error occurred: {said}\n{at}{TRACE}")).rule == "parallel-sizes"


def test_the_way_to_a_disk_that_is_full_is_told(say: Say) -> None:
    at = "2026-11-22 13:59:12.977 [7/train (pid 4711)] "
    save = '  File "/env/lib/python3.11/site-packages/torch/serialization.py", line 9, in save\n'
    error = "OSError: [Errno 28] No space left on device\n"
    text = f"ERROR main failed\n{TRACE}    torch.save()\n{save}    write()\n{error}"
    found = cause(say("".join(f"{at}{line}\n" for line in text.splitlines())))
    assert found.rule == "disk-full"
    assert "as a checkpoint was read or written" in found.says


def test_shared_memory_that_is_refused_is_told_apart_from_a_full_one(say: Say) -> None:
    at = "n1:27106:27302 [0] include/shm.h:27 NCCL WARN "
    found = cause(
        say(
            f"{at}Call to shm_open failed : Permission denied\n"
            f"{at}Error while creating shared memory segment nccl-shm-recv-b7 (size 4711)\n"
        )
    )
    assert found.title.endswith("could not be made: Permission denied")
    assert "drwxrwxrwt" in found.do
    log = f"INFO: Pandarallel will use Memory file system to transfer data\n{TRACE}    dump()\n"
    found = cause(say(f"{log}OSError: [Errno 28] No space left on device\n"))
    assert found.rule == "shared-memory-lock"


def test_of_several_tasks_that_failed_none_is_blamed(say: Say) -> None:
    srun = "srun: error: n2: task"
    log = f"{srun}s 2-5: Exited with exit code 1\n{srun} 6: Exited with exit code 1\n"
    found = cause(say(f"RuntimeError: NCCL error in: NCCLUtils.hpp:82, invalid argument\n{log}"))
    assert found.title.endswith("invalid argument")
    assert found.rank is None


def test_the_sizes_of_a_checkpoint_are_known_without_the_head_of_the_message(say: Say) -> None:
    size = (
        "        size mismatch for layers.1.bias: copying a param with shape torch.Size([{}]) from"
    )
    log = f"{size.format(512)} checkpoint, the shape in current model is torch.Size([256]).\n"
    assert cause(say(f"[rank1]: {log}")).rule == "checkpoint-mismatch"


def test_an_entry_that_a_checkpoint_lacks_is_told_also_where_frames_lost_their_spaces(
    say: Say,
) -> None:
    load = TRACE + '    optimizer.load_state_dict(saved["optim"])\n'
    for log in (load, load.replace('  File "', 'File "')):
        found = cause(say(f"{log}KeyError: 'optim'\n"))
        assert found.rule == "checkpoint-key"
        assert "'optim'" in found.title
        assert "/home/ada/train.py:12" in found.says
    assert cause(say(f"{TRACE}    rows['optim']\nKeyError: 'optim'\n")).rule != "checkpoint-key"


def test_what_a_check_refused_is_not_told_as_a_setting(say: Say) -> None:
    found = cause(say(f"{TRACE}    check(x)\nValueError: rows must be an array of numbers\n"))
    assert found.rule == "setting-refused"
    assert "setting" not in found.title
