"""Models as people write them, for the tracer: a Llama, a GPT-2, a Mixtral, and broken ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    def __init__(self, width: int, n_heads: int, n_kv_heads: int) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, width // n_heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, n_kv_heads * self.head_dim, bias=False)
        self.value = nn.Linear(width, n_kv_heads * self.head_dim, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        def turned(states: Tensor) -> Tensor:
            first, second = states.chunk(2, -1)
            return states * cos + torch.cat((-second, first), -1) * sin

        def heads(states: Tensor) -> Tensor:
            return states.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

        query, key = turned(heads(self.query(x))), turned(heads(self.key(x)))
        value = heads(self.value(x))
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    """Routes by what is in the tokens: that has no answer without values."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.num_experts, self.num_experts_per_tok = 8, 2
        self.router = nn.Linear(width, self.num_experts, bias=False)
        self.experts = nn.ModuleList(Mlp(width, inner) for _ in range(self.num_experts))

    def forward(self, x: Tensor) -> Tensor:
        scores, chosen = self.router(x).topk(self.num_experts_per_tok)
        answer = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            mine = (chosen == index).any(-1)
            answer[mine] += expert(x[mine])
        return answer * scores.sum(-1, keepdim=True)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, mlp: nn.Module) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention, self.mlp = Attention(width, heads, kv_heads), mlp

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.mlp(self.mlp_norm(x))


class Llama(nn.Module):
    angles: Tensor

    def __init__(self, blocks: list[Block], vocab: int) -> None:
        super().__init__()
        width, head_dim = blocks[0].attention_norm.weight.numel(), blocks[0].attention.head_dim
        self.embedding = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(blocks)
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        angles = torch.outer(torch.arange(8192), 10000 ** -torch.linspace(0, 1, head_dim))
        self.register_buffer("angles", angles, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        print("what a model prints does not come between")
        angles = self.angles[: tokens.shape[1]]
        cos, sin = angles.cos(), angles.sin()
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))


def llama_3_8b() -> Llama:
    return Llama([Block(4096, 32, 8, Mlp(4096, 14336)) for _ in range(32)], 128256)


def llama_3_70b() -> Llama:
    return Llama([Block(8192, 64, 8, Mlp(8192, 28672)) for _ in range(80)], 128256)


def mixtral_8x7b() -> Llama:
    return Llama([Block(4096, 32, 8, Experts(4096, 14336)) for _ in range(32)], 32000)


@dataclass(frozen=True, slots=True)
class GptConfig:
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    vocab_size: int = 50257
    block_size: int = 1024


class GptBlock(nn.Module):
    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        width = config.n_embd
        self.n_head = config.n_head
        self.norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.all = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        states = self.all(self.norm(x)).chunk(3, -1)
        heads = (part.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for part in states)
        mixed = scaled_dot_product_attention(*heads, dropout_p=0.1, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.mlp_norm(x))))


class Gpt(nn.Module):
    """In the manner of nanoGPT: tied, with a loss of its own where it is given targets."""

    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.n_embd)
        self.positions = nn.Embedding(config.block_size, config.n_embd)
        self.blocks = nn.ModuleDict({str(i): GptBlock(config) for i in range(config.n_layer)})
        self.norm = nn.LayerNorm(config.n_embd)
        self.head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.head.weight, std=1 / math.sqrt(config.n_embd))

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        if targets is None:
            raise ValueError("it is to be trained")
        x = self.tokens(idx) + self.positions(torch.arange(idx.shape[1], device=idx.device))
        for block in self.blocks.values():
            x = block(x)
        scores = self.head(self.norm(x))
        return scores, functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def gpt2() -> Gpt:
    return Gpt(GptConfig())


def small() -> Llama:
    return Llama([Block(256, 4, 2, Mlp(256, 512)) for _ in range(4)], 1000)


class CheckpointedBlock(Block):
    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return checkpoint(super().forward, x, cos, sin, use_reentrant=False)


def checkpointed() -> Llama:
    return Llama([CheckpointedBlock(256, 4, 2, Mlp(256, 512)) for _ in range(4)], 1000)


def half_frozen() -> Llama:
    model = Llama([Block(256, 4, 4, Mlp(256, 512)) for _ in range(2)], 1000)
    for parameter in model.layers[0].parameters():
        parameter.requires_grad = False
    return model


def stack() -> nn.Module:
    """Blocks without an embedding: numbers come in."""
    return nn.Sequential(*(Mlp(256, 512) for _ in range(6)))


def picture_model() -> nn.Module:
    return nn.Conv2d(3, 64, 7)


def needs_a_size(width: int) -> nn.Module:
    return nn.Linear(width, width)


def reads_a_value() -> nn.Module:
    return nn.Linear(int(torch.ones(1).sum().item()), 4)


def no_model() -> list[int]:
    return []


linear = nn.Linear(4, 4)
