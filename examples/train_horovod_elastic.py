"""Train with Horovod on nodes that come and go: what is left trains on from the last commit.

    clusterkit submit --framework horovod --nodes 2:3 examples/train_horovod_elastic.py --steps 200

The state (model, optimizer, progress) is in the memory of every rank. `state.commit` keeps a copy
of it; when a rank is lost, the others go back to theirs, find each other again, and go on.
"""

import argparse

import charlm
import horovod.torch as hvd  # type: ignore[import-untyped]
import session
import torch
from torch import Tensor

COMMIT_EVERY = 5  # steps; what is done since the last commit is done again after a loss


def main() -> None:
    """Join the other ranks, train, leave together."""
    args = session.parser(__doc__).parse_args()
    hvd.init()
    device = session.device(hvd.local_rank())
    if device.type == "cuda":
        torch.cuda.set_device(device)
    model = charlm.CharLM(args).to(device)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=args.lr), named_parameters=model.named_parameters()
    )
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, progress=None)
    saved = session.load(args.checkpoint_dir / "horovod.pt") if args.checkpoint_dir else None
    if saved is not None:  # rank 0 hands its state round, whoever else has found one
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        state.progress = saved["progress"]
        state.save()
    hvd.elastic.run(train)(state, args, device)
    hvd.shutdown()


def train(state: "hvd.elastic.TorchState", args: argparse.Namespace, device: torch.device) -> None:
    """Train until `--steps`; begun anew, from the last commit, whenever the ranks change."""
    rank, world = hvd.rank(), hvd.size()
    progress = session.Progress("horovod elastic", args, rank, world, device, mean)
    if state.progress is not None:
        progress.resume(state.progress, "the last commit")
    text = charlm.Text(args, rank, world)
    while progress.step < args.steps:
        loss = state.model(text.batch(progress.step).to(device))
        state.optimizer.zero_grad()
        loss.backward()
        state.optimizer.step()
        progress.advance(loss)
        if progress.save_due() and rank == 0:
            path = args.checkpoint_dir / "horovod.pt"
            session.save(path, state.model, state.optimizer, progress)
        if progress.step % COMMIT_EVERY == 0:
            state.progress = progress.state()
            state.commit()  # also looks whether nodes have come or gone
    progress.done()


def mean(loss: Tensor) -> float:
    """Average over the ranks."""
    average: Tensor = hvd.allreduce(loss, name="loss")
    return average.item()


if __name__ == "__main__":
    main()
