"""What rules say of real messages: the port, the place, the error itself, and nothing untrue."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clusterkit.observe.diagnose.verdict import Diagnosis, Finding

Say = Callable[[str], Diagnosis]

BOUND = "The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use)."
OF_LIBUV = "port: 29600, useIpv6: 0, code: -98, name: EADDRINUSE, message: address already in use"
LISTEN = "The server socket has failed to listen on any local network address."
MISMATCH = (
    "\tsize mismatch for wte.weight: copying a param with shape torch.Size([50257, 768]) from "
    "checkpoint, the shape in current model is torch.Size([50304, 768])."
)
NCCL = """\
[rank7]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/\
NCCLUtils.hpp:275, {kind} (run with NCCL_DEBUG=INFO for details), NCCL version 2.20.5
[rank7]: {name}: Call failed.
[rank7]: Last error:
[rank7]: {last}
"""


def cause(found: Diagnosis) -> Finding:
    assert found.cause is not None
    return found.cause


@pytest.mark.parametrize(
    ("log", "there"),
    [
        (f"[W socket.cpp:464] [c10d] {BOUND}\n[E socket.cpp:500] [c10d] {LISTEN}", "port 29500"),
        (f"RuntimeError: {LISTEN} {BOUND}", "port 29500"),
        (f"x.DistNetworkError: {LISTEN} {OF_LIBUV}", "port 29600"),
        ("OSError: [Errno 98] Address already in use", "port"),
    ],
)
def test_the_port_is_named_where_it_is_known(say: Say, log: str, there: str) -> None:
    found = cause(say(log))
    assert found.rule == "address-in-use"
    assert f"listens on the {there} already" in found.says
    assert "port_range" in found.do


def test_where_not_all_ranks_met_no_port_is_made_up(say: Say) -> None:
    late = "torch.distributed.DistStoreError: Timed out after 301 seconds waiting for clients. "
    assert cause(say(f"{late}1/3 clients joined.")).says.startswith(
        "Not every process reached the port of the first node."
    )
    found = cause(say("X: The client socket has timed out after 60000ms while trying to connect "
                      "to (10.0.0.9, 29500)."))  # fmt: skip
    assert "the port 29500 of 10.0.0.9." in found.says


WAITED = "[E socket.cpp:860] The client socket has timed out after 60s while trying to connect"
NO_WAY = "x.Error: The client socket has failed to connect to any network address of"


@pytest.mark.parametrize(
    ("told", "rule"),
    [
        (f"{WAITED} to 10.0.0.9:29500", "rendezvous-timeout"),
        (f"{WAITED} to [fd00::9]:29500", "rendezvous-timeout"),
        (f"{NO_WAY} (10.0.0.9, 29500).", "rendezvous-timeout"),
        ("RuntimeError: connect() timed out. Original timeout was 60000 ms.", "rendezvous-timeout"),
        ("", "rendezvous-failed"),
    ],
)
def test_a_store_that_was_never_reached_did_not_go_away(say: Say, told: str, rule: str) -> None:
    store = "x.RendezvousConnectionError: The connection to the C10d store has failed. See inner."
    found = say(f"{told}\n{store}")
    assert cause(found).rule == rule
    assert not any("went away" in one.title for one in (cause(found), *found.others))
    port = "the port 29500 of [fd00::9]." if "fd00" in told else "the port 29500 of 10.0.0.9."
    assert (port in cause(found).says) == ("29500" in told)


LAUNCHED = "subprocess.CalledProcessError: Command '[{}]' {}"
ENDED_1 = "returned non-zero exit status 1."


@pytest.mark.parametrize(
    "command",
    [
        "'/env/bin/python3.11', '-u', 'train.py', '--local_rank=3', '--lr', '0.1'",
        "'torchrun', '--nnodes', '2', 'train.py'",
        "'accelerate', 'launch', 'train.py'",
        "'./run', '--local-rank=1'",
    ],
)
def test_what_a_launcher_raises_is_not_the_exception_of_the_script(say: Say, command: str) -> None:
    report = LAUNCHED.format(command, ENDED_1)
    assert cause(say(report)).rule == "launcher-report"
    for log in (f"{report}\nKeyError: 'labels'", f"KeyError: 'labels'\n{report}"):
        found = cause(say(log))
        assert (found.rule, "KeyError" in found.says) == ("python-exception", True)


def test_a_command_that_the_script_called_is_its_own(say: Say) -> None:
    for command in ("'gcc', '-O2', 'a.c'", "'python3-config', '--includes'", "'nvidia-smi'"):
        assert cause(say(LAUNCHED.format(command, ENDED_1))).rule == "python-exception"


@pytest.mark.parametrize(
    ("name", "number", "rule"),
    [
        ("SIGSEGV", 11, "segmentation-fault"),
        ("SIGKILL", 9, "rank-killed"),
        ("SIGABRT", 6, "process-aborted"),
        ("SIGFPE", 8, "process-aborted"),
        ("SIGILL", 4, "illegal-instruction"),
        ("SIGBUS", 7, "bus-error"),
        ("SIGTERM", 15, "launcher-stopped"),
    ],
)
def test_a_launcher_tells_the_signal(say: Say, name: str, number: int, rule: str) -> None:
    command = "'/env/bin/python', '-u', 'train.py', '--local_rank=1'"
    died = LAUNCHED.format(command, f"died with <Signals.{name}: {number}>.")
    assert cause(say(died)).rule == rule
    spawned = f"x.spawn.ProcessExitedException: process 7 terminated with signal {name}"
    assert cause(say(spawned)).rule == {"launcher-stopped": "terminated"}.get(rule, rule)


def test_a_message_may_begin_with_a_new_line(say: Say) -> None:
    found = cause(say("Traceback (most recent call last):\nRuntimeError: \n    Some tensors share"))
    assert found.title == "the script raised RuntimeError"
    assert found.evidence.after == ("    Some tensors share",)
    found = cause(say("x.spawn.ProcessRaisedException: \n\n-- Process 0 terminated with the "
                      "following error:\nValueError: no such luck"))  # fmt: skip
    assert "no such luck" in found.says


def test_what_torchrun_writes_as_json_is_read(say: Say) -> None:
    found = cause(say('{\n  "message": {\n    "message": "RuntimeError: it said no.",\n'))
    assert found.says == "A rank ended with RuntimeError: it said no."


def test_memory_of_a_gpu_is_what_aborted_a_process(say: Say) -> None:
    thrown = "terminate called after throwing an instance of 'c10::Error'\n  what():  "
    assert cause(say(f"{thrown}CUDA error: out of memory")).rule == "cuda-out-of-memory"
    assert cause(say(f"{thrown}no such luck")).rule == "process-aborted"


def test_both_versions_of_cuda_are_told(say: Say) -> None:
    found = cause(say("deepspeed.ops.op_builder.builder.CUDAMismatchException: >- DeepSpeed Op "
                      "Builder: Installed CUDA version 11.8 does not match the version torch was "
                      "compiled with 12.1, unable to compile"))  # fmt: skip
    assert found.rule == "cuda-toolkit-version"
    assert ("CUDA 11.8," in found.says, "CUDA 12.1." in found.says) == (True, True)
    assert "/usr/local/cuda-12.1" in found.do


def test_who_was_ended_for_its_memory_is_named(say: Say) -> None:
    found = cause(say("srun: error: n2: task 3: Out Of Memory"))
    assert (found.rule, found.where) == ("slurm-memory-limit", "n2")
    assert "ended task 3 at" in found.says
    found = cause(say("  traceback : Signal 9 (SIGKILL) received by PID 4719"))
    assert "killed the process PID 4719" in found.says
    assert "on the machine where it ran" in found.do


def test_the_rank_that_deepspeed_happened_to_start_last_is_not_blamed(say: Say) -> None:
    log = "[ERROR] [launch.py:325:sigkill_handler] ['python', '-u', 'x.py', '--local_rank=7'] "
    found = cause(say(f"{log}exits with return code = -9"))
    assert (found.rule, found.rank) == ("rank-killed", None)


def test_a_message_keeps_one_full_stop(say: Say) -> None:
    found = cause(say("RuntimeError: found at least two devices, cuda:0 and cuda:1!"))
    assert found.says == (
        "A rank ended with RuntimeError: found at least two devices, cuda:0 and cuda:1."
    )
    assert "the lowest file that is yours" in found.do
    assert cause(say("ValueError: ...")).rule == "python-exception"


def test_a_checkpoint_of_another_model_shows_what_differs(say: Say) -> None:
    found = cause(say(f"RuntimeError: Error(s) in loading state_dict for GPT:\n{MISMATCH}"))
    assert found.rule == "checkpoint-mismatch"
    assert found.evidence.after == (MISMATCH,)
    assert "vocabulary" in found.do
    empty = "EOFError: Ran out of input"
    frame = '  File "/env/torch/serialization.py", line 7, in _legacy_load'
    assert cause(say(f"{frame}\n{empty}")).rule == "checkpoint-broken"
    data = cause(say(f'  File "/opt/x/data.py", line 7, in read\n{empty}'))
    assert (data.rule, "at /opt/x/data.py:7" in data.says) == ("file-broken", True)


def test_the_last_error_of_nccl_is_shown(say: Say) -> None:
    last = "Cuda failure 'peer access is not supported between these two devices'"
    found = cause(say(NCCL.format(kind="unhandled cuda error", name="ncclUnhandledCudaError",
                                  last=last)))  # fmt: skip
    assert (found.rule, found.rank) == ("nccl-cuda-failure", 7)
    assert found.title.endswith(": peer access is not supported between these two devices")
    names = {"kind": "internal error", "name": "ncclInternalError"}
    found = cause(say(NCCL.format(**names, last="oh")))
    assert (found.rule, found.evidence.after[-1]) == ("nccl-internal-error", "oh")
    found = cause(say(NCCL.format(**names, last="the pool of handles is used up")))
    assert (found.rule, found.rank) == ("nccl-last-error", 7)
    assert found.title == "NCCL stopped: the pool of handles is used up"


PROXY = "[Proxy Service 3] Failed to execute operation Connect from rank 3, retcode 6"
RECV = "socketProgressOpt: Call to recv from 10.0.0.2<38154> failed : Connection reset by peer"


@pytest.mark.parametrize(
    ("last", "rule"),
    [
        ("Error : ring 3 does not contain rank 5", "nccl-topology"),
        ("Call to ibv_reg_mr_iova2 failed with error Bad address errno 14", "nccl-ib-call"),
        ("AllReduce : invalid root 8 (root should be in the 0..7 range)", "nccl-invalid-usage"),
        ("Error: failed to extend /dev/shm/nccl-x to 9 bytes, error: x (28)", "shared-memory"),
        ("ncclOsSocketPollConnect to 10.0.0.2<7> failed with error No route to host",
         "nccl-wrong-interface"),
        (RECV, "nccl-remote-error"),
        (RECV.replace("socket", "ncclOsSocket").replace("from ", ""), "nccl-remote-error"),
        (PROXY, "nccl-internal-error"),
    ],
)  # fmt: skip
def test_the_last_error_of_nccl_tells_what_its_warning_does(say: Say, last: str, rule: str) -> None:
    log = NCCL.format(kind="internal error", name="ncclInternalError", last=last)
    assert cause(say(log)).rule == rule
    warning = f"n1:11:61 [0] misc/x.cc:99 NCCL WARN {last}\nn1:11:61 [0] NCCL INFO init.cc:9 -> 2\n"
    assert last == PROXY or cause(say(warning)).rule == rule


def test_infiniband_that_does_not_connect_is_found(say: Say) -> None:
    call = "Call to ibv_modify_qp failed with error Connection timed out"
    for line in (call, f"n2:1:9 [0] misc/ibvwrap.cc:160 NCCL WARN {call} errno 110"):
        found = cause(say(line))
        assert (found.rule, found.title.partition(": ")[2]) == (
            "nccl-ib-connect",
            "Connection timed out",
        )


def test_a_download_that_was_refused_asks_for_a_token(say: Say) -> None:
    error = "huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: R)"
    why = "Cannot access gated repo for url https://huggingface.co/a/b."
    found = cause(say(f"{error}\n\n{why}\n"))
    assert found.rule == "download-refused"
    assert "--secret HF_TOKEN" in found.do
    assert found.evidence.after == (why,)
    missing = say("OSError: a/b is not a local folder and is not a valid model identifier")
    assert "data set a/b is" in cause(missing).says


def test_nothing_is_found_where_the_job_went_on(say: Say) -> None:
    log = """\
bash: module: command not found
retry 1/3: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /x
retry ok
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. Decreasing batch size to 8.
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB; attempting to recover
step 100 loss 2.1
"""
    assert say(log).cause is None
    assert say(f"slurm_script: line 5: nvidia-smi: command not found\n{log}").cause is None


def test_memory_that_was_found_by_a_smaller_batch_is_no_failure(say: Say) -> None:
    full = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    for word in ("Decreasing batch size to 8", "attempting to recover from OOM in forward pass"):
        assert say(f"{full}{word}\nstep 2 loss 2.5\n").cause is None
        assert say(f"{full}{word}\n{full}{word}\n").cause is None
        assert cause(say(f"{full}{word}\nstep 2\n{full}step 2")).rule == "cuda-out-of-memory"


def test_a_fault_of_a_gpu_that_only_the_watchdog_tells_is_of_its_rank(say: Say) -> None:
    why = "CUDA error: an illegal memory access was encountered"
    ended = "(default_pg) Rank 2] Process group watchdog thread terminated with exception"
    thrown = f"""\
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0{ended}: {why}
"""
    at = "[rank2]:[E1015 20:10:01.123456789 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0"
    for log in (thrown, f"{at}{ended}: {why}\n{thrown}"):
        found = cause(say(log))
        assert (found.rule, found.rank) == ("cuda-illegal-access", 2)
    first = f"[rank1]: RuntimeError: {why}\n"
    assert cause(say(f"{first}{at}{ended}: {why}\n{thrown}")).rank == 1
    in_group = f"[rank6]:{at[8:]}{ended.replace('default_pg', 'mesh_tp')}: {why}\n{thrown}"
    assert cause(say(in_group)).rank == 6


NOBODY = "n2:42:43 [1] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to {} failed : {}"
STEP_ENDED = "srun: error: n1: task 3: Exited with exit code 1"


@pytest.mark.parametrize(
    ("why", "rule"),
    [
        ("Connection refused", "connection-refused"),
        ("Software caused connection abort", "connection-aborted"),
    ],
)
def test_who_is_not_there_to_connect_to_may_have_died(say: Say, why: str, rule: str) -> None:
    line = NOBODY.format("10.0.0.1<45917>", why)
    found = cause(say(f"3: KeyError: 'hidden_size'\n5: {line}\n{STEP_ENDED}"))
    assert (found.rule, found.rank) == ("python-exception", 3)
    last = NCCL.format(
        kind="unhandled system error", name="ncclSystemError", last=line.split("WARN ")[1]
    )
    assert cause(say(f"{line}\n{last}{STEP_ENDED}")).rule == rule
    for address in ("127.0.0.1<4711>", "172.17.0.1<4711>", "fe80::a2:8cf0%ib1<4711>"):
        line = NOBODY.format(address, why)
        assert cause(say(f"3: KeyError: 'x'\n5: {line}")).rule == "nccl-wrong-interface"
    line = NOBODY.format("10.0.0.1<45917>", "No route to host")
    assert cause(say(f"3: KeyError: 'x'\n5: {line}")).rule == "nccl-wrong-interface"


def test_memory_of_a_gpu_is_told_from_that_of_the_machine_in_tensorflow(say: Say) -> None:
    full = "OOM when allocating tensor with shape[256,512] and type float on /job:localhost/"
    error = "tensorflow.python.framework.errors_impl.ResourceExhaustedError: Graph execution error:"
    log = f"""\
2024-01-01 10:00:00.1: W tensorflow/core/framework/op_kernel.cc:1828] OP_REQUIRES failed at \
conv_ops_impl.h:370 : RESOURCE_EXHAUSTED: {full}device:GPU:0 by allocator GPU_0_bfc
"""
    assert say(log).cause is None
    assert cause(say(f"{log}{error}\n{full}device:GPU:0")).rule == "cuda-out-of-memory"
    assert cause(say(f"{error}\n{full}device:CPU:0")).rule == "host-out-of-memory"


def test_srun_says_which_task_crashed(say: Say) -> None:
    for word, rule in (("Segmentation fault", "segmentation-fault"), ("Bus error", "bus-error")):
        found = cause(say(f"srun: error: n2: task 5: {word} (core dumped)"))
        assert (found.rule, found.where) == (rule, "n2 rank 5")
        assert cause(say(f"srun: error: n2: tasks 4-7: {word} (core dumped)")).where == "n2"


@pytest.mark.parametrize(
    "warned",
    [
        "slurm_script: line 5: nvidia-smi: command not found",
        "slurm_script: line 5: numactl: command not found",
        "a.py:2: RuntimeWarning: numpy.dtype size changed, may indicate binary incompatibility.",
    ],
)
def test_what_the_script_went_on_after_is_not_the_cause(say: Say, warned: str) -> None:
    later = "2026-10-15 20:10:01,123 step 9\nValueError: no such luck"
    assert cause(say(f"2026-10-15 20:00:00,001 start\n{warned}\n{later}")).rule == (
        "python-exception"
    )


def test_a_command_that_is_missing_counts_where_nothing_else_is_known(say: Say) -> None:
    ended = "srun: error: n1: task 0: Exited with exit code 127"
    missing = "slurm_script: line 5: {}: command not found"
    found = cause(say(f"{missing.format('my-train')}\n{ended}"))
    assert (found.rule, found.title) == (
        "command-missing-in-script",
        "the script calls my-train, which is missing",
    )
    lost = "FileNotFoundError: [Errno 2] No such file or directory: 'out/final.pt'"
    for launcher in ("torchrun", "env/bin/python3.11"):
        found = cause(say(f"{missing.format(launcher)}\n{lost}"))
        assert (found.rule, launcher in found.title) == ("command-missing", True)


REFUSED = "sbatch: error: Batch job submission failed: "
BROKEN = """\
Failed to read file '/data/a0
b1.json' with error <class 'X'>: row 6 ends early
Traceback (most recent call last):
  File "/home/ada/train.py", line 3, in read
json.decoder.JSONDecodeError: Extra data: line 2 column 1
"""
BUS = """\
ERROR: Unexpected bus error encountered in worker.
RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error.
"""
TAKEN = "Process 4711 has 70.10 GiB memory in use."
WANDB = """\
Traceback (most recent call last):
  File "/home/ada/train.py", line 3, in read
AssertionError: File not found: data/signs.yaml
requests.exceptions.HTTPError: 404 Client Error: Not Found for url: https://api.wandb.ai/graphql
wandb.errors.CommError: Permission denied, ask the project owner to grant you access
"""
OTHERS = f"{TAKEN} Including non-PyTorch memory, this process has 8.10 GiB memory in use."
FULL = (
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB. GPU 3 has a total capacity of "
    "79.10 GiB of which 8 MiB is free. "
)


@pytest.mark.parametrize(
    ("log", "rule", "told"),
    [
        (
            f"sbatch: error: Memory specification can not be satisfied\n{REFUSED}Not available",
            "slurm-step-failed",
            "asked for: Memory specification can not be satisfied.",
        ),
        (
            f"sbatch: error: No partition specified, defaulting to: cpu\n{REFUSED}Invalid qos",
            "slurm-request-refused",
            "asked for.",
        ),
        (
            FULL + OTHERS,
            "cuda-out-of-memory",
            f"2 GiB that GPU 3 did not have free. {TAKEN}",
        ),
        (  # in a container it may be its own, under another number
            FULL + TAKEN,
            "cuda-out-of-memory",
            "did not have free.",
        ),
        (
            "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed.",
            "rank-killed",
            "killed the DataLoader worker process 4711 with SIGKILL.",
        ),
        (
            "run.sh: line 5: 19817 Killed                  python train.py --big",
            "rank-killed",
            "killed the process 19817 python train.py with SIGKILL.",
        ),
        ("AttributeError: module 'numpy' has no attribute 'arrange'", "call-unfit", "misspelt"),
        ("AttributeError: module 'numpy' has no attribute 'float_'", "numpy-version", "NumPy 1"),
        ("AttributeError: 'list' object has no attribute 'to'", "python-exception", "AttributeE"),
        (
            "Training failed: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 9 GiB total)",
            "cuda-out-of-memory-told",
            "asked for 2.00 GiB that the GPU did not have free (GPU 0; 9 GiB total).",
        ),
        (
            "ERROR - stopped: No module named 'lossy'",
            "module-missing",
            "no package lossy, nor a lossy.py",
        ),
        ("ERROR trainer: the file /data/val.bin is empty", "error-line", "among the last lines"),
        ("ERROR - the shard is not whole", "error-line", "among the last lines"),
        (WANDB, "file-not-found", "A process wanted data/signs.yaml,"),
        (
            BROKEN,
            "file-broken",
            ": Failed to read file '/data/a0b1.json' with error <class 'X'>: row 6 ends early.",
        ),
        (
            BUS,
            "bus-error",
            "It ended DataLoader worker (pid 4711).",
        ),
        (
            "【2026-11-22 13:59:12】RuntimeError: element 0 of tensors does not require grad",
            "gradients-unfit",
            "",
        ),
    ],
)
def test_what_else_the_message_tells_is_told(say: Say, log: str, rule: str, told: str) -> None:
    found = cause(say(log))
    assert (found.rule, told in found.says) == (rule, True)


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        ("device-side assert triggered", "cuda-device-assert"),
        ("an illegal memory access was encountered", "cuda-illegal-access"),
        ("no kernel image is available for execution on the device", "cuda-no-kernel"),
        ("no CUDA-capable device is detected", "gpu-missing"),
        ("invalid device ordinal", "gpu-ordinal"),
        ("out of memory", "cuda-out-of-memory"),
    ],
)
def test_old_words_of_cuda_are_known(say: Say, words: str, rule: str) -> None:
    old = f"RuntimeError: cuda runtime error (2) : {words} at /src/THC/THCGeneral.cpp:50"
    assert cause(say(old)).rule == rule


ABORTED = "-----\nMPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD\n"
OWN = (
    ("ERROR on proc 3: Lost atoms 7 8 (src/bond.cpp:62)\nLast command: run 9\n", "Lost atoms 7 8"),
    ("MPI rank:    3 (out of 8)\n\nFatal error:\nThe box is small\nenough\n", "The box is small"),
    ("[3] \n[3] --> FOAM FATAL ERROR: \n[3] no field p\n[3] \n", "no field p"),
    (
        " %%%%%\n     Error in routine  diag (1):\n      it is singular\n %%%%\n",
        "it is singular diag (1)",
    ),
    (" *  /   \\   *\n * [ABORT]  *\n *  \\___/  it diverged *\n", "it diverged"),
    (
        "At line 2 of file x.f90\nFortran runtime error: End of file\n",
        "End of file At line 2 of file x.f90",
    ),
    (" --- FATAL CALLED ---\n FATAL CALLED FROM FILE: <stdin> LINE: 2\n no input\n", "no input"),
    ("[3]PETSC ERROR: --- Error Message ---\n[3]PETSC ERROR: Zero pivot\n", "Zero pivot"),
    (
        "| Error reading item X. |\n|  ---->  I REFUSE TO CONTINUE WITH THIS SICK JOB |\n",
        "Error reading item X.",
    ),
)


@pytest.mark.parametrize(("log", "message"), OWN)
def test_what_a_program_says_before_it_aborts_is_the_cause(
    say: Say, log: str, message: str
) -> None:
    found = cause(say(log + ABORTED))
    assert found.title == f"the program ended with an error of its own: {message}"
    assert found.rank == 3


def test_what_stands_before_the_report_of_mpirun_is_told_where_no_rule_knows_it(say: Say) -> None:
    found = cause(say(f"reading the mesh\nthe mesh has no cells, bye\n{ABORTED}"))
    assert (found.rule, found.rank) == ("mpi-abort", 3)
    assert found.title.endswith("; the last line before it: the mesh has no cells, bye")
    assert cause(say(f"--- ERROR ---\nthe mesh is flat\n{ABORTED}")).title.endswith(
        "the mesh is flat"
    )
    assert cause(say(ABORTED)).title == "the program ended all its ranks by MPI_Abort"
    shut = "x.HorovodInternalError: Horovod has been shut down. This was caused by an exception"
    frame = '  File "/home/ada/train.py", line 61, in train\n    hvd.allreduce(loss, name="loss")\n'
    assert cause(say(f"the loss is flat\n{frame}{shut}")).title.endswith("it: the loss is flat")
    ended = "W1122 13:59:12 4711 api.py:888] Sending process 4720 closing signal SIGTERM\n"
    told = cause(say(f"the weight has another size.\n{ended}"))
    assert told.title.endswith("before it: the weight has another size")


def test_the_report_of_slurm_is_of_the_node_whose_task_ended_with_a_code(say: Say) -> None:
    ended = "srun: error: n4: task 5: Terminated\nsrun: error: n3: task 2: Exited with exit code 1"
    found = cause(say(f"srun: Force Terminated StepId=4711.0\n{ended}"))
    assert (found.rule, found.node) == ("slurm-report", "n3")


def test_open_mpi_and_ucx_name_the_node_of_a_line(say: Say) -> None:
    readv = (
        "[btl_tcp_frag.c:237:mca_btl_tcp_frag_recv] readv failed: Connection reset by peer (104)"
    )
    lost = cause(say(f"[n7][[4711,1],3]{readv}\n"))
    assert (lost.rule, lost.node, lost.rank) == ("gloo-connection-lost", "n7", 3)
    error = cause(
        say("[1644123456.12] [n7:4711:0]  tcp_ep.c:1105 UCX  ERROR recv(42) failed: it timed out\n")
    )
    assert (error.rule, error.node) == ("ucx-error", "n7")
    call = "[n7:4711] *** An error occurred in MPI_Recv\n[n7:4711] *** reported by process [36,2]\n"
    why = cause(say(f"{call}[n7:4711] *** MPI_ERR_TRUNCATE: message truncated\n"))
    assert (why.node, why.rank, "in MPI_Recv" in why.title) == ("n7", 2, True)
    none = cause(say("[main2.cpp:4711] UCX  ERROR it failed\n"))
    assert none.node is None


CLOCK = "26/11/22 14:05:02"


def test_a_task_of_spark_names_its_node(say: Say) -> None:
    task = f"{CLOCK} WARN TaskSetManager: Lost task 1.0 in stage 3.0 (TID 9) (n7 executor 2): "
    full = cause(say(f"{task}java.io.IOException: No space left on device\n"))
    assert (full.rule, full.node) == ("disk-full", "n7")


def test_the_message_below_an_exception_of_tensorflow_is_told(say: Say) -> None:
    trace = "\n\nDetected at node 'a/b' defined at (most recent call last):\n"
    code = '    File "train.py", line 7, in <module>\n      model.fit(x)\n'
    error = "tensorflow.python.framework.errors_impl.InvalidArgumentError: Graph execution error:"
    found = cause(
        say(f"{error}{trace}{code}Node: 'a/b'\nthe shapes differ\n\t [[{{{{node a/b}}}}]]\n")
    )
    assert found.title == "an operation of TensorFlow failed: the shapes differ"


def test_where_native_code_crashed_is_told(say: Say) -> None:
    trace = "#0  0x7f2d7c in ???\n#1  0x40153a in step_\n\tat /src/step.f90:12\n"
    start = "\nBacktrace for this error:\n"
    found = cause(say(f"Program received signal SIGSEGV: Segmentation fault - x.\n{start}{trace}"))
    assert found.title == "a process crashed (segmentation fault) at /src/step.f90:12"
    found = cause(say(f"Program received signal SIGFPE: x.\n{start}{trace}"))
    assert found.title == "a process aborted (SIGFPE): /src/step.f90:12"


def test_only_the_last_run_of_ray_or_spark_in_a_log_counts(say: Say) -> None:
    start = "INFO worker.py:1509 -- Started a local Ray instance.\n"
    failed = "ray.tune.error.TuneError: ('Trials did not complete', [a])\n"
    found = cause(say(f"{start}{failed}{start}KeyError: 'lr'\n"))
    assert "KeyError" in found.title
    spark = f"{CLOCK} INFO SparkContext: Running Spark version 3.5.1\n"
    assert "KeyError" in cause(say(f"{spark}{failed}{spark}KeyError: 'lr'\n")).title


@pytest.mark.parametrize("start", ["Started a local Ray instance.", "Running Spark version 3.5.1"])
def test_what_ray_or_spark_starts_for_the_first_time_after_an_end_is_no_other_run(
    say: Say, start: str
) -> None:
    begin = f"{CLOCK} INFO SparkContext: {start}\n"
    found = say(f"{begin}ValueError: no such table\n")
    first = say(f"ValueError: no such table\n{begin}")
    assert cause(first).title == cause(found).title
    assert not any("earlier run" in note for note in first.notes)


def test_missing_ranks_of_horovod_and_versions_of_ray_are_named(say: Say) -> None:
    stall = "tensors were submitted to be reduced, gathered or broadcasted by subset of ranks\n"
    missing = "[0]<stderr>:Missing ranks:\n[0]<stderr>:1: [w]\n[0]<stderr>:3: [w]\n"
    assert cause(say(f"[0]<stderr>:{stall}{missing}")).title.endswith("(missing: 1, 3)")
    ray = "RuntimeError: Version mismatch: The cluster was started with:\n    Ray: 2.7.0\n"
    assert cause(say(f"{ray}This process:\n    Ray: 2.6.3\n")).title.endswith("2.7.0, Ray: 2.6.3")


def test_what_rich_has_wrapped_is_told_to_its_end(say: Say) -> None:
    box = "\u2570" + "\u2500" * 50 + "\u256f\n"
    lines = "ValueError: the table of tokens has fewer rows than\nthe 32000 that were asked for\n"
    for after in ("saving", "the end"):
        found = say(f"{box}{lines}{after}\n").cause
        assert found is not None
        assert "than the 32000 that were asked for" in f"{found.title} {found.says}"
        assert after not in f"{found.title} {found.says}"
    found = say(f"{box}ValueError: too few rows\nthe loss is 2.5\n").cause
    assert found is not None
    assert "loss" not in f"{found.title} {found.says}"


@pytest.mark.parametrize(
    ("log", "title"),
    [
        ("MemoryError: Error allocating 4096 bytes of device memory (out of memory).", "a GPU ran"),
        ("RuntimeError: KeyboardInterrupt: ", "the process was interrupted"),
        ("Detected KeyboardInterrupt, attempting graceful shutdown ...",
         "the process was interrupted"),
        ("Command '['flwr', 'run']' died with <Signals.SIGTERM: 15>.",
         "the process was interrupted"),
        (('  File "/env/site-packages/torch_cluster/knn.py", line 4, in knn\n    return op(x)\n'
         '  File "/env/site-packages/torch/_ops.py", line 9, in __call__\n    return self._op(x)\n'
         "RuntimeError: Not compiled with CUDA support"), "torch_cluster does not belong"),
        (('  File "/env/site-packages/pandas/core/cast.py", line 9, in hold\n    t.kind\n'
         "AttributeError: 'torch.dtype' object has no attribute 'kind'"), "a call and what it"),
        (("Fatal error condition occurred in /src/event_loop.c:72: launch() == OK\nbt:\n"
         "job.sh: line 8: 4711 Aborted   python tune.py"),
         "a process aborted (SIGABRT): /src/event_loop.c:72"),
        (("job.sh: line 3: tools/setup_environment.sh: No such file or directory\n"
         "ModuleNotFoundError: No module named 'torch'"), "the environment of the script"),
    ],
)  # fmt: skip
def test_what_a_library_or_a_launcher_says_itself_is_told(say: Say, log: str, title: str) -> None:
    assert cause(say(log)).title.startswith(title)


@pytest.mark.parametrize(
    ("head", "doubted"),
    [
        ('  File "/env/site-packages/plots/client.py", line 711, in send', True),
        ('  File "/work/train.py", line 7, in <module>', False),
    ],
)
def test_what_a_library_prints_and_goes_on_from_is_doubted(
    say: Say, head: str, doubted: bool
) -> None:
    frame = (
        '  File "/env/site-packages/net/connection.py", line 9, in connect\n    sock.connect(at)\n'
    )
    trace = "Traceback (most recent call last):\n"
    log = (
        f"{trace}{frame}ConnectionRefusedError: [Errno 111] Connection refused\n\nDuring handling "
        f"of the above exception, another exception occurred:\n\n{trace}{head}\n    self.post(x)\n"
        f"{frame}net.ConnectionError: no answer\n"
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-22T14:05:02 ***\n"
    )
    found = cause(say(log))
    assert found.rule == "connection-refused"
    assert ("may have gone on until" in found.says) == doubted


def test_what_a_script_raises_itself_is_no_fault_of_a_call(say: Callable[..., Diagnosis]) -> None:
    frame = 'Traceback (most recent call last):\n  File "/x/train.py", line 2, in load\n    '
    raised = cause(say(f'{frame}raise ValueError("no rows")\nValueError: no rows\n'))
    assert raised.do.startswith("The script raised it itself, at /x/train.py:2: see which check")
    called = cause(say(f"{frame}a, b = row\nValueError: no rows\n"))
    assert "expects" in called.do


SPAWNED = "x.spawn.ProcessExitedException: process 1 terminated with signal SIGTERM\n"
PADDLE = """\
Error Message Summary:
FatalError: `Termination signal` is detected by the operating system.
  [SignalInfo: *** SIGTERM (@0x3e8) received by PID 7 (TID 0x7) from PID 9 ***]
"""


@pytest.mark.parametrize(
    ("log", "rule", "words"),
    [
        (SPAWNED, "terminated", "stopped process 1 with SIGTERM;"),
        (PADDLE, "terminated", "stopped a process with SIGTERM from PID 9;"),
        (f"ValueError: x\n{PADDLE}", "python-exception", "ValueError"),
        ("building: started\nFailed to build fused-adam\n", "error-line", "among the last lines"),
    ],
)
def test_who_was_told_to_end_and_what_was_not_built_is_told(
    say: Callable[..., Diagnosis], log: str, rule: str, words: str
) -> None:
    found = cause(say(log))
    assert found.rule == rule
    assert words in found.says


@pytest.mark.parametrize(
    ("module", "own"),
    [("model_utils", True), ("scripts", True), ("dataset_creation", True), ("datasets", False)],
)
def test_a_module_with_a_name_of_the_script_s_own_is_looked_for_on_the_path_first(
    say: Callable[..., Diagnosis], module: str, own: bool
) -> None:
    found = cause(say(f"ModuleNotFoundError: No module named '{module}'\n"))
    assert (found.rule, "PYTHONPATH" in found.do) == ("module-missing", own)


def test_lists_of_pandas_are_no_broken_data(say: Callable[..., Diagnosis]) -> None:
    frame = '  File "/env/site-packages/pandas/core/reshape/concat.py", line 8, in concat\n'
    error = "TypeError: cannot concatenate object of type 'list'; only Series are valid\n"
    raised = f"Traceback (most recent call last):\n{frame}    raise TypeError(msg)\n"
    assert cause(say(raised + error)).rule == "python-exception"
    assert cause(say(f"{raised}TypeError: no such column\n")).rule == "dataset-not-loaded"


def test_a_line_of_torch_xla_names_its_node_and_rank(say: Say) -> None:
    raised = f"{' ' * 2}File \"/home/u/train.py\", line 31, in main\nKeyError: 'zebra'\n"
    log = f"Traceback (most recent call last):\n{raised}"
    prefix = "2026-11-22 14:05:02 10.164.15.7 [3] "
    found = cause(say("".join(f"{prefix}{line}\n" for line in log.splitlines())))
    assert (found.rule, found.node, found.rank) == ("python-exception", "10.164.15.7", 3)
    ended = cause(say(f"{prefix}Terminated\n"))
    assert (ended.rule, ended.rank) == ("interrupted", 3)


def test_the_word_of_horovod_that_another_rank_had_ended_is_told_where_it_is_wrapped(
    say: Say,
) -> None:
    log = (
        "AbortedError: Horovod has been shut down. This has been ca\nused by an exception on one\n"
    )
    assert cause(say(log)).rule == "horovod-report"


def test_an_error_of_cuda_told_in_a_block_is_why_mpi_ended_the_others(say: Say) -> None:
    bar = "=" * 83
    log = f"""\
CUDA Error:
    File:       utilities/vector.cu
    Line:       42
    Error code: 700
    Error text: an illegal memory access was encountered

{bar}
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   RANK 0 PID 4711 RUNNING AT n1
=   KILLED BY SIGNAL: 9 (Killed)
{bar}
"""
    assert cause(say(log)).rule == "cuda-illegal-access"


def test_memory_of_a_gpu_is_named_where_the_message_is_cut_off(say: Say) -> None:
    found = cause(say("epoch 5: loss 2.3\nRuntimeError: CUDA out of memory\n"))
    assert found.rule == "cuda-out-of-memory"
    assert found.says == "A process asked for memory that the GPU did not have free."
