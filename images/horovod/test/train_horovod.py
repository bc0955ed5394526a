"""Train with Horovod, and check that the loss falls and that all ranks agree."""

import sys

import horovod
import horovod.torch as hvd
import torch
from torch import nn

STEPS = 30


def main() -> None:
    """Join the other ranks, train, leave together."""
    hvd.init()
    gpus = torch.cuda.device_count() >= hvd.local_size()
    device = torch.device("cuda" if gpus else "cpu", hvd.local_rank() if gpus else 0)
    torch.manual_seed(hvd.rank())  # ranks begin apart, with data of their own
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
    )
    losses = []
    for _ in range(STEPS):
        inputs = torch.randn(64, 16, device=device)
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(hvd.allreduce(loss.detach(), name="loss").item())
    weights = sum(weight.sum().item() for weight in model.parameters())
    check(losses[0], losses[-1], weights, device)
    hvd.shutdown()


def check(first: float, last: float, weights: float, device: torch.device) -> None:
    """End the process with words where the training did not work; print a line on rank 0."""
    if hvd.size() < 2:
        sys.exit("health: Horovod has one rank only")
    if not last < 0.8 * first:
        sys.exit(f"health: Horovod: the loss does not fall: {first:.3f} -> {last:.3f}")
    seen = hvd.allgather_object(weights, name="weights")
    if len(set(seen)) != 1:
        sys.exit(f"health: Horovod: the ranks do not agree: {seen}")
    if hvd.rank() == 0:
        how = f"{hvd.size()} ranks, {'nccl' if hvd.nccl_built() else 'gloo'}, {device.type}"
        print(f"health: horovod {horovod.__version__}, {how}: loss {first:.3f} -> {last:.3f}")


if __name__ == "__main__":
    main()
