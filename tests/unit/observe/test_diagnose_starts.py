"""What diagnose says of jobs that did not begin: Slurm, modules, containers, MPI's launchers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from clusterkit.observe.diagnose.verdict import Diagnosis

Say = Callable[[str], Diagnosis]

REFUSED = "sbatch: error: Batch job submission failed: "
SITE = f"""\
sbatch: error: spank: cap.so: Plugin file not found
sbatch: error: 2 errors found:
sbatch: error:
sbatch: error: every job names its nodes (-N)
sbatch: error: every job names its time (-t)
sbatch: error: nothing was submitted
{REFUSED}Unspecified error
"""
NVCC = "nvcc fatal : Unsupported gpu architecture 'compute_99'\n"
LMOD = "Lmod has detected the following error:  "
ABSENT = "Unable to locate a modulefile for"
TASK = "CreateSession still waiting for response from worker: "
SYMBOL = "Symbol `orte_x' has different size in shared object"
DOCKER = "docker: Error response from daemon: OCI runtime create failed: "
NO_PROGRAM = '"exec: \\"train\\": executable file not found in $PATH'


@pytest.mark.parametrize(
    ("log", "rule", "told"),
    [
        (
            SITE,
            "slurm-site-refused",
            "refuse the job: every job names its nodes (-N), every job names its time (-t)",
        ),
        (
            f"{SITE.splitlines()[0]}\n{REFUSED}I/O error writing script/environment to file",
            "slurm-spool-full",
            "could not keep the script",
        ),
        (
            "".join(f"{NVCC}make[2]: *** [{name}.o] Error 1\n" for name in "ab"),
            "nvcc-architecture",
            "compute_99",
        ),
        (
            "FATAL:   exec /bin/train failed: a shared library is likely missing in the image\n",
            "container-failed",
            "container did not start",
        ),
        (
            f'{DOCKER}docker.go:349: starting \ncontainer process caused {NO_PROGRAM}": unknown.\n',
            "command-missing",
            "the program train is missing",
        ),
        (
            f'{DOCKER}docker.go:349: starting container process caused {NO_PROGRAM}": unknown.\n',
            "command-missing",
            "the program train is missing",
        ),
        (
            f"mpiexec: {SYMBOL}\nIt looks like orte_init failed for some reason",
            "mpi-not-started",
            SYMBOL,
        ),
        (
            "login done\nsudo: my-docker: command not found\n",
            "command-missing-in-script",
            "my-docker",
        ),
    ],
)
def test_what_was_refused_is_told(say: Say, log: str, rule: str, told: str) -> None:
    found = say(log).cause
    assert found is not None
    assert (found.rule, told in found.title) == (rule, True), found.title


def test_the_host_of_an_old_network_is_told(say: Say) -> None:
    log = "n3.example.org.4711Driver initialization failure on /dev/ipath (err=23)\n"
    found = say(f"{log}[128] MPI startup(): tmi fabric is not available\n").cause
    assert found is not None
    assert (found.where, found.title.endswith("/dev/ipath (err=23)")) == ("n3.example.org", True)


STARTING = "a_linux.go:367: starting container process caused"
INIT = "b_linux.go:495: container init caused"


@pytest.mark.parametrize(
    ("chain", "why"),
    [
        (
            f"{STARTING}: {INIT}: open /proc/self/fd: permission denied: unknown.",
            "open /proc/self/fd: permission denied.",
        ),
        (
            rf'{STARTING} "{INIT} \"fs.go:8: mount of /a caused \\\"no directory\\\"\"": unknown',
            r"mount of /a caused \\\"no directory.",
        ),
        (
            'runc create failed: error during container init: exec: "/run.sh": permission denied',
            'exec: "/run.sh": permission denied.',
        ),
    ],
)
def test_the_innermost_reason_of_a_container_engine_is_told(say: Say, chain: str, why: str) -> None:
    found = say(f"{DOCKER}{chain}\n").cause
    assert found is not None
    assert (found.rule, found.says) == ("container-failed", f"The container engine said {why}")


OF_OLD = """\
Traceback (most recent call last):
  File "/opt/train.py", line 7, in <module>
    for batch in loader:
{head}Traceback (most recent call last):
  File "/opt/env/lib/python3.6/site-packages/torch/utils/data/dataloader.py", line 42, in loop
    samples = fetch(indices)
  File "/opt/rows.py", line 31, in __getitem__
    return self.rows[row]
IndexError: row 12 is missing
"""


@pytest.mark.parametrize(
    "head",
    [
        "IndexError: ",
        "RuntimeError: Caught IndexError in DataLoader worker process 0.\nOriginal ",
    ],
)
def test_the_exception_of_a_data_loader_worker_is_told_with_its_place(say: Say, head: str) -> None:
    found = say(OF_OLD.format(head=head)).cause
    assert found is not None
    assert "IndexError: row 12 is missing (at /opt/rows.py:31, as a sample" in found.says
    assert found.do.startswith("Look for the sample: ")


def test_the_exception_of_a_worker_within_a_key_error_is_told(say: Say) -> None:
    inner = (
        "\n  File \"/opt/rows.py\", line 31, in get\n    return self.rows[row]\nKeyError: 'row 7'\n"
    )
    found = say(f"KeyError: {'Traceback (most recent call last):' + inner!r}\n").cause
    assert found is not None
    assert (found.title, "row 7" in found.says) == ("the script raised KeyError", True)


PROXY = (
    "[proxy:0:1@n2] HYDU_sock_connect (sock.c:140): unable to connect from n2 to n1 (no route)\n"
)
STALLED = (
    "[1,0]<stderr>:[2026-11-22 14:02:01.000001: W horovod/common/stall_inspector.cc:107] One or "
    "more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks\n"
)
UNTAGGED = STALLED.removeprefix("[1,0]<stderr>:")
MISSING = "[1,0]<stderr>:{rank}: [grad_a, grad_b]\n"


@pytest.mark.parametrize(
    ("log", "where"),
    [
        (PROXY, "n2"),
        (f"{STALLED}[1,0]<stderr>:Missing ranks:\n{MISSING.format(rank=3)}", "rank 3"),
        (f"{STALLED}{MISSING.format(rank=3)}{MISSING.format(rank=5)}", ""),
        (f"{STALLED}[1,0]<stderr>:Broadcast_a_0 [missing ranks: 7]\n", "rank 7"),
        (f"n1: {UNTAGGED}n1: Missing ranks:\nn1: 3: [grad_a, grad_b ...]\n", "rank 3"),
        (f"{UNTAGGED}Missing ranks:\n3: [grad_a]\n", "rank 3"),
    ],
)
def test_who_is_missing_is_the_place_and_not_who_tells_it(say: Say, log: str, where: str) -> None:
    found = say(log).cause
    assert found is not None
    assert found.where == where


def test_libraries_older_than_jax_wants_are_why_it_has_too_few_devices(say: Say) -> None:
    versions = (
        "Version JAX was built against: 8907\nMinimum supported: 9100\nInstalled version: 8907\n"
    )
    outdated = f"Unable to use CUDA.\nOutdated cuDNN installation found.\n{versions}"
    found = say(f"{outdated}ValueError: Number of devices 1 must be >= 8\n").cause
    assert found is not None
    assert (found.rule, "found 8907 and needs 9100" in found.says) == ("cuda-library-older", True)


def test_what_cudnn_tells_of_memory_and_driver_is_told(say: Say) -> None:
    dnn = "2026-11-22 18:02:05.1: E external/xla/xla/stream_executor/cuda/cuda_dnn.cc:443] "
    told = (
        "Memory usage: 7995392 bytes free, 11721572352 bytes total",
        "insufficient driver version: 5.1",
    )
    log = f"{dnn}{told[0]}.\n{dnn}Possibly {told[1]}\n"
    end = "XlaRuntimeError: FAILED_PRECONDITION: DNN library initialization failed.\n"
    found = say(f"{log}{end}").cause
    assert found is not None
    assert all(words in found.says for words in told)
