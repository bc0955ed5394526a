"""Train with PyTorch DDP on nodes of two kinds: each rank takes a micro batch of its own.

    clusterkit submit --framework torchrun --nodes 2 examples/train_uneven.py --steps 200

Each rank takes MICRO_BATCH samples of every global batch, or --batch-size where its environment has
none. `setup:` of a cluster sets the variable by node, as in docs/how-to/frameworks.md, and
`clusterkit estimate --gpu 8xa100-40+8xh100` says which numbers. However a global batch is divided,
the gradients are those of the whole.
"""

import argparse
import os
import sys

import charlm
import session
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from train_ddp import load


def main() -> None:
    """Join the other ranks, train, leave together."""
    args = session.parser(__doc__).parse_args()
    device = session.join()
    train(args, device)
    session.leave()


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Train until `--steps`, from the checkpoint on if there is one."""
    rank, world = dist.get_rank(), dist.get_world_size()
    text = os.environ.get("MICRO_BATCH", str(args.batch_size))
    if not text.isdecimal() or not (own := int(text)):
        sys.exit(f"rank {rank}: MICRO_BATCH={text!r} is not a number of samples from 1 on")
    sizes = torch.zeros(world, dtype=torch.int64, device=device)
    sizes[rank] = own
    dist.all_reduce(sizes)
    total, first = int(sizes.sum()), int(sizes[:rank].sum())
    args.batch_size = total // world  # what a rank takes on average, for samples/s
    progress = session.Progress("uneven DDP", args, rank, world, device)
    progress.print(f"micro batches: {' '.join(map(str, sizes.tolist()))}")
    # All ranks draw the same global batch, and each takes its part.
    data = charlm.Text(argparse.Namespace(batch_size=total, seed=args.seed), 0, 1)
    model = charlm.CharLM(args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    if saved := load(args.checkpoint_dir):
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        progress.resume(saved["progress"])
    ddp = DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
    while progress.step < args.steps:
        batch = data.batch(progress.step)[first : first + own].to(device)
        # DDP averages over ranks: the mean of a rank counts by its part of the samples.
        loss = ddp(batch) * (own * world / total)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress.advance(loss)
        if progress.save_due() and rank == 0:
            session.save(args.checkpoint_dir / "ddp.pt", model, optimizer, progress)
    progress.done()


if __name__ == "__main__":
    main()
