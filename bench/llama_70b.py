"""A Llama of 70 billion parameters, as people write one: for the estimator to trace."""

import torch
from torch import Tensor, nn
from torch.nn import functional

LAYERS, WIDTH, HEADS, KV_HEADS, MLP, WORDS = 80, 8192, 64, 8, 28672, 128256


class Block(nn.Module):
    """Attention with grouped keys and values, and a gated MLP."""

    def __init__(self) -> None:
        super().__init__()
        head = WIDTH // HEADS
        self.norm_1, self.norm_2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(WIDTH, KV_HEADS * head, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(WIDTH, MLP, bias=False) for _ in range(2))
        self.down = nn.Linear(MLP, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, time, width) to the same shape."""
        y = self.norm_1(x)
        q = self.q(y).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        k, v = (
            project(y).unflatten(-1, (KV_HEADS, -1)).transpose(1, 2) for project in (self.k, self.v)
        )
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(seen.transpose(1, 2).flatten(2))
        y = self.norm_2(x)
        mixed: Tensor = self.down(functional.silu(self.gate(y)) * self.up(y))
        return x + mixed


class Llama(nn.Module):
    """Embedding, blocks, head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of each next token."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def model() -> nn.Module:
    """Return the model; on the meta device it costs nothing."""
    assert torch.get_default_device().type == "meta", "70 billion parameters do not fit here"
    return Llama()
