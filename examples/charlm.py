"""Learn to spell: the text and the small language model that every training script here uses.

The text is written by a little grammar, so there is nothing to download. The model is a GPT in
miniature; its loss starts at ln(29) = 3.4 nats a character and can fall to about 0.3.
"""

import argparse
import random

import torch
from torch import Tensor, nn
from torch.nn import functional

CONTEXT = 64  # characters that the model sees at once
HEAD_WIDTH = 16
ALPHABET = "\n abcdefghijklmnopqrstuvwxyz."
ADJECTIVES = ("big", "small", "red", "old", "quiet", "strange", "gentle", "clever")
NOUNS = ("cat", "dog", "house", "river", "garden", "teacher", "window", "mountain")
VERBS = ("sees", "likes", "follows", "remembers", "finds", "draws")


def shape(args: argparse.Namespace) -> dict[str, object]:
    """Return the model's shape in the words of a config.json (GPT-2's, with a head of its own)."""
    return {
        "model_type": "gpt2",
        "n_layer": args.layers,
        "n_embd": args.width,
        "n_head": args.width // HEAD_WIDTH,
        "n_positions": CONTEXT,
        "vocab_size": len(ALPHABET),
        "tie_word_embeddings": False,
    }


class Text:
    """Hand out batches of one rank's shard of the text.

    A batch follows from (seed, world, rank, step) alone: a resumed run reads on exactly where the
    first one stopped.
    """

    def __init__(self, args: argparse.Namespace, rank: int, world: int) -> None:
        self.batch_size, self.key = args.batch_size, (args.seed, world, rank)
        chosen = random.Random(args.seed)

        def phrase() -> str:
            return f"the {chosen.choice(ADJECTIVES)} {chosen.choice(NOUNS)}"

        text = "".join(f"{phrase()} {chosen.choice(VERBS)} {phrase()}.\n" for _ in range(4000))
        tokens = torch.tensor([ALPHABET.index(character) for character in text])
        self.shard = tokens.tensor_split(world)[rank]

    def batch(self, step: int) -> Tensor:
        """Return character numbers, shape (batch_size, CONTEXT + 1)."""
        generator = torch.Generator().manual_seed(hash((*self.key, step)))
        last = len(self.shard) - CONTEXT
        starts = torch.randint(last, (self.batch_size, 1), generator=generator)
        return self.shard[starts + torch.arange(CONTEXT + 1)]


class Block(nn.Module):
    """Attend, then think: one layer of the model."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.think = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, time, width) to the same shape."""
        heads = self.qkv(self.norm_1(x)).unflatten(-1, (3, -1, HEAD_WIDTH))
        q, k, v = heads.permute(2, 0, 3, 1, 4)  # each (batch, head, time, HEAD_WIDTH)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).flatten(2))
        thought: Tensor = self.think(self.norm_2(x))
        return x + thought


class CharLM(nn.Module):
    """Predict each next character."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        torch.manual_seed(args.seed)  # every rank starts from the same weights
        self.characters = nn.Embedding(len(ALPHABET), args.width)
        self.positions = nn.Embedding(CONTEXT, args.width)
        self.blocks = nn.ModuleList(Block(args.width) for _ in range(args.layers))
        self.norm = nn.LayerNorm(args.width)
        self.head = nn.Linear(args.width, len(ALPHABET))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats; tokens as from `Text.batch`."""
        x = self.characters(tokens[:, :-1]) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
