"""What autograd really saves for the blocks that the closed form counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from clusterkit.estimate.memory.activations import bytes_per_logit, kept_per_token
from clusterkit.estimate.setup import Library, Precision
from clusterkit.estimate.shapes import ModelShape
from tests.helpers.needs import module
from tests.unit.estimate.test_estimate_communication import setup

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "llama": {"kv_heads": 2, "ffn": 896},
    "llama without groups": {"ffn": 704},
    "gpt": {"ffn": 1024, "gated": False},
}


@pytest.fixture(scope="module")
def blocks() -> Any:
    module("torch")  # here, as who only reads this file needs no seconds of a processor for it
    return module("tests.helpers.estimate_blocks")


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_a_block_keeps_what_the_closed_form_says(blocks: Any, name: str, *, autocast: bool) -> None:
    block = blocks.MAKE[name]()
    block = block if autocast else block.bfloat16()
    # Between two lengths, so that copies of weights drop out.
    long, short = (blocks.saved_bytes(block, tokens, autocast=autocast) for tokens in (512, 256))
    usual: dict[str, Any] = {"kv_heads": blocks.HEADS, "gated": True}
    shape = ModelShape(
        name=name, layers=1, hidden=blocks.HIDDEN, heads=blocks.HEADS,
        head_dim=blocks.HIDDEN // blocks.HEADS, vocab=1000, **(usual | dict(SHAPES[name])),
    )  # fmt: skip
    precision = Precision.AMP_BF16 if autocast else Precision.PURE_BF16
    one = setup(model=shape, library=Library.DDP, precision=precision, gpus=1)
    assert (long - short) / 256 == pytest.approx(kept_per_token(one), rel=0.015)


@pytest.mark.parametrize(
    ("precision", "fp32", "each"),
    [(Precision.PURE_BF16, False, 8), (Precision.PURE_BF16, True, 14), (Precision.FP32, True, 16)],
)
def test_the_loss_needs_what_is_said_of_each_logit(
    blocks: Any, precision: Precision, *, fp32: bool, each: int
) -> None:
    tokens, vocab = 256, 4096
    one = setup(library=Library.DDP, precision=precision, fp32_logits=fp32, gpus=1)
    assert bytes_per_logit(one) == each
    dtype = blocks.torch.float32 if precision is Precision.FP32 else blocks.torch.bfloat16
    peak_bytes = blocks.loss_peak_bytes(tokens, vocab, dtype, fp32=fp32)
    assert peak_bytes / (tokens * vocab) == pytest.approx(each, rel=0.02)
