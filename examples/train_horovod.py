"""Train with Horovod: every rank holds the whole model, and a ring averages the gradients.

    clusterkit submit --framework horovod --nodes 2 examples/train_horovod.py --steps 200

By hand, on one machine: `horovodrun --gloo -np 2 python examples/train_horovod.py`.
"""

import argparse
from pathlib import Path
from typing import Any

import charlm
import horovod.torch as hvd  # type: ignore[import-untyped]
import session
import torch
from torch import Tensor


def main() -> None:
    """Join the other ranks, train, leave together."""
    args = session.parser(__doc__).parse_args()
    hvd.init()
    device = session.device(hvd.local_rank())
    if device.type == "cuda":
        torch.cuda.set_device(device)
    train(args, device)
    hvd.shutdown()


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Train until `--steps`, from the checkpoint on if there is one."""
    rank, world = hvd.rank(), hvd.size()
    progress = session.Progress("horovod", args, rank, world, device, mean)
    text = charlm.Text(args, rank, world)
    model = charlm.CharLM(args).to(device)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=args.lr), named_parameters=model.named_parameters()
    )
    if saved := load(args.checkpoint_dir):
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])  # after wrapping, which drops all state
        progress.resume(saved["progress"])
    while progress.step < args.steps:
        loss = model(text.batch(progress.step).to(device))
        optimizer.zero_grad()
        loss.backward()  # hands over each gradient as soon as it is there
        optimizer.step()  # waits until all are averaged
        progress.advance(loss)
        if progress.save_due() and rank == 0:
            session.save(args.checkpoint_dir / "horovod.pt", model, optimizer, progress)
    progress.done()


def mean(loss: Tensor) -> float:
    """Average over the ranks."""
    average: Tensor = hvd.allreduce(loss, name="loss")
    return average.item()


def load(folder: Path | None) -> dict[str, Any] | None:
    """Read the checkpoint on rank 0 and hand it round: the hosts need not share a file system."""
    saved = session.load(folder / "horovod.pt") if folder and hvd.rank() == 0 else None
    # Without a name the object's type is taken, which differs between the ranks: they would hang.
    handed: dict[str, Any] | None = hvd.broadcast_object(saved, root_rank=0, name="checkpoint")
    return handed


if __name__ == "__main__":
    main()
