"""Train a mixture of experts: each rank holds some of them, and is sent the characters for those.

    clusterkit layout --ep 4 --nodes 2 --gpus-per-node 2  # which rank runs where
    clusterkit submit --framework torchrun --nodes 2 examples/train_moe.py --experts 8 --steps 200

A router sends each character to one of `--experts` (the best for it, as in Switch Transformers,
arXiv:2101.03961). All ranks exchange characters (all-to-all), their experts work on what has come,
and the results go back the same way. What is not an expert is the same on all ranks, as in DDP.
Checkpoints are written as train_fsdp.py does, each expert under its number: as many processes as
divide the experts may resume from them.
"""

import argparse

import charlm
import session
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from train_fsdp import load, save


def main() -> None:
    """Join the other ranks, train, leave together."""
    parser = session.parser(__doc__)
    parser.add_argument("--experts", type=int, default=4, help="of each layer, on all ranks")
    parser.add_argument("--balance", type=float, default=0.01, help="weight of the balance loss")
    args = parser.parse_args()
    device = session.join()
    if args.experts % dist.get_world_size():
        parser.error(f"{dist.get_world_size()} processes cannot share {args.experts} experts")
    train(args, device)
    session.leave()


class Experts(nn.Module):
    """Stand in for the part of a layer that thinks: the same shape in and out."""

    def __init__(self, width: int, experts: int, seed: int) -> None:
        super().__init__()
        rank, world = dist.get_rank(), dist.get_world_size()
        self.router = nn.Linear(width, experts, bias=False)
        self.here = experts // world
        self.balance = torch.zeros(())
        self.experts = nn.ModuleDict()  # by their numbers, which name them in a checkpoint
        for number in range(rank * self.here, (rank + 1) * self.here):
            torch.manual_seed(seed + number)
            self.experts[str(number)] = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Send each character to its expert, and add what comes back, by the router's weight."""
        flat = x.flatten(0, 1)
        chances = self.router(flat).softmax(-1)
        weight, chosen = chances.max(-1)
        counts = torch.bincount(chosen, minlength=chances.shape[1])
        # equal use costs least (equation 4 there); this rank's characters alone
        self.balance = chances.shape[1] * (counts / len(flat) * chances.mean(0)).sum()
        order = chosen.argsort(stable=True)  # by expert, so by rank as well
        received = torch.empty_like(counts)
        dist.all_to_all_single(received, counts)  # how many each rank has for each expert here
        sent = counts.view(-1, self.here).sum(1).tolist()
        incoming = received.view(-1, self.here)
        arriving = incoming.sum(1).tolist()
        world = dist.group.WORLD
        tokens = all_to_all_single_autograd(flat[order], arriving, sent, world)
        numbers = torch.arange(self.here, device=x.device).repeat(len(arriving))
        wanted = numbers.repeat_interleave(incoming.flatten())
        places = [(wanted == number).nonzero().flatten() for number in range(self.here)]
        experts = zip(self.experts.values(), places, strict=True)
        worked = torch.cat([expert(tokens[at]) for expert, at in experts])
        back = worked[torch.cat(places).argsort()]
        returned = all_to_all_single_autograd(back, sent, arriving, world)
        result = torch.empty_like(flat).index_copy(0, order, returned) * weight.unsqueeze(-1)
        return result.view_as(x)


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Train until `--steps`, from the checkpoint on if there is one."""
    rank, world = dist.get_rank(), dist.get_world_size()
    progress = session.Progress(f"moe of {args.experts} experts", args, rank, world, device)
    text = charlm.Text(args, rank, world)
    model = charlm.CharLM(args)
    layers = []
    for number, block in enumerate(model.blocks):
        torch.manual_seed(args.seed + number)  # routers are the same everywhere
        block.think = Experts(args.width, args.experts, args.seed + number * args.experts)
        layers.append(block.think)
    model.to(device)
    experts = {weight for layer in layers for weight in layer.experts.parameters()}
    shared = [weight for weight in model.parameters() if weight not in experts]
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    load(args.checkpoint_dir, model, optimizer, progress)
    while progress.step < args.steps:
        loss = model(text.batch(progress.step).to(device))
        optimizer.zero_grad()
        (loss + args.balance * sum(layer.balance for layer in layers)).backward()
        for weight in shared:
            dist.all_reduce(weight.grad)
        for weight in model.parameters():
            if weight.grad is not None:  # an expert that nobody has chosen has none
                weight.grad /= world  # an expert has already the sum over what all ranks sent
        optimizer.step()
        progress.advance(loss)
        if progress.save_due():
            save(args.checkpoint_dir, model, optimizer, progress)
    progress.done()


if __name__ == "__main__":
    main()
