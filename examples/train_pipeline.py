r"""Train a model cut into stages, with tensor parallelism and FSDP2 inside of each: pp x dp x tp.

    clusterkit layout --pp 2 --tp 2 --nodes 4 --gpus-per-node 2  # which rank runs where
    clusterkit submit --framework torchrun --nodes 2 examples/train_pipeline.py --pp 2
    clusterkit submit --framework torchrun --nodes 4 --gpus-per-node 2 \
        examples/train_pipeline.py --pp 2 --tp 2

Each stage (`--pp`) holds some of the layers, and hands on what they make of `--micro-batches` parts
of a batch, one forward, one backward (1F1B). The ranks of a stage divide its layers (`--tp`, as
train_tp_fsdp.py does), and the data. Losses and checkpoints are those of train_fsdp.py on as many
processes as there are data-parallel ranks: any layout may resume from those of another.
"""

import argparse
import os
from collections.abc import Iterable

import charlm
import session
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional
from train_fsdp import load, save
from train_tp_fsdp import divide


def main() -> None:
    """Join the other ranks, train, leave together."""
    parser = session.parser(__doc__)
    for name, parts in (("pp", "stages, one after the other"), ("tp", "ranks that divide a layer")):
        size = int(os.environ.get(f"{name.upper()}_SIZE", "1"))  # as `layout --export env` has it
        parser.add_argument(f"--{name}", type=int, default=size, help=parts)
    parser.add_argument("--micro-batches", type=int, default=4, help="parts of a batch")
    args = parser.parse_args()
    device = session.join()
    if dist.get_world_size() % (args.pp * args.tp):
        parser.error(f"--pp x --tp does not divide {dist.get_world_size()} processes")
    if (
        args.layers < args.pp
        or args.batch_size % args.micro_batches
        or args.micro_batches < args.pp
    ):
        parser.error("a stage needs a layer and a micro-batch, which divide --batch-size")
    train(args, device)
    session.leave()


class Stage(charlm.CharLM):
    """Some layers of the model; the first stage has the embeddings, the last one the head."""

    def __init__(self, args: argparse.Namespace, number: int, of: int) -> None:
        super().__init__(args)  # the whole, so that weights are those of one process
        first, last = (args.layers * part // of for part in (number, number + 1))
        # by their numbers in the whole model, which name them in a checkpoint
        self.blocks = nn.ModuleDict(list(self.blocks.named_children())[first:last])
        self.is_first, self.is_last = number == 0, number == of - 1
        if not self.is_first:
            del self.characters, self.positions
        if not self.is_last:
            del self.norm, self.head

    def forward(self, x: Tensor) -> Tensor:
        """Map character numbers or what the stage before made of them to logits or the like."""
        if self.is_first:
            x = self.characters(x) + self.positions.weight
        for block in self.blocks.values():
            x = block(x)
        return self.head(self.norm(x).flatten(0, 1)) if self.is_last else x


def cross_entropy(logits: Tensor, wanted: Tensor) -> Tensor:
    """Return the mean loss of a micro-batch, in nats a character."""
    return functional.cross_entropy(logits, wanted.flatten())


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Train until `--steps`, from the newest checkpoint on if there is one."""
    rank, world = dist.get_rank(), dist.get_world_size()
    # tp last: its ranks follow each other, so that they are on one node; stages speak least
    shape = (args.pp, world // (args.pp * args.tp), args.tp)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("pp", "dp", "tp"))
    stages, copies = mesh["pp"], mesh["dp"]
    progress = session.Progress("pipeline", args, rank, world, device)
    progress.world = copies.size()
    text = charlm.Text(args, copies.get_local_rank(), copies.size())
    model = Stage(args, stages.get_local_rank(), args.pp).to(device)
    if args.tp > 1:
        divide(model.blocks.values(), mesh["tp"])
    for block in model.blocks.values():
        fully_shard(block, mesh=copies)
    fully_shard(model, mesh=copies)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, foreach=False)
    load(args.checkpoint_dir, model, optimizer, progress)
    stage = PipelineStage(model, stages.get_local_rank(), args.pp, device, group=stages.get_group())
    schedule = Schedule1F1B(stage, args.micro_batches, loss_fn=cross_entropy)
    while progress.step < args.steps:
        batch = text.batch(progress.step).to(device)
        losses: list[Tensor] = []
        optimizer.zero_grad()
        schedule.step(
            *([batch[:, :-1]] if model.is_first else []),
            target=batch[:, 1:] if model.is_last else None,
            losses=losses,
        )
        optimizer.step()
        progress.advance(loss_of(losses, args.pp, device))
        if progress.save_due():
            save(args.checkpoint_dir, model, optimizer, progress)
    progress.done()


def loss_of(losses: Iterable[Tensor], stages: int, device: torch.device) -> Tensor:
    """Return a number whose mean over all ranks is the loss: only last stages know it."""
    known = [loss.detach() for loss in losses]
    return stages * torch.stack(known).mean() if known else torch.zeros((), device=device)


if __name__ == "__main__":
    main()
