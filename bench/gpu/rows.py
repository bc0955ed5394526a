"""The runs of the matrix (`matrix.tsv`), and each as a setup of the estimator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from clusterkit.core.data import read_table
from clusterkit.estimate.measurement import Measurement, parse_measurement
from clusterkit.estimate.memory.phases import memory_of
from clusterkit.estimate.results import Memory
from clusterkit.estimate.setup import Library, Precision, Setup

MATRIX = Path(__file__).with_name("matrix.tsv")


class Shape(NamedTuple):
    """How large a `bench.llama.Llama` is."""

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
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One training run, in the words of `estimate`."""

    id: str
    model: str
    """One of `SHAPES`."""
    strategy: str
    """single, ddp, fsdp, fsdp-offload, or DeepSpeed's zero0 to zero3, with `-offload`."""
    precision: str
    checkpointing: str
    micro_batch: int
    seq: int
    optimizer: str
    """How AdamW does its step: `foreach`, or `fused` into one kernel."""
    compile: bool
    steps: int = 5
    """Steps that are timed."""

    @property
    def by_deepspeed(self) -> bool:
        """Whether DeepSpeed trains."""
        return self.strategy.startswith("zero")

    @property
    def limit_s(self) -> float:
        """How long it may take in all; a compiler, DeepSpeed and a CPU that steps need more."""
        return 90.0 if self.compile or self.by_deepspeed or "offload" in self.strategy else 45.0


def read_matrix(path: Path = MATRIX) -> tuple[Row, ...]:
    """Return the runs of a table, those first that say most."""
    return tuple(
        Row(
            id=f"{number:02}",
            compile=row.pop("compile") == "yes",
            micro_batch=int(row.pop("micro_batch")),
            seq=int(row.pop("seq")),
            **row,  # type: ignore[arg-type]
        )
        for number, row in enumerate(read_table(path), 1)
    )


def measured(row: Row, figures: Mapping[str, Any]) -> Measurement:
    """Return what was measured as the estimator reads it: `gpu`, and figures where there are some.

    Raises:
        UserError: the GPU is not known.
    """
    shape = SHAPES[row.model]
    model = {
        "name": row.model, "hidden_size": shape.width, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
        "intermediate_size": shape.mlp, "vocab_size": shape.words, "tie_word_embeddings": False,
        "model_type": "llama",
    }  # fmt: skip
    setup = {
        "model": model, "gpu": figures["gpu"], "gpus": 1, "gpus_per_node": 1,
        "strategy": row.strategy, "precision": row.precision, "seq": row.seq,
        "micro_batch": row.micro_batch, "checkpointing": row.checkpointing,
        "compile": row.compile,
    }  # fmt: skip
    kept = ("allocated_bytes", "reserved_bytes", "device_bytes", "step_s")
    document = {"schema": 1, "setup": setup, "step_s": 1.0}
    document |= {name: figures[name] for name in kept if name in figures}
    found = parse_measurement(document, source=f"run {row.id}")
    return replace(found, setup=_as_run(found.setup, row))


def _as_run(setup: Setup, row: Row) -> Setup:
    """Return the setup with what files of measurements have no words for."""
    if row.strategy == "zero0":  # to `estimate`, that is DDP
        setup = replace(setup, library=Library.DEEPSPEED, precision=Precision(row.precision))
    setup = replace(setup, fused_norms=True)  # torch's own RMSNorm is one kernel on a GPU
    return replace(setup, step_copies=0) if row.optimizer == "fused" else setup


def memory_of_run(row: Row, setup: Setup) -> Memory:
    """Return the estimate of its memory; DDP of one keeps buckets, as `estimate` counts for two."""
    return memory_of(replace(setup, gpus=2, gpus_per_node=2) if row.strategy == "ddp" else setup)
