"""Train a small GPT-2 with accelerate, and check that the loss falls and that all ranks agree."""

import os
import sys

import accelerate
import torch
import transformers
from accelerate import Accelerator
from accelerate.utils import gather_object

STEPS = 30


def main() -> None:
    """Join the other ranks, train, leave together."""
    gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    accelerator = Accelerator(cpu=not gpus)
    torch.manual_seed(0)
    shape = transformers.GPT2Config(vocab_size=32, n_positions=16, n_embd=32, n_layer=2, n_head=2)
    model = transformers.GPT2LMHeadModel(shape)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    torch.manual_seed(1 + accelerator.process_index)  # every rank has data of its own
    losses = []
    for _ in range(STEPS):
        # Each text counts up from its first word.
        texts = (torch.randint(32, (16, 1)) + torch.arange(16)) % 32
        texts = texts.to(accelerator.device)
        loss = model(input_ids=texts, labels=texts).loss
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
    weights = sum(weight.sum().item() for weight in model.parameters())
    check(accelerator, losses[0], losses[-1], weights)
    accelerator.wait_for_everyone()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads outlive the group, and may abort a Python that shuts down


def check(accelerator: Accelerator, first: float, last: float, weights: float) -> None:
    """End the process with words where the training did not work; print a line on rank 0."""
    seen = gather_object([(first, last, weights)])
    if len(seen) < 2:
        sys.exit("health: accelerate has one rank only")
    if not last < 0.8 * first:
        sys.exit(f"health: accelerate: the loss does not fall: {first:.3f} -> {last:.3f}")
    if len(set(seen)) != 1:
        sys.exit(f"health: accelerate: the ranks do not agree: {seen}")
    if accelerator.is_main_process:
        ranks = f"{len(seen)} ranks, {torch.distributed.get_backend()}, {accelerator.device.type}"
        print(
            f"health: accelerate {accelerate.__version__}, {ranks}: loss {first:.3f} -> {last:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
