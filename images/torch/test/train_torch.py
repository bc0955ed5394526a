"""Train with DDP, then with FSDP, and check that the loss falls and that all ranks agree."""

import os
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

STEPS = 30


def main() -> None:
    """Join the other ranks, train twice, leave together."""
    gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda" if gpus else "cpu", int(os.environ["LOCAL_RANK"]) if gpus else 0)
    if gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpus else "gloo")
    for strategy in ("DDP", "FSDP"):
        check(strategy, train(strategy, device), device)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads outlive the group, and may abort a Python that shuts down


def train(strategy: str, device: torch.device) -> tuple[float, float, float]:
    """Return the first loss and the last, averaged over the ranks, and the sum of the weights."""
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    if strategy == "FSDP":
        mesh = dist.init_device_mesh(device.type, (dist.get_world_size(),))
        fully_shard(model, mesh=mesh)
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(1 + dist.get_rank())  # every rank has data of its own
    losses = []
    for _ in range(STEPS):
        inputs = torch.randn(64, 16, device=device)
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(average(loss.detach()))
    return losses[0], losses[-1], sum(whole(weight).sum().item() for weight in model.parameters())


def whole(weight: Tensor) -> Tensor:
    """Return the weight as it is on this rank; FSDP gathers it from all."""
    return weight.full_tensor() if isinstance(weight, DTensor) else weight


def average(value: Tensor) -> float:
    """Average over the ranks (gloo can sum only)."""
    total = value.clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def check(strategy: str, found: tuple[float, float, float], device: torch.device) -> None:
    """End the process with words where the training did not work; print a line on rank 0."""
    seen = [found] * dist.get_world_size()
    dist.all_gather_object(seen, found)
    first, last, _ = found
    if not last < 0.8 * first:
        sys.exit(f"health: {strategy}: the loss does not fall: {first:.3f} -> {last:.3f}")
    if len(set(seen)) != 1:
        sys.exit(f"health: {strategy}: the ranks do not agree: {seen}")
    if dist.get_rank() == 0:
        ranks = f"{dist.get_world_size()} ranks, {dist.get_backend()}, {device.type}"
        print(
            f"health: torch {torch.__version__}, {strategy}, {ranks}: "
            f"loss {first:.3f} -> {last:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
