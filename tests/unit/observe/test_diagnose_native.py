"""Families of what native code prints as it ends: one text of each, behind launchers' prefixes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clusterkit.observe.diagnose.verdict import Diagnosis

Say = Callable[[str], Diagnosis]
BAR = "-" * 74
GLOO = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:144]"
TEXTS = {
    "cuda-illegal-access": (
        "RuntimeError: CUDA error: operation not supported on global/shared address space",
        'CUDA error at heat.cu:43 code=716(cudaErrorMisalignedAddress) "cudaFree(p)"',
        "GPUassert: unspecified launch failure heat.cu 44",
    ),
    "cuda-error": (
        "RuntimeError: CUDA error: Tensor Memory not properly deallocated",
        "CUDA error: heat.cu:43 'invalid resource handle'",
    ),
    "cuda-out-of-memory": (
        "GPUassert: out of memory heat.cu 44",
        "GPUassert: hipErrorOutOfMemory heat.cu 44",
    ),
    "code-unfit": (
        "ImportError: cannot import name 'Plan' from 'plans' (unknown location)",
        "Error while finding module specification for 'a.b.c' (ImportError: No module named 'a.b')",
    ),
    "cuda-driver": (
        "RuntimeError: CUDA error: API call is not supported in the installed CUDA driver",
    ),
    "kernel-hardware-fault": ("[7.1] EDAC MC0: 1 UE memory read error on CPU_SrcID#0",),
    "ib-port-down": ("[7.1] mlx5_core 0000:5e:00.0: device's health compromised",),
    "folder-lost": (
        "OSError: [Errno 70] Communication error on send: '/lustre/u/x'",
        "[7.1] nfs: server nas1 not responding, timed out",
    ),
    "library-mismatch": (
        "ImportError: libgomp-1a.so.1: cannot allocate memory in static TLS block",
        "./heat: relocation error: ./libx.so: symbol heat_v2 version X_2 not defined in file y",
    ),
    "native-assertion": (
        "*** buffer overflow detected ***: terminated",
        "AssertError:the ring of 3 workers is broken",
    ),
    "heap-corrupted": (
        "*** Error in `./x': double free or corruption (out): 0x00006ba7 ***",
        "malloc(): unaligned tcache chunk detected",
    ),
    "container-failed": ("FATAL:   the image is encrypted", "ERROR  : No user namespace, sorry"),
    "mpi-launcher-error": (
        "[mpiexec@n1] parse_hosts (ui/args.c:315): no nodes in the list",
        "[n2:7] [[27,0],1] ORTE_ERROR_LOG: Out of resource in file ess_pmi.c at line 501",
    ),
    "mpi-help": (f"{BAR}\nThe sequence file names a node that is not in\nyour allocation.\n{BAR}",),
    "gloo-exception": (f"{GLOO} no error",),
    "gloo-unreachable": (f"{GLOO} connect [127.0.1.1]:45301: No route to host",),
    "slurm-request-refused": (
        "sbatch: error: Batch job submission failed: Requested time limit is invalid",
        "srun: error: Unable to allocate resources: Invalid generic resource (gres) specification",
    ),
    "slurm-controller-lost": (
        "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
    ),
    "slurm-daemon-error": ("slurmstepd: error: task_x: no memory nodes are left for the step",),
    "container-image-damaged": ("FATAL:   mounting x: failed to mount squashfs: Invalid argument",),
    "mpi-not-initialized": ("*** The MPI_Send() function was called before MPI_INIT was invoked.",),
    "tensorflow-nccl": ("W executor.cc:2] Unknown: unhandled cuda error\n [[node a/NcclReduce]]",),
    "nccl-efa": ("EFA internal error: (4118) Unresponsive receiver",),
    "ucx-error": ("[n1:4:0:9]   ucp_rkey.c:943  Fatal: no key of n2: Input/output error",),
    "permission-denied": (
        "HYDU_create_process (a.c:7): execvp error on file x (Permission denied)",
    ),
}
CASES = [(rule, text) for rule, texts in TEXTS.items() for text in texts]
STEPS = "".join(f"step {n} loss 2.{n}\n" for n in range(1, 400))


@pytest.mark.parametrize("prefix", ["", "3: ", "[1,3]<stderr>:", "2026-11-22T14:05:02Z "])
@pytest.mark.parametrize(("rule", "text"), CASES)
def test_a_family_is_known_behind_any_prefix(say: Say, rule: str, text: str, prefix: str) -> None:
    log = "".join(f"{prefix}{line}\n" for line in ("reads the data", *text.splitlines()))
    found = say(log)
    assert found.cause is not None
    assert found.cause.rule == rule


@pytest.mark.parametrize(
    "warning",
    [
        f"{BAR}\nWARNING: Open MPI found no preset for a device.\n{BAR}\n",
        f"{BAR}\nBy default, for Open MPI 4.0 and later, ports are not used.\n{BAR}\n",
        "[W1122 CUDAGuardImpl.h:119] Warning: CUDA warning: unspecified launch failure\n",
        "n1:1:9 [0] misc/ibvwrap.cc:99 NCCL WARN Call to ibv_query_ece failed\n",
        "[n1:7] mca: base: component_open: no daemon of ORTE was started\n",
        "[7.1] nvidia-nvswitch1: SXid (PCI:0000:87:00.0): 12028, Non-fatal, Link 12\n",
    ],
)
def test_what_is_only_warned_of_ends_no_job(say: Say, warning: str) -> None:
    assert say(warning + STEPS).cause is None
    assert say(STEPS + warning).cause is None


def test_a_listing_of_what_a_library_can_say_is_no_end(say: Say) -> None:
    listing = (
        "_ZNSt9bad_allocD2Ev",
        "terminate called recursively",
        "  what():  ",
        "terminate called after throwing an instance of '",
        "terminate called without an active exception",
        "(anonymous namespace)",
    )
    assert say("".join(f"{line}\n" for line in listing) + STEPS).cause is None
    assert say("terminate called recursively\n").cause is not None


RAISED = """\
Traceback (most recent call last):
  File "/home/u/train.py", line 31, in main
    table = vocab[word]
KeyError: 'zebra'
"""
CRASHED = "Fatal Python error: Segmentation fault\n"


@pytest.mark.parametrize("prefix", ["", "[rank2]: "])
def test_what_a_process_raised_just_before_it_crashed_is_the_cause(say: Say, prefix: str) -> None:
    raised = "".join(f"{prefix}{line}\n" for line in RAISED.splitlines())
    found = say(f"{STEPS}{raised}{CRASHED}").cause
    assert found is not None
    assert "KeyError" in found.title
    for log in (f"{raised}{STEPS * 4}{CRASHED}", f"{CRASHED}{raised}"):
        crash = say(log).cause
        assert crash is not None
        assert crash.rule == "segmentation-fault"


def test_a_signal_that_the_script_does_not_handle_is_none_of_its_failures(say: Say) -> None:
    ended = "srun: error: n2: tasks 8-15: User defined signal 1\n"
    found = say(f"{STEPS}{ended}").cause
    assert found is not None
    assert (found.rule, found.node) == ("signal-unhandled", "n2")
    raised = say(STEPS + RAISED + "it waits\n" * 60 + ended).cause
    assert raised is not None
    assert "KeyError" in raised.title


def test_the_line_of_the_script_that_a_crash_was_in_is_told(say: Say) -> None:
    frames = (
        '  File "/env/site-packages/shelf/pull.py", line 456 in pull\n'
        '  File "/home/u/fit.py", line 30 in forward\n'
    )
    cause = say(f"Fatal Python error: Segmentation fault\n\nThread 0x7f:\n{frames}").cause
    assert cause is not None
    assert cause.says.endswith('called from File "/home/u/fit.py", line 30 in forward.')


def test_the_task_that_a_collective_of_tensorflow_waited_for_is_named(say: Say) -> None:
    cause = say(
        "2026-11-22 11:10:57.9: E x/base_collective_executor.cc:249] BaseCollectiveExecutor::"
        "StartAbort DEADLINE_EXCEEDED: Deadline Exceeded\n"
        "Additional GRPC error information from remote target /job:worker/replica:0/task:3:\n"
    ).cause
    assert cause is not None
    assert cause.title.endswith("did not meet: task:3")


def test_an_answer_that_nobody_can_give_is_told(say: Say) -> None:
    asks = 'Traceback (most recent call last):\n  File "/home/u/fit.py", line 7, in fit\n'
    for log in (
        f'{asks}    name = input("name: ")\nOSError: [Errno 9] Bad file descriptor\n',
        f"{asks}    name = input()\nEOFError: EOF when reading a line\n",
    ):
        cause = say(log).cause
        assert cause is not None
        assert "a job has none" in cause.do
    cause = say(f"{asks}    os.close(7)\nOSError: [Errno 9] Bad file descriptor\n").cause
    assert cause is not None
    assert "a job has none" not in cause.do


def test_what_wandb_does_not_reach_is_no_download(say: Say) -> None:
    pool = "HTTPSConnectionPool(host='api.wandb.ai', port=443): Read timed out. (read timeout=20)"
    late = "wandb.errors.CommError: Run initialization has timed out after 90.0 sec.\n"
    for host, rule in (("api.wandb.ai", "wandb-not-reached"), ("x.org", "download-failed")):
        timed_out = f"requests.exceptions.ReadTimeout: {pool.replace('api.wandb.ai', host)}\n"
        cause = say(timed_out + late).cause
        assert cause is not None
        assert cause.rule == rule
