"""Train with Ray Train: its TorchTrainer starts a worker for each slot of the Ray cluster.

    clusterkit submit --framework ray --nodes 2 examples/train_ray.py --steps 200

By hand, on one machine: `python examples/train_ray.py`, which starts a Ray of its own.
With `--nodes 2:3` and `--min-workers` it trains on when a node is lost.
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import charlm
import ray
import session
import torch
import torch.distributed as dist
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, get_device, prepare_model

FILE = "ray.pt"


def main() -> None:
    """Be the driver: ask the cluster for workers, and say how it went."""
    parser = session.parser(__doc__)
    parser.add_argument("--min-workers", type=int, help="go on with so many, when some are lost")
    args = parser.parse_args()
    ray.init()
    resources = ray.cluster_resources()
    kind = "GPU" if "GPU" in resources else "CPU"
    most = int(resources[kind])
    if args.min_workers is not None:  # some of the nodes may still be on their way
        most = sum(int(slots) for slots in os.environ["CK_SLOTS"].split())
    folder = args.checkpoint_dir or Path(tempfile.mkdtemp(prefix="train-ray-"))
    trainer = TorchTrainer(
        train,
        train_loop_config=vars(args),
        scaling_config=ScalingConfig(
            num_workers=most if args.min_workers is None else (args.min_workers, most),
            use_gpu=kind == "GPU",
        ),
        run_config=RunConfig(
            name="ray",
            storage_path=str(folder.absolute()),
            failure_config=FailureConfig(max_failures=0 if args.min_workers is None else 3),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    )
    told = trainer.fit().return_value
    losses = f"{told['first_loss']:.2f} -> {told['last_loss']:.2f}"
    print(f"done: loss {losses} in {told['step']} steps", flush=True)


def train(config: dict[str, Any]) -> dict[str, float]:
    """Be a worker: train until `--steps`, from the last checkpoint on; return how far it came."""
    args = argparse.Namespace(**config)
    rank, world, device = dist.get_rank(), dist.get_world_size(), get_device()
    # Ray's workers train in a thread, which can catch no signal: nothing is saved on notice.
    unsaved = argparse.Namespace(**{**config, "checkpoint_dir": None})
    progress = session.Progress("ray", unsaved, rank, world, device)
    text = charlm.Text(args, rank, world)
    model = prepare_model(charlm.CharLM(args))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    if (checkpoint := ray.train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as saved_in:
            saved = session.load(Path(saved_in) / FILE)
        inner(model).load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        progress.resume(saved["progress"], args.checkpoint_dir)
    while progress.step < args.steps:
        loss = model(text.batch(progress.step).to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress.advance(loss)
        last = progress.step == args.steps
        if args.checkpoint_dir and (last or progress.step % args.checkpoint_every == 0):
            report(inner(model), optimizer, progress)
    return progress.state()


def inner(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model itself; a single worker has it unwrapped."""
    return getattr(model, "module", model)


def report(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, progress: session.Progress
) -> None:
    """Tell Ray how far it is, on every rank, and on rank 0 hand it a checkpoint to keep."""
    if progress.rank != 0:
        ray.train.report(progress.state())
        return
    with tempfile.TemporaryDirectory() as folder:
        session.save(Path(folder) / FILE, model, optimizer, progress)
        ray.train.report(progress.state(), checkpoint=Checkpoint.from_directory(folder))


if __name__ == "__main__":
    main()
