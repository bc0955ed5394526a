"""A Llama as people write one: of 70 billion parameters to be traced, smaller ones to train."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional


class Shape(NamedTuple):
    """How large a Llama is."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    mlp: int
    words: int


SHAPES = {
    "tiny": Shape(layers=2, width=64, heads=4, kv_heads=2, mlp=128, words=256),
    "0.1B": Shape(layers=12, width=768, heads=12, kv_heads=12, mlp=2048, words=32000),
    "0.4B": Shape(layers=24, width=1024, heads=16, kv_heads=8, mlp=3584, words=32000),
    "1B": Shape(layers=16, width=2048, heads=32, kv_heads=8, mlp=8192, words=32000),
    "3B": Shape(layers=28, width=3072, heads=24, kv_heads=8, mlp=8192, words=128256),
    "8B": Shape(layers=32, width=4096, heads=32, kv_heads=8, mlp=14336, words=128256),
    "70B": Shape(layers=80, width=8192, heads=64, kv_heads=8, mlp=28672, words=128256),
}


class Block(nn.Module):
    """Attention with grouped keys and values, and a gated MLP."""

    repeats = False
    """Whether keys and values are repeated for all heads, as many programs do."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width, keys = shape.width, shape.width // shape.heads * shape.kv_heads
        self.norm_1, self.norm_2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.o = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(width, keys, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, shape.mlp, bias=False) for _ in range(2))
        self.down = nn.Linear(shape.mlp, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, time, width) to the same shape."""
        y = self.norm_1(x)
        q = self.q(y).unflatten(-1, (self.shape.heads, -1)).transpose(1, 2)
        k, v = (
            project(y).unflatten(-1, (self.shape.kv_heads, -1)).transpose(1, 2)
            for project in (self.k, self.v)
        )
        if self.repeats:
            k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(seen.transpose(1, 2).flatten(2))
        y = self.norm_2(x)
        mixed: Tensor = self.down(functional.silu(self.gate(y)) * self.up(y))
        return x + mixed


class Llama(nn.Module):
    """Embedding, blocks, head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.words, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of each next token."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def model() -> nn.Module:
    """Return the largest; on the meta device it costs nothing."""
    assert torch.get_default_device().type == "meta", "70 billion parameters do not fit here"
    return Llama(SHAPES["70B"])
