"""Blocks of transformers in torch, and what autograd saves for them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

HIDDEN, HEADS = 256, 8


class RMSNorm(nn.Module):
    """As transformers and litgpt write it: in fp32, cast back at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(HIDDEN))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return (wide * self.weight.float()).to(x.dtype)


def heads_of(x: Tensor, heads: int) -> Tensor:
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


class LlamaBlock(nn.Module):
    """Grouped-query attention with keys repeated for all heads, rotary positions, SwiGLU."""

    def __init__(self, kv_heads: int, ffn: int) -> None:
        super().__init__()
        width = HIDDEN // HEADS * kv_heads
        self.kv_heads = kv_heads
        self.norms = nn.ModuleList([RMSNorm(), RMSNorm()])
        sizes = [(HIDDEN, HIDDEN), (HIDDEN, width), (HIDDEN, width), (HIDDEN, HIDDEN)]
        sizes += [(HIDDEN, ffn), (HIDDEN, ffn), (ffn, HIDDEN)]
        self.products = nn.ModuleList([nn.Linear(a, b, bias=False) for a, b in sizes])

    def forward(self, x: Tensor) -> Tensor:
        query, key, value, out, gate, up, down = self.products
        y = self.norms[0](x)
        cosine = torch.ones(x.shape[1], HIDDEN // HEADS, dtype=x.dtype)
        q = heads_of(query(y), HEADS) * cosine.to(torch.bfloat16)
        k = heads_of(key(y), self.kv_heads) * cosine.to(torch.bfloat16)
        v = heads_of(value(y), self.kv_heads)
        if self.kv_heads != HEADS:
            k, v = (t.repeat_interleave(HEADS // self.kv_heads, 1) for t in (k, v))
        z = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + out(z.transpose(1, 2).reshape(x.shape))
        y = self.norms[1](x)
        return x + down(functional.silu(gate(y)) * up(y))


class GptBlock(nn.Module):
    """GPT-2 without dropout: one product for query, key and value."""

    def __init__(self, ffn: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)])
        sizes = [(HIDDEN, 3 * HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, ffn), (ffn, HIDDEN)]
        self.products = nn.ModuleList([nn.Linear(a, b) for a, b in sizes])

    def forward(self, x: Tensor) -> Tensor:
        joined, out, wide, narrow = self.products
        parts = joined(self.norms[0](x)).split(HIDDEN, -1)
        q, k, v = (heads_of(part, HEADS) for part in parts)
        z = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + out(z.transpose(1, 2).reshape(x.shape))
        return x + narrow(functional.gelu(wide(self.norms[1](x))))


def saved_bytes(block: Any, tokens: int, *, autocast: bool) -> int:
    """Return the bytes of all storages that the forward pass keeps, parameters left out."""
    kept: dict[int, Tensor] = {}
    own = {parameter.untyped_storage().data_ptr() for parameter in block.parameters()}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    dtype = torch.float32 if autocast else torch.bfloat16
    x = torch.randn(1, tokens, HIDDEN, dtype=dtype, requires_grad=True)
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast),
    ):
        block(x)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


MAKE: Mapping[str, Callable[[], nn.Module]] = {
    "llama": lambda: LlamaBlock(kv_heads=2, ffn=896),
    "llama without groups": lambda: LlamaBlock(kv_heads=8, ffn=704),
    "gpt": lambda: GptBlock(ffn=1024),
}


class Peak(TorchDispatchMode):
    """The most bytes of tensors made under it that are there at once."""

    def __init__(self) -> None:
        super().__init__()
        self.there: dict[int, int] = {}
        self.bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Tensor:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.there:
                    self.there[storage._cdata] = storage.nbytes()
                    weakref.finalize(storage, self.there.pop, storage._cdata, None)
        self.bytes = max(self.bytes, sum(self.there.values()))
        return made


def loss_peak_bytes(tokens: int, vocab: int, dtype: torch.dtype, *, fp32: bool) -> int:
    """Return the most bytes that the logits and their loss need at once, forward and backward."""
    hidden = torch.randn(tokens, 8, dtype=dtype, requires_grad=True)
    head = torch.randn(vocab, 8, dtype=dtype, requires_grad=True)
    with Peak() as peak:
        logits = hidden @ head.T
        loss = functional.cross_entropy(
            logits.float() if fp32 else logits, torch.zeros(tokens, dtype=torch.long)
        )
        loss.backward()
    return peak.bytes
