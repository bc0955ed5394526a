"""The shape of a transformer, and how many parameters each part of it has.

Counts follow the tensors of the usual implementations (Llama, GPT-2, Mixtral in transformers): a
model that is counted exactly elsewhere says so in `exact_params`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder: `layers` equal blocks between an embedding and a head."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    """Heads of keys and values: fewer than `heads` with grouped-query attention."""
    head_dim: int
    """Width of one head; usually `hidden / heads`."""
    ffn: int
    """Width of the MLP (of one expert, where there are several)."""
    vocab: int
    tied: bool = False
    """Whether the head shares its weights with the embedding."""
    gated: bool = True
    """Whether the MLP has a third matrix (SwiGLU, GeGLU)."""
    biases: bool = False
    """Whether linear layers and norms have a bias (GPT-2)."""
    qkv_bias: bool = False
    """Whether only the projections of attention have one (Qwen 2)."""
    learned_positions: int = 0
    """Rows of a learned position embedding; 0 with rotary or ALiBi positions."""
    experts: int = 0
    """Routed experts of a block; 0 in a dense model."""
    active_experts: int = 0
    """How many of them see a token."""
    shared_ffn: int = 0
    """Width of the MLP that every token passes beside its experts; 0 where there is none."""
    dense_layers: int = 0
    """How many blocks of a model with experts have a dense MLP instead."""
    dense_ffn: int = 0
    """Width of the MLP of those."""
    norms: int = 2
    """Norms over the hidden width of a block: 4 in Gemma 2, 1 where attention and MLP run side by
    side (Phi, Falcon 7B), 0 where norms have no parameters (OLMo 1)."""
    other_block_params: int = 0
    """What a block has beyond these formulas: norms of queries and keys, biases of some layers
    only, the small matrices of latent attention (then below 0). All blocks have it."""
    other_params: int = 0
    """The same outside the blocks: biases of the head, a norm behind the embedding."""
    max_seq: int | None = None
    """Positions that the model was made for; None where unknown."""
    exact_params: int | None = None
    """The number of parameters as counted or published, where that is known."""
    assumed: tuple[str, ...] = ()
    """What was not given and had to be assumed, in words."""
    saved_bytes_per_token: float | None = None
    """What one block keeps for the backward pass, per token, in bytes: traced in bf16, with whole
    blocks on the GPU and nothing computed again. None where it was not traced: by formula, then."""

    @property
    def attention_params(self) -> int:
        """Parameters of the four projections of a block."""
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        bias = query + 2 * key if self.biases or self.qkv_bias else 0
        return self.hidden * (2 * query + 2 * key) + bias + (self.hidden if self.biases else 0)

    @property
    def mlp_params(self) -> int:
        """Parameters of the MLP of a block: of all experts and the router, where it has some."""
        return self._mlp_of(self.experts)

    @property
    def block_params(self) -> int:
        """Parameters of one block (of one with experts, where some are dense)."""
        return self._block(self.mlp_params)

    @property
    def embedding_params(self) -> int:
        """Parameters of the token and position embeddings."""
        return (self.vocab + self.learned_positions) * self.hidden

    @property
    def head_params(self) -> int:
        """Parameters of the head that are not those of the embedding."""
        return 0 if self.tied else self.vocab * self.hidden

    @property
    def params(self) -> int:
        """All parameters: as counted or published, else by the formulas above."""
        return self.exact_params if self.exact_params is not None else self._by_shape(active=False)

    @property
    def active_params(self) -> int:
        """Parameters that one token meets: those that cost operations."""
        if not self.experts:
            return self.params
        return self._by_shape(active=True) + self.params - self._by_shape(active=False)

    def _by_shape(self, *, active: bool) -> int:
        mlp = self._mlp_of(self.active_experts if active else self.experts)
        dense = min(self.dense_layers, self.layers) if self.experts else 0
        blocks = (self.layers - dense) * self._block(mlp)
        blocks += dense * self._block(self._mlp(self.dense_ffn))
        last_norm = self._norm if self.norms else 0
        return blocks + self.embedding_params + self.head_params + last_norm + self.other_params

    def _block(self, mlp: int) -> int:
        return self.attention_params + mlp + self.norms * self._norm + self.other_block_params

    @property
    def _norm(self) -> int:
        return self.hidden * (2 if self.biases else 1)

    def _mlp_of(self, experts: int) -> int:
        """Return the parameters of so many of the experts, with the router and what is shared."""
        if not self.experts:
            return self._mlp(self.ffn)
        shared = self._mlp(self.shared_ffn) if self.shared_ffn else 0
        return experts * self._mlp(self.ffn) + self.hidden * self.experts + shared

    def _mlp(self, width: int) -> int:
        matrices = 3 if self.gated else 2
        bias = width * (matrices - 1) + self.hidden if self.biases else 0
        return matrices * self.hidden * width + bias
