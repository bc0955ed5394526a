"""Train with PyTorch DistributedDataParallel: every rank holds the whole model and averages the gradients.

    clusterkit submit --framework torchrun --nodes 2 --gpus-per-node 4 examples/train_ddp.py --steps 200
    torchrun --standalone --nproc-per-node 2 examples/train_ddp.py --checkpoint-dir /tmp/ddp
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import charlm
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    args = charlm.parser(__doc__).parse_args()
    device = charlm.device()
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    train(args, device)
    # A rank that leaves while a peer still uses its gloo sockets would abort that peer: leave together, with
    # train() returned, so that the DDP module is gone before the process group that it works with.
    dist.barrier()
    dist.destroy_process_group()


def train(args: argparse.Namespace, device: torch.device) -> None:
    rank, world = dist.get_rank(), dist.get_world_size()
    progress = charlm.Progress("ddp", args, rank, world, mean)
    text = charlm.Text(args, rank, world)
    model = charlm.CharLM(args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    load(args.checkpoint_dir, model, optimizer, progress)
    ddp = DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
    while progress.step < args.steps:
        loss = ddp(text.batch(progress.step).to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress.advance(loss)
        if progress.save_due():
            save(args.checkpoint_dir, model, optimizer, progress)
    progress.done()


def mean(loss: Tensor) -> float:
    """Average over the ranks (gloo can only sum)."""
    total = loss.clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: charlm.Progress) -> None:
    """Write one file from rank 0, whole or not at all: a killed job leaves the checkpoint before it."""
    if dist.get_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "progress": progress.state()}
        torch.save(state, folder / "ddp.pt.tmp")
        os.replace(folder / "ddp.pt.tmp", folder / "ddp.pt")


def load(
    folder: Path | None, model: nn.Module, optimizer: torch.optim.Optimizer, progress: charlm.Progress
) -> None:
    """Read the file on rank 0 alone and hand it round: the hosts need not share a file system."""
    found: list[dict[str, Any] | None] = [None]
    if dist.get_rank() == 0 and folder and (folder / "ddp.pt").exists():
        found = [torch.load(folder / "ddp.pt", map_location="cpu", weights_only=True)]
    dist.broadcast_object_list(found)
    if found[0]:
        model.load_state_dict(found[0]["model"])
        optimizer.load_state_dict(found[0]["optimizer"])
        progress.resume(found[0]["progress"])


if __name__ == "__main__":
    main()
