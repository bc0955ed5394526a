"""Train with tensor parallelism inside of FSDP2: a mesh of dp x tp ranks.

    clusterkit layout --tp 2 --nodes 2 --gpus-per-node 2  # which rank runs where
    clusterkit submit --framework torchrun --nodes 2 --gpus-per-node 2 train_tp_fsdp.py --tp 2

The ranks of a node divide each layer (`--tp`), the nodes divide the data and what the layers weigh.
The losses are those of train_fsdp.py on as many processes as there are data-parallel ranks.
Checkpoints are those of train_fsdp.py, too.
"""

import argparse
import os
from collections.abc import Iterable

import charlm
import session
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from train_fsdp import load, save


def main() -> None:
    """Join the other ranks, train, leave together."""
    parser = session.parser(__doc__)
    size = int(os.environ.get("TP_SIZE", "1"))  # as `clusterkit layout --export env` has it
    parser.add_argument("--tp", type=int, default=size, help="ranks that divide each layer")
    args = parser.parse_args()
    device = session.join()
    if dist.get_world_size() % args.tp:
        parser.error(f"--tp {args.tp} does not divide {dist.get_world_size()} processes")
    train(args, device)
    session.leave()


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Train until `--steps`, from the newest checkpoint on if there is one."""
    rank, world = dist.get_rank(), dist.get_world_size()
    # tp last: its ranks follow each other, so that they are on one node
    mesh = init_device_mesh(device.type, (world // args.tp, args.tp), mesh_dim_names=("dp", "tp"))
    copies = mesh["dp"]
    progress = session.Progress("tp-fsdp", args, rank, world, device)
    progress.world = copies.size()  # the ranks of a copy have the same samples
    text = charlm.Text(args, copies.get_local_rank(), copies.size())
    model = charlm.CharLM(args).to(device)
    divide(model.blocks, mesh["tp"])
    for block in model.blocks:  # gathered and freed one by one: the peak is a block, not the model
        fully_shard(block, mesh=copies)
    fully_shard(model, mesh=copies)
    # one by one, as some weights lie on a mesh of dp x tp, and the others on one of dp
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, foreach=False)
    load(args.checkpoint_dir, model, optimizer, progress)
    while progress.step < args.steps:
        loss = model(text.batch(progress.step).to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress.advance(loss)
        if progress.save_due():
            save(args.checkpoint_dir, model, optimizer, progress)
    progress.done()


def divide(blocks: Iterable[nn.Module], mesh: DeviceMesh) -> None:
    """Let the ranks of `mesh` hold a part of each matrix: columns of a first, rows of a second.

    The columns of `qkv` are those of q, of k and of v, so a part of them is no part of the heads:
    the ranks hand each other all of its result.
    """
    plan = {
        "qkv": ColwiseParallel(output_layouts=Replicate()),
        "project": RowwiseParallel(input_layouts=Replicate()),
        "think.0": ColwiseParallel(),
        "think.2": RowwiseParallel(),
    }
    for block in blocks:
        parallelize_module(block, mesh, plan)


if __name__ == "__main__":
    main()
