"""Train with ZeRO-1 and ZeRO-3, and check that the loss falls and that all ranks agree.

Adam is DeepSpeed's own, on the CPU: the ops of this image load, for no compiler is there.
"""

import os
import sys
import warnings

import deepspeed
import torch
from deepspeed import comm
from torch import nn

STEPS = 30


def main() -> None:
    """Join the other ranks, train with each stage, leave together."""
    # DeepSpeed calls collectives by names that torch 2.13 deprecates, and says so at every step.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    deepspeed.init_distributed()
    for stage in (1, 3):
        check(stage, train(stage))
    comm.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads outlive the group, and may abort a Python that shuts down


def train(stage: int) -> tuple[float, float, float]:
    """Return the first loss and the last, averaged over the ranks, and the sum of the weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=configuration(stage)
    )
    torch.manual_seed(1 + comm.get_rank())  # every rank has data of its own
    losses = []
    for _ in range(STEPS):
        inputs = torch.randn(64, 16, device=engine.device)
        loss = nn.functional.mse_loss(engine(inputs), inputs.sum(dim=1, keepdim=True))
        engine.backward(loss)
        engine.step()
        total = loss.detach().clone()
        comm.all_reduce(total)
        losses.append(total.item() / comm.get_world_size())
    with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
        weights = sum(weight.sum().item() for weight in model.parameters())
    return losses[0], losses[-1], weights


def configuration(stage: int) -> dict[str, object]:
    """Return DeepSpeed's configuration: the optimizer's states in RAM, its steps by the CPU."""
    zero = {"stage": stage, "offload_optimizer": {"device": "cpu"}}
    return {
        "train_micro_batch_size_per_gpu": 64,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        "zero_optimization": zero,
        "steps_per_print": 10**9,
    }


def check(stage: int, found: tuple[float, float, float]) -> None:
    """End the process with words where the training did not work; print a line on rank 0."""
    seen = [found] * comm.get_world_size()
    torch.distributed.all_gather_object(seen, found)
    first, last, _ = found
    if not last < 0.8 * first:
        sys.exit(f"health: ZeRO-{stage}: the loss does not fall: {first:.3f} -> {last:.3f}")
    if len(set(seen)) != 1:
        sys.exit(f"health: ZeRO-{stage}: the ranks do not agree: {seen}")
    if comm.get_rank() == 0:
        ranks = f"{comm.get_world_size()} ranks, {torch.distributed.get_backend()}"
        print(
            f"health: deepspeed {deepspeed.__version__}, ZeRO-{stage}, {ranks}: "
            f"loss {first:.3f} -> {last:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
