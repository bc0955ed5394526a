"""Train with DeepSpeed's pipeline module: stages of layers, and ZeRO-1 over the data.

    clusterkit submit --framework deepspeed --nodes 2 examples/train_deepspeed_pipeline.py --pp 2

DeepSpeed cuts the list of layers into `--pp` stages, and each rank keeps those of its own alone.
With more ranks than stages, the data is divided. Every rank writes its part of a checkpoint, so all
hosts must share its folder, and only as many processes can resume from it.
"""

import argparse
import warnings
from collections.abc import Iterator

import charlm
import deepspeed  # type: ignore[import-untyped]
import session
from deepspeed import comm
from deepspeed.pipe import PipelineModule  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.nn import functional


def main() -> None:
    """Join the other ranks, train, leave together."""
    parser = session.parser(__doc__)
    parser.add_argument("--local_rank", help="set by the deepspeed launcher")
    parser.add_argument("--pp", type=int, default=2, help="stages, one after the other")
    parser.add_argument("--micro-batches", type=int, default=4, help="parts of a batch")
    args = parser.parse_args()
    # On CPU, DeepSpeed would now compile an op that only inference uses: half a minute, with g++.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    # It also calls collectives by names that torch 2.13 deprecates, with a warning at every step.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    deepspeed.init_distributed()
    if comm.get_world_size() % args.pp:
        parser.error(f"--pp {args.pp} does not divide {comm.get_world_size()} processes")
    if args.batch_size % args.micro_batches:
        parser.error(f"--micro-batches {args.micro_batches} does not divide --batch-size")
    train(args)
    session.leave()


class Embed(nn.Module):
    """The first layer: character numbers to what the blocks work on."""

    def __init__(self, model: charlm.CharLM) -> None:
        super().__init__()
        self.characters, self.positions = model.characters, model.positions

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (batch, time) to (batch, time, width)."""
        x: Tensor = self.characters(tokens) + self.positions.weight
        return x


def cross_entropy(logits: Tensor, wanted: Tensor) -> Tensor:
    """Return the mean loss of a micro-batch, in nats a character."""
    return functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())


def train(args: argparse.Namespace) -> None:
    """Train until `--steps`, from the newest checkpoint on if there is one."""
    rank, world = comm.get_rank(), comm.get_world_size()
    whole = charlm.CharLM(args)
    layers = [Embed(whole), *whole.blocks, whole.norm, whole.head]
    model = PipelineModule(layers, num_stages=args.pp, loss_fn=cross_entropy)
    engine, *_ = deepspeed.initialize(
        model=model,
        config={
            "train_micro_batch_size_per_gpu": args.batch_size // args.micro_batches,
            "gradient_accumulation_steps": args.micro_batches,
            "optimizer": {"type": "AdamW", "params": {"lr": args.lr, "torch_adam": True}},
            "zero_optimization": {"stage": 1},
            "steps_per_print": 10**9,  # this script prints for itself
        },
    )
    progress = session.Progress("deepspeed pipeline", args, rank, world, engine.device)
    progress.world = copies = world // args.pp
    text = charlm.Text(args, engine.mpu.get_data_parallel_rank(), copies)
    if args.checkpoint_dir and (args.checkpoint_dir / "latest").exists():
        _, state = engine.load_checkpoint(str(args.checkpoint_dir))
        progress.resume(state["progress"])
    while progress.step < args.steps:
        parts = text.batch(progress.step).chunk(args.micro_batches)
        # each rank of each stage is told the mean over the data
        progress.advance(engine.train_batch(pairs(parts)))
        if progress.save_due():
            engine.save_checkpoint(
                str(args.checkpoint_dir), client_state={"progress": progress.state()}
            )
    progress.done()


def pairs(parts: tuple[Tensor, ...]) -> Iterator[tuple[Tensor, Tensor]]:
    """Hand out what goes in and what shall come out, for each micro-batch."""
    return ((part[:, :-1].contiguous(), part[:, 1:].contiguous()) for part in parts)


if __name__ == "__main__":
    main()
