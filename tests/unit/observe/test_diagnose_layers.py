"""What rules say of the layers below the script: Slurm, MPI, UCX, network cards, stores, JAX."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clusterkit.observe.diagnose.verdict import Diagnosis, Finding

Say = Callable[[str], Diagnosis]


def cause(found: Diagnosis) -> Finding:
    assert found.cause is not None
    return found.cause


def test_a_completion_error_of_infiniband_is_told_by_its_class(say: Say) -> None:
    warn = "n1:7:9 [1] net_ib.cc:12 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4> with "
    for status in ("error 4, opcode 1, len 1", "status=IBV_WC_REM_ACCESS_ERR(10) opcode=x"):
        found = cause(say(f"{warn}{status}"))
        assert found.rule == "nccl-ib-memory"
        assert "no cable or switch is at fault" in found.says
    for status in ("error 12, opcode 1, len 1", "status=IBV_WC_RNR_RETRY_EXC_ERR(13) opcode=x"):
        assert cause(say(f"{warn}{status}")).rule == "nccl-ib-completion"


def test_what_ucx_was_refused_by_the_gpu_is_why_it_crashed(say: Say) -> None:
    ucx = "0: [1.5] [n1:7:2]    cuda_ipc_md.c:62   UCX  ERROR cuMemGetAddressRange(ptr) failed: x\n"
    crash = "0: [n1:7:2:9] Caught signal 11 (Segmentation fault: address not mapped)\n"
    assert cause(say(ucx + crash)).rule == "ucx-gpu"


def test_why_a_plugin_of_slurm_did_not_start_is_told_before_that_it_did_not(say: Say) -> None:
    launch = "srun: error: task 0 launch failed: Plugin initialization failed\n"
    plugin = "[2026-11-22T14:05:02.440] [7.0] error: spank: required plugin spank_{}.so: rc=-1\n"
    pyxis = "[2026-11-22T14:05:02.440] [7.0] error: pyxis: couldn't mkdir /run/x: no such folder\n"
    found = cause(say(launch + pyxis + plugin.format("pyxis")))
    assert (found.rule, "couldn't mkdir /run/x" in found.says) == ("container-failed", True)
    assert cause(say(launch + plugin.format("x"))).rule == "slurm-node-setup"


def test_the_lost_worker_of_jax_is_named(say: Say) -> None:
    task = "E1122 13:59:12.5 7 x.cc:9] UNAVAILABLE: Task /job:w/replica:0/task:5 heartbeat timeout"
    lost = f"{task}. This indicates that the remote task has failed, got preempted, or crashed."
    assert "/job:w/replica:0/task:5" in cause(say(lost)).title


def test_an_abort_without_a_word_follows_from_the_worker_that_was_lost(say: Say) -> None:
    lost = (
        "F1122 13:59:12.5 7 client.h:77] Terminating process because the JAX distributed service "
    )
    log = f"{lost}detected fatal errors.\n/job:jax_worker/replica:0/task:2\n"
    found = cause(say(f"{log}Fatal Python error: Aborted\n"))
    assert (found.rule, "task:2" in found.title) == ("tensorflow-worker-lost", True)
    abort = (
        "terminate called after throwing an instance of 'x::Error'\n  what():  the mesh is flat\n"
    )
    assert cause(say(log + abort)).rule == "process-aborted"


def test_all_tasks_that_did_not_come_are_named(say: Say) -> None:
    barrier = (
        "XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Id: [Init]Wait_for_all_tasks_to_"
    )
    names = "".join(f"/job:jax_worker/replica:0/task:{n}\n" for n in (0, 3))
    found = cause(say(f"{barrier}register::0.\nThe first task: /job:x/replica:0/task:1\n{names}"))
    assert found.title.endswith(": task:0, task:3")


def test_the_last_that_a_java_exception_was_caused_by_is_told(say: Say) -> None:
    caused = "Caused by: java.io.IOException: no way\n\tat x\nCaused by: java.net.X: it is shut\n"
    found = cause(say(f'Exception in thread "main" ml.XError: it failed\n\tat x\n{caused}'))
    assert found.title.endswith("ml.XError: it failed Caused by: java.net.X: it is shut")
    stage = "py4j.protocol.Py4JJavaError: An error occurred while calling o4.count.\n"
    stopped = ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 failed\n"
    found = cause(say(stage + stopped + caused))
    assert found.title == "a stage of Spark failed: java.net.X: it is shut"


def test_ranks_that_did_not_come_to_a_barrier_of_the_store_are_named(say: Say) -> None:
    waited = "torch.distributed.DistStoreError: Timed out waiting on barrier on rank 0, for key"
    found = cause(say(f"{waited} prefix: x/ (world_size=8, missing_ranks=[2, 3], timeout=300)"))
    assert (found.rule, "ranks 2, 3 of 8" in found.says) == ("agents-barrier", True)


def test_both_collectives_of_a_mismatch_are_named(say: Say) -> None:
    call = "Rank {} is running collective: CollectiveFingerPrint(SequenceNumber={}, OpType={}, "
    one = call.format(1, 7, "ALLREDUCE") + "TensorShape=[25], TensorDtypes=Float), but "
    other = call.format(0, 8, "BROADCAST") + "TensorShape=[1], TensorDtypes=Long)."
    log = f"RuntimeError: Detected mismatch between collectives on ranks. {one}{other}"
    assert "Rank 1 was in ALLREDUCE [25], and Rank 0 in BROADCAST [1]." in cause(say(log)).says
    bare = cause(say("NCCL WARN Mismatched collective detected, please check")).says
    assert bare.startswith("The ranks do not take the same way through the script:")


def test_why_a_daemon_of_mpi_did_not_start_is_told(say: Say) -> None:
    report = "ORTE was unable to reliably start one or more daemons.\nThis usually is caused by:\n"
    found = cause(say(f"[n1:7] base.c at line 5src/server/listener.c:91 bind() failed\n{report}"))
    assert (found.rule, "listener.c:91 bind() failed" in found.title) == ("mpi-not-started", True)
    closed = "ssh_exchange_identification: Connection closed by remote host\n\n"
    assert cause(say(closed + report)).rule == "ssh-failed"


CGROUP = "write '7' to '/sys/fs/cgroup/cpuset/slurm/cgroup.procs' failed: No space left on device"
WATCHDOG = "[Rank 3] Watchdog caught collective operation timeout"
TWICE = "rank 2 and rank 0 both on CUDA device 1000"


@pytest.mark.parametrize(
    ("line", "rule", "words"),
    [
        (f"slurmstepd: error: write_x: {CGROUP}", "slurm-node-setup", "cgroup.procs"),
        (f"n1:7:9 [0] i.cc:9 NCCL WARN Duplicate GPU detected : {TWICE}", "gpu-ordinal", TWICE),
        ("RuntimeError: CUDA error: invalid device ordinal", "gpu-ordinal", "does not exist"),
        (
            "AssertionError: Loading a checkpoint for MP=2 but world size is 8",
            *("checkpoint-sizes", "MP=2 but world size is 8"),
        ),
        (
            "RuntimeError: The server socket has failed to bind to [::]:22 (errno: 13 - x).",
            *("port-not-allowed", "the port 22"),
        ),
        ("./x.sh: /bin/sh^M: bad interpreter: not there", "command-missing", "/bin/sh^M"),
    ],
)
def test_the_title_says_what_does_not_fit(say: Say, line: str, rule: str, words: str) -> None:
    found = cause(say(line))
    assert (found.rule, words in found.title) == (rule, True)


LMOD = 'Lmod has detected the following error: The following module(s) are unknown: "x/3"\n'
CONDA = (
    "CommandNotFoundError: Your shell has not been properly configured to use 'conda activate'.\n"
)


def test_an_unknown_module_after_which_nothing_fails_is_none(say: Say) -> None:
    assert say(LMOD + "reading a file\n" * 9).cause is None
    assert cause(say(LMOD)).rule == "environment-missing"
    absent = "environment: line 17: /opt/lmod/libexec/lmod: No such file or directory\n"
    broken = cause(say(f"{absent}{absent}run.sh: line 8: mpirun: command not found"))
    assert (broken.rule, "mpirun" in broken.says) == ("environment-not-loaded", True)
    for failed in ("it ended with exit code 127", "ModuleNotFoundError: No module named 'torch'"):
        assert cause(say(f"{LMOD}{failed}")).rule == "environment-not-loaded"


def test_an_environment_that_is_not_there_is_no_cause_of_what_had_begun(say: Say) -> None:
    limit = (
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-22T14:05:02 DUE TO TIME LIMIT ***"
    )
    assert cause(say(f"{CONDA}reading a file\n{limit}")).rule == "time-limit"
    assert "ValueError" in cause(say(f"{CONDA}ValueError: the batch is empty")).title


def test_a_module_is_named_that_stands_in_the_next_line(say: Say) -> None:
    found = cause(
        say('Lmod has detected the following error:  These module(s) are unknown: \n\n"cuda/3"')
    )
    assert "module(s) are unknown" in found.title
    assert "cuda/3" in found.title


NO_FOLDER = "run.sh: line 5: cd: exp/1: No such file or directory"
UNREAD = "syntax error: unexpected end of file"
NOBODY = "ConnectionRefusedError: [Errno 111] Connection refused"


def test_what_is_written_lacks_a_folder_and_what_is_read_a_file(say: Say) -> None:
    missing = "FileNotFoundError: [Errno 2] No such file or directory: 'out/a.json'"
    frame = '  File "/opt/x/train.py", line 7, in main\n    with open(path, "{}") as file:\n'
    for mode, rule in (("w", "folder-missing"), ("rb", "file-not-found")):
        assert cause(say(frame.format(mode) + missing)).rule == rule


QP = "n2:pid7.train: Failed to modify UD QP to INIT on mlx5_0: not permitted\n"
PMIX = "It looks like pmix_init failed for some reason; your parallel process is\n"


@pytest.mark.parametrize(
    ("log", "rule", "told"),
    [
        (
            f"run.sh: line 9: my-tool: command not found\nrun.sh: line 47: {UNREAD}",
            "script-broken",
            "run.sh: line 47",
        ),
        (
            "warning: cannot set the limit\nthe input device is not a TTY",
            "container-terminal",
            "asks for a terminal",
        ),
        (
            f"{NOBODY}\nMaxRetryError: HTTPConnectionPool(host='localhost', port=8097): no",
            "connection-refused",
            "localhost port=8097",
        ),
        ("sqlite3.OperationalError: disk I/O error", "file-locked", "SQLite"),
        (f"{NO_FOLDER}\npython: can't open file 'a.py': [Errno 2]", "file-not-found", "cd: exp"),
        ("x: line 6: /mnt/a/b: Transport endpoint is not connected", "folder-lost", "behind /mnt"),
        (
            "FileNotFoundError: no /data/a.pth. Look there",
            "file-not-found",
            "/data/a.pth is missing",
        ),
        (
            "FileNotFoundError: set '/data/a.yaml' images not found, missing path '/data/val'",
            "file-not-found",
            "the file /data/val is missing",
        ),
        (
            "TypeError: unsupported format string passed to list.__format__",
            "python-exception",
            "raised TypeError",
        ),
        ("FileNotFoundError: no such data:\n/data/x.h5", "python-exception", "data /data/x.h5"),
        ("AssertionError\n/data/x.h5", "python-exception", "AssertionError: no message."),
        ("Your job 7 was killed: it exceeded the memory request", "slurm-memory-limit", "ended"),
        ("make: gcc: Command not found\nmake: *** [a] E 127", "command-missing-in-script", "gcc"),
        ("run.sh: 5: run.sh: Syntax error: redirection unexpected", "script-broken", "dash"),
        ("zsh: permission denied: ./run.sh", "permission-denied", "./run.sh"),
        (
            "bash: ./run.sh: /bin/bash: bad interpreter: Permission denied",
            "permission-denied",
            "run",
        ),
        ("OSError: Cannot save file into a non-existent directory: 'out'", "folder-missing", "out"),
        ("sbatch: fatal: Unable to process configuration file", "slurm-config-missing", "config"),
        ("/bin/sh: 1: ./a.out: Text file busy\nmake: *** [all] Error 1", "error-line", "busy"),
        (f"{QP}MPIDI_OFI_mpi_init_hook(9):\n", "mpi-library-setup", QP[14:-1]),
        (f"Host: n2\nFramework: psec\nComponent: lock\n\n{PMIX}", "mpi-not-started", "lock"),
        (
            (
                "2026-11-22 13:59:12: E x.cc:8] (1) RESOURCE_EXHAUSTED: Attempting to reserve 2G "
                "at the top. That was not possible.\nException in device=TPU:3: RESOU\n"
            ),
            *("tpu-out-of-memory", "TPU:3 did not have"),
        ),
        (
            (
                "(pid=runtime_env, ip=10.0.0.3) ValueError: Local directory /tmp/ray/pip/7 for URI "
                "pip://7 does not exist on the cluster. x\n"
            ),
            *("ray-environment", "/tmp/ray/pip/7"),
        ),
        (
            (
                "REMOTE HOST IDENTIFICATION HAS CHANGED!\nOffending RSA key in /x/known_hosts:7\n"
                "Host key for [n2]:2222 has changed and you have requested strict checking.\n"
                "Host key verification failed.\n"
            ),
            *("ssh-host-key", "/x/known_hosts:7"),
        ),
    ],
)
def test_the_error_of_a_tool_is_told_and_no_noise(say: Say, log: str, rule: str, told: str) -> None:
    found = cause(say(log))
    assert (found.rule, told in f"{found.title} {found.says}") == (rule, True)


def test_some_gpus_are_fewer_than_were_asked_for_and_not_none(say: Say) -> None:
    asked = "x.MisconfigurationException: You requested gpu: [0, 1]\n But your machine only has: "
    assert cause(say(f"{asked}[0]\n")).rule == "gpus-too-few"
    assert cause(say(f"{asked}[]\n")).rule == "gpu-unseen"


@pytest.mark.parametrize(
    ("line", "rule", "rank"),
    [
        ("prterun noticed that process rank 5 with PID 7 on node n2 exited on signal 6 (Aborted).",
         "process-aborted", 5),
        ("n1:7:9 [0] include/socket.h:3 WARN Call to connect failed : Connection timed out",
         "nccl-wrong-interface", None),
        ("slurm_script: line 9: --steps: command not found", "line-not-continued", None),
        (f"{WATCHDOG}: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, Timeout(ms)=9) ran for 90 ms",
         "timeout-too-short", 3),
        ('  File "a.py", line 3, in f\npyarrow.lib.ArrowInvalid: offset overflow of arrays',
         "exception-named", None),
    ],
)  # fmt: skip
def test_who_and_what_a_line_names_is_told(
    say: Say, line: str, rule: str, rank: int | None
) -> None:
    found = cause(say(line))
    assert (found.rule, found.rank) == (rule, rank)
