"""Train with DDP that speaks less: once a batch of several parts, or once in several steps.

    clusterkit submit --framework torchrun --nodes 2 examples/train_local_sgd.py --average-every 4

`--accumulate 4` computes a batch in 4 parts, and averages gradients after the last (`no_sync`): the
losses are those of train_ddp.py. With `--average-every 4` ranks train by themselves after
`--warm-up` steps, and average their weights after every 4th (local SGD, arXiv:1805.09767): a
quarter of the traffic, for networks that are slow beside the GPUs, and another optimization. A
checkpoint holds averaged weights, and the moments of rank 0.
`--compress fp16` sends gradients in half the bytes; `--compress powersgd`, after the warm-up, two
thin matrices in place of each (arXiv:1905.13727). What that leaves out, each rank adds to its next
gradient; a checkpoint does not hold it.
"""

import argparse
from contextlib import nullcontext

import charlm
import session
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.model_averaging.utils import average_parameters
from torch.nn.parallel import DistributedDataParallel
from train_ddp import load


def main() -> None:
    """Join the other ranks, train, leave together."""
    parser = session.parser(__doc__)
    parser.add_argument("--accumulate", type=int, default=1, help="parts of a batch")
    parser.add_argument("--average-every", type=int, default=1, metavar="STEPS")
    parser.add_argument("--compress", choices=("none", "fp16", "powersgd"), default="none")
    parser.add_argument("--rank", type=int, default=4, help="columns of powersgd's matrices")
    parser.add_argument("--warm-up", type=int, default=5, help="first steps, averaged each")
    args = parser.parse_args()
    if args.accumulate < 1 or args.batch_size % args.accumulate:
        parser.error(f"--accumulate {args.accumulate} does not divide a batch of {args.batch_size}")
    if args.average_every < 1:
        parser.error(f"--average-every {args.average_every} is less than 1")
    device = session.join()
    train(args, device)
    session.leave()


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Train until `--steps`, from the checkpoint on if there is one."""
    rank, world = dist.get_rank(), dist.get_world_size()
    progress = session.Progress("local SGD", args, rank, world, device)
    text = charlm.Text(args, rank, world)
    model = charlm.CharLM(args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    if saved := load(args.checkpoint_dir):
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        progress.resume(saved["progress"])
    ddp = DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
    compress(ddp, args)
    while progress.step < args.steps:
        alone = args.average_every > 1 and progress.step >= args.warm_up
        optimizer.zero_grad()
        loss = torch.zeros((), device=device)
        parts = text.batch(progress.step).to(device).chunk(args.accumulate)
        for number, part in enumerate(parts, start=1):
            with ddp.no_sync() if alone or number < len(parts) else nullcontext():
                share = ddp(part) / len(parts)
                share.backward()
            loss += share.detach()
        optimizer.step()
        progress.advance(loss)
        due = progress.save_due()
        if alone and (due or progress.step % args.average_every == 0):
            average_parameters(model.parameters(), dist.group.WORLD)
        if due and rank == 0:
            session.save(args.checkpoint_dir / "ddp.pt", model, optimizer, progress)
    progress.done()


def compress(ddp: DistributedDataParallel, args: argparse.Namespace) -> None:
    """Have DDP send less of each gradient: a hook takes the place of its all-reduce."""
    if args.compress == "fp16":
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    if args.compress == "powersgd":
        start = max(2, args.warm_up)  # after its first step DDP lays out its buckets anew
        state = powerSGD_hook.PowerSGDState(
            process_group=None, matrix_approximation_rank=args.rank, start_powerSGD_iter=start
        )
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


if __name__ == "__main__":
    main()
