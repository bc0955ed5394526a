"""A Llama as people write one: of 70 billion parameters to be traced, smaller ones to train."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

LLAMA_70B = 80, 8192, 64, 8, 28672, 128256
"""Blocks, width, heads, heads of keys, width of the MLP, words."""


class Block(nn.Module):
    """Attention with grouped keys and values, and a gated MLP."""

    repeats = False
    """Whether keys and values are repeated for all heads, as many programs do."""

    def __init__(self, width: int, heads: int, kv_heads: int, mlp: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, keys = heads, kv_heads, width // heads * kv_heads
        self.norm_1, self.norm_2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.o = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(width, keys, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, mlp, bias=False) for _ in range(2))
        self.down = nn.Linear(mlp, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, time, width) to the same shape."""
        y = self.norm_1(x)
        q = self.q(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (
            project(y).unflatten(-1, (self.kv_heads, -1)).transpose(1, 2)
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

    def __init__(
        self, layers: int, width: int, heads: int, kv_heads: int, mlp: int, words: int
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads, kv_heads, mlp) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, words, bias=False)

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
    return Llama(*LLAMA_70B)
