"""Train with PyTorch DDP: every rank holds the whole model, and they average the gradients.

    clusterkit submit --framework torchrun --nodes 2 examples/train_ddp.py --steps 200

By hand, on one machine: `torchrun --standalone --nproc-per-node 2 examples/train_ddp.py`.
`--profile FOLDER` writes a trace of three steps for each rank: where the time goes, in Perfetto.
"""

import argparse
from pathlib import Path
from typing import Any

import charlm
import measure
import session
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Join the other ranks, train, leave together."""
    parser = session.parser(__doc__)
    measure.add_argument(parser)
    parser.add_argument("--profile", type=Path, metavar="FOLDER", help="write a trace per rank")
    args = parser.parse_args()
    device = session.join()
    train(args, device)
    session.leave()


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Train until `--steps`, from the checkpoint on if there is one."""
    rank, world = dist.get_rank(), dist.get_world_size()
    progress = session.Progress("ddp", args, rank, world, device)
    text = charlm.Text(args, rank, world)
    model = charlm.CharLM(args).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    if saved := load(args.checkpoint_dir):
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        progress.resume(saved["progress"])
    ddp = DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
    meter = measure.Meter(args, "ddp", model, device)
    profiler = measure.profiler(args.profile)
    while progress.step < args.steps:
        loss = ddp(text.batch(progress.step).to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress.advance(loss)
        meter.advance()
        if profiler:
            profiler.step()
        if progress.save_due() and rank == 0:
            session.save(args.checkpoint_dir / "ddp.pt", model, optimizer, progress)
    if profiler:
        profiler.stop()
    progress.done()
    meter.write()


def load(folder: Path | None) -> dict[str, Any] | None:
    """Read the checkpoint on rank 0 and hand it round: the hosts need not share a file system."""
    saved: list[dict[str, Any] | None] = [None]
    if folder and dist.get_rank() == 0:
        saved = [session.load(folder / "ddp.pt")]
    dist.broadcast_object_list(saved)
    return saved[0]


if __name__ == "__main__":
    main()
