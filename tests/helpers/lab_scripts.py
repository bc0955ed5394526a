"""Scripts of jobs that leave the processors to others.

Without torch where training is not what is tested, as an import takes seconds; and examples that
train no faster than is needed.
"""

from __future__ import annotations

from pathlib import Path

FAILS = """print("last step", flush=True)
if "raise" in sys.argv:
    raise ValueError("the loss is NaN")
if "exit" in sys.argv:
    os._exit(7)
os.kill(os.getpid(), 9)
"""
"""The end of a script, as its argument says."""
DIES = (
    """
import os, pathlib, socket, sys, time

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = pathlib.Path(os.environ["CK_RESULTS"], "rank-3")
if rank != 3:
    while not place.exists():
        time.sleep(0.1)
    host, port = place.read_text().split()
    with socket.create_connection((host, int(port))) as connection:
        connection.recv(1)
    for _ in range(50):
        if os.path.exists(os.environ["CK_FAILURE"]):
            break
        time.sleep(0.1)
    raise ConnectionError("connection closed by peer")
server = socket.create_server(("", 0))
place.with_suffix(".new").write_text(f"{os.uname().nodename} {server.getsockname()[1]}")
place.with_suffix(".new").rename(place)
others = [server.accept()[0] for _ in range(world - 1)]
"""
    + FAILS
)
"""Rank 3 fails as the argument says, and all others when they have lost it, as in a collective.

They say so once it is told of rank 3, and after five seconds all the same: who tells of it later
blames one of them. Those are naps, as nobody tells either while the machine stands still."""

TRAINS = """
import argparse, os, pathlib, signal, time

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.add_argument("--checkpoint-dir", type=pathlib.Path)
parser.add_argument("--checkpoint-every", type=int)
options, _ = parser.parse_known_args()
rank, world = int(os.environ["RANK"]), os.environ["WORLD_SIZE"]
saved = options.checkpoint_dir / "step"
before = int(saved.read_text()) if saved.exists() else 0
notices = []
signal.signal(signal.SIGUSR2, lambda *_: notices.append("SIGUSR2"))
if rank == 0:
    options.checkpoint_dir.mkdir(exist_ok=True)
    print(f"start: no torch, world size {world}, {options.steps} steps", flush=True)
    if before:
        print(f"resume: step {before} from {options.checkpoint_dir}", flush=True)
for step in range(before + 1, options.steps + 1):
    time.sleep(0.05)
    if rank == 0:
        print(f"step {step} loss {5 - step / 100:.4f}", flush=True)
        if notices or step % options.checkpoint_every == 0:
            print(*(f"notice: saving after step {step}" for _ in notices[:1]), flush=True)
            notices.clear()
            saved.with_suffix(".new").write_text(str(step))
            saved.with_suffix(".new").rename(saved)
"""
"""Says what examples/train_ddp.py says of starts, steps and notices, and continues where it was."""

_TORCH = """
import gc
gc.disable()
import torch.optim.optimizer
gc.freeze()
gc.enable()
"""
"""Imports it as agent.py does: without looking for garbage meanwhile."""
IN_TORCH = (
    _TORCH
    + """
import os, sys, time

if "HOROVOD_RANK" in os.environ:
    import horovod.torch as hvd
    hvd.init()
    rank, world, leave = hvd.rank(), hvd.size(), hvd.shutdown
    total = lambda tensor: hvd.allreduce(tensor, op=hvd.Sum)
else:
    import torch.distributed as dist
    dist.init_process_group("gloo")
    rank, world, leave = dist.get_rank(), dist.get_world_size(), dist.destroy_process_group
    total = lambda tensor: dist.all_reduce(tensor) or tensor
"""
)
"""Joins the other ranks, under any launcher, without what only training imports."""
ADDS = (
    IN_TORCH
    + """
number = total(torch.tensor([float(rank)])).item()
if rank == 0:
    print(f"world size {world}, sum {number:.0f}", flush=True)
total(torch.ones(1))  # another may still be using this rank's sockets
leave()
"""
)
DIES_IN_TORCH = (
    IN_TORCH
    + """
# Gloo's thread may still hold the tensor of an all-reduce while a rank that raises ends: it aborts.
meet = (lambda: total(torch.ones(1))) if "HOROVOD_RANK" in os.environ else dist.barrier
while True:
    meet()
    if rank == 3:
        break
"""
    + FAILS
)

MEETS = """
import json, os, socket, time

rank, world = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
mine = (int(os.environ["SLURM_NODEID"]), int(os.environ["SLURM_LOCALID"]), os.uname().nodename)
if rank == 0:
    where = {rank: mine}
    with socket.create_server(address) as server:
        while len(where) < world:
            connection = server.accept()[0]
            with connection, connection.makefile() as lines:
                one, *told = json.loads(lines.readline())
                where[one] = tuple(told)
    print("where", [where[one] for one in range(world)], flush=True)
else:
    deadline = time.monotonic() + 90
    while True:
        try:
            with socket.create_connection(address) as connection:
                connection.sendall(json.dumps([rank, *mine]).encode() + b"\\n")
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
"""
"""Rank 0 listens where all are told that it does, and prints who has come from where."""

_IN_TURN = (
    _TORCH
    + """
import os, runpy, sys
import deepspeed, functorch.compile, torch._dynamo, torch._inductor.compile_fx
import torch.distributed.checkpoint, torch.distributed.fsdp, torch.utils.cpp_extension

port = int(os.environ["MASTER_PORT"])
os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
for number, words in enumerate({commands!r}, 1):
    if not (child := os.fork()):
        os.environ["MASTER_PORT"] = str(port + number)
        sys.path.insert(0, os.path.dirname(words[0]))
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")
        sys.exit()
    if os.waitpid(child, 0)[1]:
        sys.exit(f"{{words}} failed")
"""
)

_SLOWLY = (
    _TORCH
    + """
import runpy, sys, time
from pathlib import Path
from torch.optim.optimizer import register_optimizer_step_post_hook

register_optimizer_step_post_hook(lambda *_: time.sleep({pause_s}))
script = Path({script!r})
sys.path.insert(0, str(script.parent))
runpy.run_path(str(script), run_name="__main__")
"""
)


def in_turn(*commands: tuple[str, ...]) -> str:
    """Return a script that runs others for torchrun, one after the other, and imports once.

    Each is a process of its own on every rank, and meets the others at a port of its own.
    """
    return _IN_TURN.format(commands=[list(words) for words in commands])


def slowly(script: Path, *, pause_s: float = 0.05) -> str:
    """Return a script that trains as an example does, with a pause after each step."""
    return _SLOWLY.format(script=str(script), pause_s=pause_s)
