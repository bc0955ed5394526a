"""Hold what the training scripts share: a text, a small language model, a progress log.

The text is written by a little grammar, so there is nothing to download; the model is a GPT in miniature that
learns to spell it. Nothing here knows of any framework: the scripts beside this file show what each one asks for.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

CONTEXT = 64  # characters that the model sees at once
ALPHABET = "\n abcdefghijklmnopqrstuvwxyz."
ADJECTIVES = ("big", "small", "red", "old", "quiet", "strange", "gentle", "clever")
NOUNS = ("cat", "dog", "house", "river", "garden", "teacher", "window", "mountain")
VERBS = ("sees", "likes", "follows", "remembers", "finds", "draws")


def parser(description: str) -> argparse.ArgumentParser:
    """Return the arguments that every script takes."""
    args = argparse.ArgumentParser(description=description)
    args.add_argument("--steps", type=int, default=100, help="stop after this step, resumed ones counted")
    args.add_argument("--batch-size", type=int, default=16, help="samples of one process in one step")
    args.add_argument("--lr", type=float, default=3e-3)
    args.add_argument("--seed", type=int, default=0)
    args.add_argument("--width", type=int, default=64, help="of the model; a multiple of 16")
    args.add_argument("--layers", type=int, default=2)
    args.add_argument("--log-every", type=int, default=10, metavar="STEPS")
    args.add_argument("--checkpoint-dir", type=Path, help="save here, and resume from here; no checkpoints without it")
    args.add_argument("--checkpoint-every", type=int, default=50, metavar="STEPS", help="and after the last step")
    return args


def device() -> torch.device:
    """Return this process's device: the GPU of its local rank, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())


class Text:
    """Hand out batches of one rank's shard of the text.

    A batch depends on (seed, rank, step) only: a resumed run reads on exactly where the first one stopped.
    """

    def __init__(self, args: argparse.Namespace, rank: int, world: int) -> None:
        self.batch_size, self.seed, self.rank, self.world = args.batch_size, args.seed, rank, world
        words = random.Random(args.seed)

        def phrase() -> str:
            return f"the {words.choice(ADJECTIVES)} {words.choice(NOUNS)}"

        text = "".join(f"{phrase()} {words.choice(VERBS)} {phrase()}.\n" for _ in range(4000))
        tokens = torch.tensor([ALPHABET.index(character) for character in text])
        self.shard = tokens.tensor_split(world)[rank]

    def batch(self, step: int) -> Tensor:
        """Return character numbers, shape (batch_size, CONTEXT + 1)."""
        generator = torch.Generator().manual_seed(hash((self.seed, self.world, self.rank, step)))
        starts = torch.randint(len(self.shard) - CONTEXT, (self.batch_size, 1), generator=generator)
        return self.shard[starts + torch.arange(CONTEXT + 1)]


class Block(nn.Module):
    """Attend, then think: one layer of the model, (batch, time, width) -> the same shape."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 16
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.think = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm_1(x)).unflatten(-1, (3, self.heads, 16)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).flatten(2))
        return x + self.think(self.norm_2(x))


class CharLM(nn.Module):
    """Predict each next character; the output is the mean cross-entropy in nats."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        torch.manual_seed(args.seed)  # every rank starts from the same weights
        self.characters = nn.Embedding(len(ALPHABET), args.width)
        self.positions = nn.Embedding(CONTEXT, args.width)
        self.blocks = nn.ModuleList(Block(args.width) for _ in range(args.layers))
        self.norm = nn.LayerNorm(args.width)
        self.head = nn.Linear(args.width, len(ALPHABET))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.characters(tokens[:, :-1]) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class Progress:
    """Count the steps, and print them on rank 0: start, resume, step, done. README.md has the lines.

    `mean` averages a loss over the ranks; every rank must call it at the same step.
    """

    def __init__(
        self, framework: str, args: argparse.Namespace, rank: int, world: int, mean: Callable[[Tensor], float]
    ) -> None:
        self.args, self.rank, self.world, self.mean = args, rank, world, mean
        self.step = 0
        self.first_loss = self.last_loss = math.nan
        self.since = (self.step, time.perf_counter())
        self.print(f"start: framework {framework}, world size {world}, device {device()}")

    def print(self, line: str) -> None:
        if self.rank == 0:
            print(line, flush=True)

    def state(self) -> dict[str, float]:
        """Return what a checkpoint holds besides model and optimizer."""
        return {"step": self.step, "first_loss": self.first_loss, "last_loss": self.last_loss}

    def resume(self, state: dict[str, float]) -> None:
        """Go on from a checkpoint's state."""
        self.step, self.first_loss, self.last_loss = int(state["step"]), state["first_loss"], state["last_loss"]
        self.since = (self.step, time.perf_counter())
        self.print(f"resume: step {self.step} from {self.args.checkpoint_dir}")

    def advance(self, loss: Tensor) -> None:
        """Count one step; print it when it is the first, the last, or every so many."""
        self.step += 1
        if self.step > 1 and self.step < self.args.steps and self.step % self.args.log_every:
            return
        self.last_loss = self.mean(loss.detach())
        if self.step == 1:
            self.first_loss = self.last_loss
        step, then = self.since
        self.since = (self.step, time.perf_counter())
        speed = (self.step - step) * self.args.batch_size * self.world / (self.since[1] - then)
        self.print(f"step {self.step} loss {self.last_loss:.4f} samples/s {speed:.1f}")

    def save_due(self) -> bool:
        """Tell whether to save now; the same answer on every rank."""
        ends = self.step >= self.args.steps or self.step % self.args.checkpoint_every == 0
        return ends and self.args.checkpoint_dir is not None

    def done(self) -> None:
        self.print(f"done: loss {self.first_loss:.2f} -> {self.last_loss:.2f} in {self.step} steps")
