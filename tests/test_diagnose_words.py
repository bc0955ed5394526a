"""What rules say of real messages: the port, the place, the error itself, and nothing untrue."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from clusterkit.diagnose.rules import own_rules
from clusterkit.diagnose.verdict import Diagnosis, Finding, diagnose
from clusterkit.diagnose.weigh import Source

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


@pytest.fixture
def say(tmp_path: Path) -> Say:
    def said(log: str) -> Diagnosis:
        path = tmp_path / "x.log"
        path.write_text(log if log.endswith("\n") else log + "\n")
        return diagnose(own_rules(), [Source(path=path)])

    return said


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
    assert found.says.startswith("Slurm ended task 3 at")
    found = cause(say("  traceback : Signal 9 (SIGKILL) received by PID 4719"))
    assert "the process PID 4719 without" in found.says
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
    assert cause(say("EOFError: Ran out of input")).rule == "checkpoint-broken"


def test_the_last_error_of_nccl_is_shown(say: Say) -> None:
    last = "Cuda failure 'peer access is not supported between these two devices'"
    found = cause(say(NCCL.format(kind="unhandled cuda error", name="ncclUnhandledCudaError",
                                  last=last)))  # fmt: skip
    assert (found.rule, found.rank) == ("nccl-cuda-failure", 7)
    assert found.title.endswith(": peer access is not supported between these two devices")
    found = cause(say(NCCL.format(kind="internal error", name="ncclInternalError", last="oh")))
    assert (found.rule, found.evidence.after[-1]) == ("nccl-internal-error", "oh")


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
    assert cause(say("slurm_script: line 7: module: command not found")).rule == "command-missing"


def test_memory_that_was_found_by_a_smaller_batch_is_no_failure(say: Say) -> None:
    full = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    for word in ("Decreasing batch size to 8", "attempting to recover from OOM in forward pass"):
        assert say(f"{full}{word}\nstep 2 loss 2.5\n").cause is None
        assert say(f"{full}{word}\n{full}{word}\n").cause is None
        assert cause(say(f"{full}{word}\nstep 2\n{full}step 2")).rule == "cuda-out-of-memory"
