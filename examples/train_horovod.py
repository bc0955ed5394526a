"""Train with Horovod: every rank holds the whole model, and a ring averages the gradients.

    clusterkit submit --framework horovod --nodes 2 examples/train_horovod.py --steps 200

By hand, on one machine: `horovodrun --gloo -np 2 python examples/train_horovod.py`.
`--compression fp16` sends gradients in half the bytes. `--adasum` adds them by their angle, so that
more ranks need no other learning rate (arXiv:2006.02924): 2, 4, 8, ... ranks that MPI starts.
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
    parser = session.parser(__doc__)
    parser.add_argument("--compression", choices=("none", "fp16"), default="none")
    parser.add_argument("--adasum", action="store_true", help="in place of the mean")
    args = parser.parse_args()
    hvd.init()
    if args.adasum and not hvd.mpi_enabled():  # on gloo nothing adds so, with NCCL neither
        parser.error("--adasum needs ranks that MPI starts: horovod_controller: mpi, or -f mpi")
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
        torch.optim.AdamW(model.parameters(), lr=args.lr),
        named_parameters=model.named_parameters(),
        compression=getattr(hvd.Compression, args.compression),
        op=hvd.Adasum if args.adasum else hvd.Average,
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
