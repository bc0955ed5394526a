"""What `clusterkit estimate` is asked, in the words of its flags."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateWords:
    """A question; None where nothing is said. `clusterkit estimate --help` explains the words."""

    model: str | os.PathLike[str] | None = None
    params: str | float | None = None
    gpu: str | None = None
    gpus: int | None = None
    gpus_per_node: int | None = None
    host_memory: float | None = None
    """GB."""
    interconnect: str | None = None
    cluster: str | None = None
    strategy: str | None = None
    tp: int | None = None
    pp: int | None = None
    vpp: int | None = None
    cp: int | None = None
    ep: int | None = None
    seq: int | None = None
    micro_batch: int | None = None
    accumulation: int | None = None
    global_batch: int | None = None
    precision: str | None = None
    optimizer: str | None = None
    checkpointing: str | None = None
    loss: str | None = None
    offload: str | None = None
    lora_rank: int | None = None
    qlora: bool = False
    no_sync: bool = False
    compiled: bool = False
    no_flash: bool = False
    margin: str | float | None = None
    tokens: str | float | None = None
    price: float | None = None
    explain: bool = False
    scale: bool = False
