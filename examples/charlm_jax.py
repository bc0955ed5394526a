"""The model of charlm.py, written for JAX: a tree of weights, and the loss as a function of it."""

import argparse
from typing import Any

import charlm
import jax
import jax.numpy as jnp
from jax import Array

Tree = Any  # of arrays


def fresh(args: argparse.Namespace) -> Tree:
    """Return weights from the seed, the same on every process."""
    keys = iter(jax.random.split(jax.random.key(args.seed), 3 + 4 * args.layers))
    width, letters = args.width, len(charlm.ALPHABET)

    def dense(rows: int, columns: int) -> Tree:
        weight = jax.random.normal(next(keys), (rows, columns)) / rows**0.5
        return {"weight": weight, "bias": jnp.zeros(columns)}

    def norm() -> Tree:
        return {"scale": jnp.ones(width), "bias": jnp.zeros(width)}

    return {
        "characters": jax.random.normal(next(keys), (letters, width)),
        "positions": jax.random.normal(next(keys), (charlm.CONTEXT, width)),
        "blocks": [
            {
                "norms": [norm(), norm()],
                "qkv": dense(width, 3 * width),
                "project": dense(width, width),
                "think": [dense(width, 4 * width), dense(4 * width, width)],
            }
            for _ in range(args.layers)
        ],
        "norm": norm(),
        "head": dense(width, letters),
    }


def loss_of(model: Tree, tokens: Array) -> Array:
    """Return the mean cross-entropy in nats; tokens as from `charlm.Text.batch`."""
    x = model["characters"][tokens[:, :-1]] + model["positions"]
    for block in model["blocks"]:
        qkv = times(normed(x, block["norms"][0]), block["qkv"])
        heads = qkv.reshape(*x.shape[:2], 3, -1, charlm.HEAD_WIDTH)
        attended = jax.nn.dot_product_attention(*jnp.moveaxis(heads, 2, 0), is_causal=True)
        x = x + times(attended.reshape(x.shape), block["project"])
        thought = times(normed(x, block["norms"][1]), block["think"][0])
        x = x + times(jax.nn.gelu(thought), block["think"][1])
    logits = times(normed(x, model["norm"]), model["head"])
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], axis=-1)
    return -jnp.mean(chosen)


def times(x: Array, dense: Tree) -> Array:
    """Apply a dense layer."""
    return x @ dense["weight"] + dense["bias"]


def normed(x: Array, norm: Tree) -> Array:
    """Apply a layer norm."""
    deviation = jnp.sqrt(jnp.var(x, axis=-1, keepdims=True) + 1e-5)
    return (x - jnp.mean(x, axis=-1, keepdims=True)) / deviation * norm["scale"] + norm["bias"]
