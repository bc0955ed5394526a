r"""Train with FSDP2 and what saves memory or traffic besides: HSDP, accumulation, bf16.

    clusterkit submit --framework torchrun --nodes 2 --gpus-per-node 2 \
        examples/train_hsdp.py --replicate 2 --accumulate 4 --recompute --bf16

`--replicate 2` shards within each half of the ranks, and copies across (hybrid sharding): with a
node in each half, weights are gathered inside of nodes alone. `--accumulate 4` computes a batch in
4 parts, after which the ranks reduce once; `--recompute` keeps no activations inside of blocks
(activation checkpointing); `--bf16` computes in bfloat16; `--offload` keeps the slices in the
memory of the host, where FSDP keeps them on CPUs anyway. Checkpoints are those of train_fsdp.py.
"""

import argparse
from functools import partial
from typing import Any

import charlm
import session
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.utils.checkpoint import checkpoint
from train_fsdp import load, save


def main() -> None:
    """Join the other ranks, train, leave together."""
    parser = session.parser(__doc__)
    parser.add_argument("--replicate", type=int, default=1, help="copies of the model")
    parser.add_argument("--accumulate", type=int, default=1, help="parts of a batch")
    parser.add_argument("--recompute", action="store_true", help="keep no activations of blocks")
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16, keep float32")
    parser.add_argument("--offload", action="store_true", help="keep slices on the host")
    args = parser.parse_args()
    # slices that are on the host are saved from there
    device = session.join("cpu:gloo,cuda:nccl" if args.offload else "nccl")
    if dist.get_world_size() % args.replicate:
        parser.error(
            f"--replicate {args.replicate} does not divide {dist.get_world_size()} processes"
        )
    if args.batch_size % args.accumulate:
        parser.error(f"--accumulate {args.accumulate} does not divide a batch of {args.batch_size}")
    train(args, device)
    session.leave()


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Train until `--steps`, from the newest checkpoint on if there is one."""
    rank, world = dist.get_rank(), dist.get_world_size()
    progress = session.Progress("hsdp", args, rank, world, device)
    text = charlm.Text(args, rank, world)
    model = shard(charlm.CharLM(args).to(device), args, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    load(args.checkpoint_dir, model, optimizer, progress)
    while progress.step < args.steps:
        optimizer.zero_grad()
        loss = torch.zeros((), device=device)
        parts = text.batch(progress.step).to(device).chunk(args.accumulate)
        for number, part in enumerate(parts, start=1):
            model.set_requires_gradient_sync(number == len(parts))
            share = model(part) / len(parts)
            share.backward()
            loss += share.detach()
        optimizer.step()
        progress.advance(loss)
        if progress.save_due():
            save(args.checkpoint_dir, model, optimizer, progress)
    progress.done()


def shard(model: charlm.CharLM, args: argparse.Namespace, device: torch.device) -> Any:
    """Cut the model over the ranks, block by block, and return it, now an FSDPModule as well."""
    shape = (args.replicate, dist.get_world_size() // args.replicate)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("copy", "slice"))
    mixed = MixedPrecisionPolicy(torch.bfloat16, torch.float32)  # gradients are added in float32
    offload = args.offload and device.type == "cuda"
    how: dict[str, Any] = {
        "mesh": mesh if args.replicate > 1 else mesh["slice"],
        "mp_policy": mixed if args.bf16 else MixedPrecisionPolicy(),
        "offload_policy": CPUOffloadPolicy() if offload else OffloadPolicy(),
    }
    for block in model.blocks:
        if args.recompute:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        fully_shard(block, **how)
    return fully_shard(model, **how)


if __name__ == "__main__":
    main()
