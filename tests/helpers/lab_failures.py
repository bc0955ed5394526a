"""Scripts that fail on the practice cluster in ways of their own, and what is to be said of each.

Each prints "on" first, and runs with one slot a node: rank K is the K-th node of its job.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tests.helpers.desk import Desk
from tests.helpers.lab_faults import full_shared_memory, mounted

SICK = "n2"
"""The host that has another version of a package, a full disk, and so on."""

_HEAD = """\
import os, sys, time
rank, node = int(os.environ["RANK"]), os.environ["CK_NODE_NAME"]
print("on", node, flush=True)
"""
_TORCH = """\
import datetime
import torch
import torch.distributed as dist
soon = datetime.timedelta(seconds=8)
"""
_WAIT = "time.sleep(300)\n"
"""What ranks do that do not fail: another's failure ends them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How a job fails, and the rule and the rank that are to be named."""

    rule: str
    script: str
    rank: int | None = 1
    """None where all ranks fail at the same moment."""
    framework: str = "env"
    nodes: int = 2
    words: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    state: str = "failed"


def _one(script: str, *, rank: int = 1) -> str:
    """Return a script in which one rank fails, and the others wait."""
    body = "".join(f"    {line}\n" for line in script.strip().splitlines())
    return f"{_HEAD}if rank == {rank}:\n    time.sleep(1)\n{body}{_WAIT}"


def _torch(script: str) -> str:
    return _HEAD + _TORCH + script


FAILURES = {
    "memory": Failure(
        rule="host-out-of-memory",
        script=_one("import resource\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "bytearray(8 << 30)"),
    ),
    "tensor": Failure(
        rule="host-out-of-memory",
        nodes=1,
        rank=0,
        script=_torch("import resource\n"
        "resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))\n"
        "torch.ones(4 << 30)\n"),
    ),
    "killed": Failure(rule="rank-killed", script=_one("os.kill(os.getpid(), 9)")),
    "crash": Failure(
        rule="segmentation-fault", script=_one("import ctypes\nctypes.string_at(0)")
    ),
    "shared-memory": Failure(
        rule="bus-error",
        nodes=3,
        script=_HEAD + "import mmap\n"
        "path = f'/dev/shm/{os.environ[\"CK_JOB_ID\"]}'\n"
        "with open(path, 'w+b') as file:\n"
        "    os.unlink(path)\n"
        "    file.truncate(4 << 20)\n"
        "    mmap.mmap(file.fileno(), 4 << 20)[:] = bytes(4 << 20)\n" + _WAIT,
    ),
    "exit": Failure(rule="exit-code", script=_one("raise SystemExit(7)")),
    "nan": Failure(
        rule="nan-loss",
        script=_one("print('step 11 loss 2.31')\n"
        "for step in range(12, 15):\n"
        "    print('step', step, 'loss nan', flush=True)\n"
        "sys.exit(1)"),
    ),
    "argument": Failure(
        rule="wrong-arguments",
        rank=None,
        args=("--lerning-rate", "0.1"),
        script=_HEAD + "import argparse\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--learning-rate')\n"
        "parser.parse_args()\n",
    ),
    "host-name": Failure(
        rule="host-name",
        script=_one("import socket\nsocket.create_connection(('no-such-host', 29500))"),
    ),
    "library": Failure(
        rule="library-missing", script=_one("import ctypes\nctypes.CDLL('libcudart.so.99')")
    ),
    "permission": Failure(
        rule="permission-denied",
        script=_one("os.setuid(65534)\nopen('private.bin', 'rb')"),
    ),
    "disk": Failure(
        rule="disk-full",
        nodes=3,
        script=_HEAD + "with open('scratch/checkpoint', 'wb') as file:\n"
        "    file.write(bytes(2 << 20))\n" + _WAIT,
    ),
    "file": Failure(
        rule="file-missing-here",
        nodes=3,
        script=_HEAD + "open(os.path.abspath('data/train.bin'), 'rb')\n" + _WAIT,
    ),
    "module": Failure(
        rule="module-missing-here",
        nodes=3,
        script=_HEAD + "sys.path.insert(0, 'site')\nimport tokens\n" + _WAIT,
    ),
    "version": Failure(
        rule="code-differs-here",
        nodes=3,
        script=_HEAD + "sys.path.insert(0, 'site')\nfrom lossy import cross_entropy\n" + _WAIT,
    ),
    "time-limit": Failure(
        rule="time-limit",
        rank=None,
        state="timeout",
        words=("--cluster", "rack", "--time", "0:20"),
        script=_HEAD + _WAIT,
    ),
    "port": Failure(
        rule="address-in-use",
        nodes=1,
        rank=0,
        script=_torch("import socket\n"
        "other = socket.create_server(('', 0))\n"
        "port = other.getsockname()[1]\n"
        "dist.TCPStore('127.0.0.1', port, 1, True, soon)\n"),
    ),
    "rendezvous": Failure(
        rule="rendezvous-timeout",
        rank=0,
        script=_torch("if rank == 0:\n"
        "    port = int(os.environ['MASTER_PORT'])\n"
        "    dist.TCPStore(os.environ['MASTER_ADDR'], port, 2, True, soon / 4)\n" + _WAIT),
    ),
    "interface": Failure(
        rule="gloo-interface",
        script=_torch("if rank == 1:\n"
        "    os.environ['GLOO_SOCKET_IFNAME'] = 'eth9'\n"
        "dist.init_process_group('gloo', timeout=soon)\n"
        "dist.barrier()\n"),
    ),
    "collective": Failure(
        rule="collective-calls",
        rank=None,
        words=("--env", "TORCH_DISTRIBUTED_DEBUG=DETAIL"),
        script=_torch("dist.init_process_group('gloo', timeout=soon)\n"
        "tensor = torch.ones(4)\n"
        "dist.broadcast(tensor, 0) if rank else dist.all_reduce(tensor)\n"),
    ),
    "hang": Failure(
        rule="gloo-timeout",
        rank=0,
        script=_torch("dist.init_process_group('gloo', timeout=soon)\n"
        "dist.barrier()\n"
        "group = dist.new_group(timeout=soon / 4)\n"
        "if rank == 1:\n    time.sleep(300)\n"
        "dist.all_reduce(torch.ones(1), group=group)\n"),
    ),
    "unused": Failure(
        rule="ddp-unused-parameters",
        rank=None,
        script=_torch("dist.init_process_group('gloo', timeout=soon)\n"
        "parts = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])\n"
        "parts.forward = parts[0].forward\n"
        "model = torch.nn.parallel.DistributedDataParallel(parts)\n"
        "for _ in range(2):\n"
        "    model(torch.ones(1, 2)).sum().backward()\n"),
    ),
    "exception": Failure(
        rule="python-exception",
        framework="torchrun",
        script=_torch("dist.init_process_group('gloo', timeout=soon)\n"
        "dist.barrier()\n"
        "if rank == 1:\n    raise KeyError('no such layer')\n"
        "dist.barrier()\n"),
    ),
    "killed-rank": Failure(
        rule="rank-killed",
        framework="torchrun",
        script=_torch("dist.init_process_group('gloo', timeout=soon)\n"
        "dist.barrier()\n"
        "if rank == 1:\n    os.kill(os.getpid(), 9)\n"
        "dist.barrier()\n"),
    ),
    "deepspeed": Failure(
        rule="deepspeed-config",
        framework="deepspeed",
        nodes=1,
        rank=0,
        script=_HEAD + "import deepspeed, torch\n"
        "model = torch.nn.Linear(2, 2)\n"
        "config = {'train_batch_size': 7, 'train_micro_batch_size_per_gpu': 2,\n"
        "          'gradient_accumulation_steps': 1, 'optimizer': {'type': 'Adam'}}\n"
        "deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)\n",
    ),
    "shapes": Failure(
        rule="horovod-mismatch",
        framework="horovod",
        rank=None,
        script="import torch\nimport horovod.torch as hvd\nhvd.init()\nprint('on')\n"
        "hvd.allreduce(torch.ones(hvd.rank() + 3))\n",
    ),
    "uneven": Failure(
        rule="gloo-connection-lost",
        framework="torchrun",
        rank=0,
        script=_torch("dist.init_process_group('gloo', timeout=soon)\n"
        "for _ in range(3 - rank):\n    dist.all_reduce(torch.ones(1))\n"
        # Without it a rank that is through may abort in gloo's threads, and then that is the cause.
        "dist.destroy_process_group()\n"),
    ),
    "uneven-horovod": Failure(
        rule="rank-left-early",
        framework="horovod",
        rank=1,
        script="import torch\nimport horovod.torch as hvd\nhvd.init()\nprint('on')\n"
        "for _ in range(3 - hvd.rank()):\n    hvd.allreduce(torch.ones(3))\n",
    ),
}  # fmt: skip
LIVE = ("killed-rank", "version", "shared-memory", "time-limit", "hang", "shapes")
"""Those that fail anew with each run of the tests; of the others there are recordings."""


@contextmanager
def sick_host(desk: Desk) -> Iterator[None]:
    """Let one host differ: an old package, one fewer, no data, a full disk, little /dev/shm."""
    folder = desk.folder
    for name in ("site", "old-site", "data", "no-data", "scratch"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "site" / "lossy.py").write_text("def cross_entropy(): ...\n")
    (folder / "site" / "tokens.py").touch()
    (folder / "old-site" / "lossy.py").write_text("def mse(): ...\n")
    (folder / "data" / "train.bin").touch()
    (folder / "private.bin").touch(0o600)
    lab = desk.lab
    with ExitStack() as stack:
        for new, old in (("old-site", "site"), ("no-data", "data")):
            bind = ("--bind", str(folder / new), str(folder / old))
            stack.enter_context(mounted(lab, SICK, *bind))
        disk = ("-t", "tmpfs", "-o", "size=1m", "own", str(folder / "scratch"))
        stack.enter_context(mounted(lab, SICK, *disk))
        stack.enter_context(full_shared_memory(lab, SICK))
        yield
    shutil.rmtree(folder / "scratch")
