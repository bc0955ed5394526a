"""Train with PyTorch FSDP2: every rank holds a slice of weights, gradients and moments.

    clusterkit submit --framework torchrun --nodes 2 examples/train_fsdp.py --steps 200

By hand, on one machine: `torchrun --standalone --nproc-per-node 2 examples/train_fsdp.py`.
Every rank writes its slice, so all hosts must share the checkpoint folder. Another number of
processes may resume from it: a distributed checkpoint is cut anew when it is read.
"""

import argparse
import shutil
from pathlib import Path
from typing import Any

import charlm
import measure
import session
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

# each value under the name of its weight: stages of a pipeline have different ones
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


def main() -> None:
    """Join the other ranks, train, leave together."""
    parser = session.parser(__doc__)
    measure.add_argument(parser)
    args = parser.parse_args()
    device = session.join()
    train(args, device)
    session.leave()


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Train until `--steps`, from the newest checkpoint on if there is one."""
    rank, world = dist.get_rank(), dist.get_world_size()
    progress = session.Progress("fsdp", args, rank, world, device)
    text = charlm.Text(args, rank, world)
    model = charlm.CharLM(args).to(device)
    mesh = init_device_mesh(device.type, (world,))
    for block in model.blocks:  # gathered and freed one by one: the peak is a block, not the model
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    # after the sharding, as the optimizer is to see the slices
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    load(args.checkpoint_dir, model, optimizer, progress)
    meter = measure.Meter(args, "fsdp", model, device)
    while progress.step < args.steps:
        loss = model(text.batch(progress.step).to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress.advance(loss)
        meter.advance()
        if progress.save_due():
            save(args.checkpoint_dir, model, optimizer, progress)
    progress.done()
    meter.write()


def save(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: session.Progress
) -> None:
    """Write a folder `step-N`; it gets that name when all ranks have written: it is whole."""
    unfinished, finished = folder / "unfinished", folder / f"step-{progress.step:08}"
    state_dict_saver.save(state(model, optimizer, progress), checkpoint_id=unfinished)
    if dist.get_rank() == 0:
        older = checkpoints(folder)
        unfinished.rename(finished)
        for superseded in older:
            shutil.rmtree(superseded)
    dist.barrier()


def load(
    folder: Path | None,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: session.Progress,
) -> None:
    """Read the newest checkpoint; rank 0 chooses it, so that every rank reads the same one."""
    newest: list[Path | None] = [None]
    if dist.get_rank() == 0 and folder:
        newest = [None, *checkpoints(folder)][-1:]
    dist.broadcast_object_list(newest)
    if newest[0]:
        saved = state(model, optimizer, progress)
        state_dict_loader.load(saved, checkpoint_id=newest[0])
        parts = {"model_state_dict": saved["model"], "optim_state_dict": saved["optimizer"]}
        set_state_dict(model, optimizer, **parts, options=FLAT)
        progress.resume(saved["progress"])


def state(
    model: nn.Module, optimizer: torch.optim.Optimizer, progress: session.Progress
) -> dict[str, Any]:
    """Return what to save, of this rank; loading fills the same structure in place."""
    weights, moments = get_state_dict(model, optimizer, options=FLAT)
    return {"model": weights, "optimizer": moments, "progress": progress.state()}


def checkpoints(folder: Path) -> list[Path]:
    """Return the finished ones, oldest first."""
    return sorted(folder.glob("step-*"))


if __name__ == "__main__":
    main()
