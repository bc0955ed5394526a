"""Hold what surrounds the training in every script here: arguments, progress lines, one-file saves.

What a framework asks for itself stands in its own script.
"""

import argparse
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return the arguments that every script takes."""
    args = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    args.add_argument("--steps", type=int, default=100, help="last step, resumed ones counted")
    args.add_argument("--batch-size", type=int, default=16, help="samples per step, of one process")
    args.add_argument("--lr", type=float, default=3e-3)
    args.add_argument("--seed", type=int, default=0)
    args.add_argument("--width", type=int, default=64, help="of the model; a multiple of 16")
    args.add_argument("--layers", type=int, default=2)
    args.add_argument("--log-every", type=int, default=10, metavar="STEPS")
    args.add_argument("--checkpoint-dir", type=Path, help="save here; resume from what is here")
    args.add_argument("--checkpoint-every", type=int, default=50, metavar="STEPS")
    return args


def device(local_rank: int) -> torch.device:
    """Return this process's device: the GPU of its local rank, or the CPU where there is none."""
    if torch.cuda.is_available():
        return torch.device("cuda", local_rank)
    return torch.device("cpu")


def join(backend: str = "nccl") -> torch.device:
    """Join the other ranks of torch.distributed, and return this process's device.

    `backend` is that of GPUs; on CPUs it is gloo. FSDP works on the current device.
    """
    where = device(int(os.environ["LOCAL_RANK"]))
    if where.type == "cuda":
        torch.cuda.set_device(where)
        dist.init_process_group(backend, device_id=where)
    else:
        dist.init_process_group("gloo")
    return where


def mean(loss: Tensor) -> float:
    """Average over the ranks of torch.distributed (gloo can sum only)."""
    total = loss.clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def leave() -> None:
    """End the process together with its peers, for the scripts that work with torch.distributed.

    DDP, DTensor and ZeRO keep the group alive beyond its destruction, and its gloo threads with
    it. One that lets go of a tensor while Python shuts down aborts the process ("terminate called
    without an active exception"), so on gloo Python does not get to shut down.
    """
    on_gloo = dist.get_backend() == "gloo"
    dist.barrier()  # a peer may still be using this rank's sockets
    dist.destroy_process_group()
    if on_gloo:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


class Progress:
    """Count the steps and print them on rank 0, in the lines that README.md documents.

    `mean` averages a loss over the ranks; every rank calls it at the same steps.
    """

    def __init__(
        self,
        framework: str,
        args: argparse.Namespace,
        rank: int,
        world: int,
        where: torch.device,
        mean: Callable[[Tensor], float] = mean,
    ) -> None:
        self.args, self.rank, self.world, self.where, self.mean = args, rank, world, where, mean
        self.step = 0
        self.first_loss = self.last_loss = math.nan
        self.since = (self.step, time.perf_counter())
        self.noticed = False
        if args.checkpoint_dir is not None:
            signal.signal(signal.SIGUSR2, self.notice)
        self.print(f"start: framework {framework}, world size {world}, device {where.type}")

    def print(self, line: str) -> None:
        """Print one line, on rank 0 only, and at once: someone may follow the log."""
        if self.rank == 0:
            print(line, flush=True)

    def state(self) -> dict[str, float]:
        """Return what a checkpoint holds besides model and optimizer."""
        return {"step": self.step, "first_loss": self.first_loss, "last_loss": self.last_loss}

    def resume(self, state: dict[str, float], source: object = None) -> None:
        """Go on from a checkpoint's state, or from that of `source`."""
        self.step = int(state["step"])
        self.first_loss, self.last_loss = state["first_loss"], state["last_loss"]
        self.since = (self.step, time.perf_counter())
        self.print(f"resume: step {self.step} from {source or self.args.checkpoint_dir}")

    def advance(self, loss: Tensor) -> None:
        """Count one step; print it if it is the first, the last, or one of every so many."""
        self.step += 1
        if 1 < self.step < self.args.steps and self.step % self.args.log_every:
            return
        self.last_loss = self.mean(loss.detach())
        if self.step == 1:
            self.first_loss = self.last_loss
        (step, then), now = self.since, time.perf_counter()
        samples_per_s = (self.step - step) * self.args.batch_size * self.world / (now - then)
        self.since = (self.step, now)
        self.print(f"step {self.step} loss {self.last_loss:.4f} samples/s {samples_per_s:.1f}")

    def notice(self, *_: object) -> None:
        """Note that the end is near: SIGUSR2 comes ahead of a time limit or a preemption."""
        self.noticed = True

    def save_due(self) -> bool:
        """Tell whether to save after this step; every rank asks, and gets the same answer.

        A notice reaches the ranks at different steps, or some of them only, so they ask each other:
        one small all-reduce a step, which scripts with very short steps would do less often.
        """
        if self.args.checkpoint_dir is None:
            return False
        last = self.step >= int(self.args.steps)
        due = last or self.step % int(self.args.checkpoint_every) == 0
        if not due and self.mean(torch.tensor(float(self.noticed), device=self.where)) > 0:
            due = True
            self.print(f"notice: saving after step {self.step}")
        self.noticed = self.noticed and not due
        return due

    def done(self) -> None:
        """Print the last line."""
        losses = f"{self.first_loss:.2f} -> {self.last_loss:.2f}"
        self.print(f"done: loss {losses} in {self.step} steps")


def save(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress
) -> None:
    """Write a checkpoint of one file, whole or not at all: a kill leaves the one before it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    with unfinished.open("wb") as file:
        torch.save(state | {"progress": progress.state()}, file)
        file.flush()
        os.fsync(file.fileno())  # or a lost machine may leave the new name with nothing behind it
    unfinished.replace(path)


def load(path: Path) -> dict[str, Any] | None:
    """Return what `save` wrote, if it did."""
    if not path.exists():
        return None
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state
