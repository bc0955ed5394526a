"""What diagnose says of scripts from elsewhere: downloads, builds for CPUs, what they need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clusterkit.observe.diagnose.events import Source
from clusterkit.observe.diagnose.rules import own_rules
from clusterkit.observe.diagnose.verdict import Finding, diagnose
from tests.helpers.needs import module

NO_NAME = "[Errno -3] Temporary failure in name resolution"
CONNECT = f"""\
Traceback (most recent call last):
  File "/usr/lib/python3.11/http/client.py", line 952, in connect
    self.sock = self._create_connection(
socket.gaierror: {NO_NAME}
"""
CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"
FRAMES = "Traceback (most recent call last):\n" + "".join(
    f'  File "/env/lib/python3.11/site-packages/{name}.py", line {line}, in call\n    f(\n'
    for line, name in enumerate(("boto/x", "fsspec/asyn", "aiobotocore/endpoint"), 40)
)
URLLIB = f"{CONNECT}{DURING}{FRAMES}urllib.error.URLError: <urlopen error {NO_NAME}>\n"
POOL = "HTTPSConnectionPool(host='data.example.org', port=443): Max retries exceeded with url: /a"
HUB = "/env/lib/python3.11/site-packages/huggingface_hub/file_download.py"
HTTPX = f"""\
Traceback (most recent call last):
  File "/env/lib/python3.11/site-packages/httpcore/_sync/connection.py", line 99, in connect
    stream = self._connect(request)
httpcore.ConnectError: {NO_NAME}
"""
OFFLINE = "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate"


def cause(folder: Path, log: str) -> Finding:
    path = folder / "x.log"
    path.write_text(log if log.endswith("\n") else f"{log}\n")
    found = diagnose(own_rules(), [Source(path=path)]).cause
    assert found is not None, log
    return found


@pytest.mark.parametrize(
    ("log", "host"),
    [
        (
            f'Downloading: "https://download.pytorch.org/models/a.pth" to /x\n{URLLIB}',
            "download.pytorch.org",
        ),  # torch.hub's weights, torchvision's
        (
            (
                f"Downloading data from https://storage.googleapis.com/a/mnist.npz\n{URLLIB}{DURING}"
                f"Exception: URL fetch failure on https://storage.googleapis.com/a/mnist.npz: None"
            ),
            "storage.googleapis.com",
        ),  # Keras
        (
            (
                f"{CONNECT}{CAUSED}urllib3.exceptions.NameResolutionError: HTTPSConnection(host="
                f"'data.example.org', port=443): Failed to resolve 'data.example.org' ({NO_NAME})"
                f"{DURING}requests.exceptions.ConnectionError: {POOL}"
            ),
            "data.example.org",
        ),
        (
            (
                f"{CONNECT}{DURING}{FRAMES}botocore.exceptions.EndpointConnectionError: Could not "
                'connect to the endpoint URL: "https://b.s3.us-west-2.amazonaws.com/a"'
            ),
            "b.s3.us-west-2.amazonaws.com",
        ),
        (
            (
                f"{CONNECT}{CAUSED}{FRAMES}aiohttp.client_exceptions.ClientConnectorDNSError: "
                "Cannot connect to host data.example.org:443 ssl:default [x]"
            ),
            "data.example.org",
        ),
        (
            (
                f'{FRAMES}  File "a.py", line 3, in <module>\n    urlopen("https://example.org/a.gz")\n'
                f"urllib.error.URLError: <urlopen error {NO_NAME}>"
            ),
            "example.org",
        ),
        (
            (
                "(ReadTask pid=7, ip=10.0.0.3) OSError: When resolving region for bucket 'd': AWS "
                "Error NETWORK_CONNECTION during HeadBucket operation: curlCode: 6, Could not "
                "resolve hostname; Details: Could not resolve host: d.s3.amazonaws.com"
            ),
            "d.s3.amazonaws.com",
        ),  # Ray
        (
            (
                "RuntimeError: Error downloading train-images-idx3-ubyte.gz:\nTried "
                f"https://ossci.example.org/mnist/, got:\n<urlopen error {NO_NAME}>"
            ),
            "ossci.example.org",
        ),
        (URLLIB, "HOST"),
    ],
)
def test_the_first_of_chained_exceptions_is_a_download_from_the_host_that_was_asked(
    tmp_path: Path, log: str, host: str
) -> None:
    for prefix in ("", "[rank3]: "):
        told = "".join(f"{prefix}{line}\n" for line in log.splitlines())
        found = cause(tmp_path, f"[rank0]: hello\n{told}")
        assert (found.rule, f"`getent hosts {host}`" in found.do) == ("download-failed", True), (
            found.do
        )


@pytest.mark.parametrize(
    "log",
    [
        f'{HTTPX}{CAUSED}  File "{HUB}", line 7, in f\nhttpx.ConnectError: {NO_NAME}',
        (
            f"{HTTPX}{CAUSED}{OFFLINE}{CAUSED}OSError: We couldn't connect to "
            "'https://huggingface.co' to load the files, and couldn't find them."
        ),
        f"{HTTPX}{CAUSED}{OFFLINE}",  # timm
        (
            "FileNotFoundError: Couldn't find a module script at /home/ada/glue/glue.py. "
            "Module 'glue' doesn't exist on the Hugging Face Hub either."
        ),  # evaluate
        "ConnectionError: Couldn't reach 'glue' on the Hub (ConnectionError)",
    ],
)
def test_a_model_or_metric_of_the_hub_is_a_download_and_no_missing_mount(
    tmp_path: Path, log: str
) -> None:
    found = cause(tmp_path, log)
    assert found.rule == "hub-not-reached"
    assert "`getent hosts huggingface.co`" in found.do
    assert "mount" not in found.says + found.do


def test_a_name_that_no_download_asked_for_is_a_host_name(tmp_path: Path) -> None:
    rendezvous = 'File "/env/torch/distributed/rendezvous.py", line 7, in f\n    store = TCPStore('
    found = cause(tmp_path, f"  {rendezvous}\nsocket.gaierror: {NO_NAME}")
    assert found.rule == "host-name"
    store = cause(tmp_path, f"  {rendezvous}\nTimeoutError: The read operation timed out")
    assert store.rule == "python-exception"


def test_files_of_the_hub_that_are_not_there(tmp_path: Path) -> None:
    cache = "/home/ada/.cache/huggingface/hub/models--gpt2/snapshots/607a/model.safetensors"
    found = cause(tmp_path, f"FileNotFoundError: [Errno 2] No such file or directory: '{cache}'")
    assert (found.rule, "model.safetensors" in found.title) == ("hub-file-missing", True)
    found = cause(tmp_path, f"{OFFLINE}")
    assert found.rule == "hub-not-reached"
    found = cause(tmp_path, "FileNotFoundError: [Errno 2] No such file or directory: '/data/x.bin'")
    assert found.rule == "file-not-found"


@pytest.mark.parametrize(
    ("source", "error", "rule"),
    [
        ("rank % torch.cuda.device_count()", "integer modulo by zero", "gpu-count-zero"),
        ("self.bs // self.args.n_gpu", "integer division or modulo by zero", "gpu-count-zero"),
        ("world / len(devices)", "division by zero", "gpu-count-zero"),
        ("total / len(losses)", "division by zero", "python-exception"),
    ],
)
def test_a_number_of_gpus_that_is_zero(tmp_path: Path, source: str, error: str, rule: str) -> None:
    log = f'  File "train.py", line 3, in main\n    n = {source}\n        ~~^~~\n'
    assert cause(tmp_path, f"{log}ZeroDivisionError: {error}").rule == rule


CALLS = {
    "torch.cuda.set_device(0)": "torch-cpu-build",
    "torch.zeros(1).cuda()": "torch-cpu-build",
    "torch.distributed.init_process_group('nccl')": "torch-cpu-build",
    "torch.cuda.reset_peak_memory_stats()": "torch-cpu-build",
    "torch.cuda.Stream()": "torch-cpu-build",
    "torch.cuda.Event()": "torch-cpu-build",
    "torch.cuda.CUDAGraph()": "torch-cpu-build",
    "torch.Generator('cuda')": "torch-cpu-build",
    "torch.cuda.nccl.version()": "torch-cpu-build",
    "torch.cuda.nvtx.range_push('x')": "torch-cpu-build",
    "torch.cuda.FloatTensor(1)": "torch-cpu-build",
    "7 % torch.cuda.device_count()": "gpu-count-zero",
    "torch.zeros(1).pin_memory()": "gpu-unseen",
}
SCRIPT = """\
import os, traceback, torch
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
def fail():
    {call}
try:
    fail()
except Exception:
    print("@@@", flush=True)
    traceback.print_exc()
"""


def test_what_a_build_for_cpus_says_itself(tmp_path: Path) -> None:
    torch = module("torch")
    if torch.version.cuda or torch.version.hip:
        pytest.skip("torch here is a build for GPUs")
    head, _, rest = SCRIPT.partition("def fail")
    scripts = [tmp_path / f"s{n}.py" for n in range(len(CALLS))]
    for path, call in zip(scripts, CALLS, strict=True):
        path.write_text("def fail" + rest.format(call=call))
    run = "".join(f"exec(compile(open({str(p)!r}).read(), {str(p)!r}, 'exec'))\n" for p in scripts)
    done = subprocess.run(
        [sys.executable, "-c", head + run], capture_output=True, text=True, check=True
    )
    told = done.stderr.split("Traceback (most recent call last):")[1:]
    assert len(told) == len(CALLS), done.stderr
    rules = [cause(tmp_path, text).rule for text in told]
    assert dict(zip(CALLS, rules, strict=True)) == CALLS
