"""One training run on one GPU: how much memory it took, and how long a step.

As a program, below torchrun: `training.py ROW.json FILE`, which writes what was found.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils import checkpoint

from bench.gpu.rows import SHAPES, Row
from bench.llama import Llama

_WARM_UP, _ENOUGH_S = 2, 12.0
Step = Callable[[Tensor], None]


def train(row: Row) -> dict[str, Any]:
    """Train for some steps; return parameters, peak bytes, and the median seconds of a step.

    Without a GPU there is no memory to measure: its figures are None.
    """
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    on_gpu = device.type == "cuda"
    # One rank talks to nobody: no port, and whatever launcher started it does not matter.
    if row.strategy != "single":
        dist.init_process_group(
            "nccl" if on_gpu else "gloo", store=dist.HashStore(), rank=0, world_size=1,
            device_id=device if on_gpu else None,
        )  # fmt: skip
    if not on_gpu:
        torch.set_num_threads(1)  # other threads of a busy machine are waited for
    torch.manual_seed(0)
    model = _model(row, device)
    params = sum(parameter.numel() for parameter in model.parameters())
    step = _engine(row, model) if row.by_deepspeed else _step(row, model, device)
    seconds = []
    for _ in range(_WARM_UP + row.steps):
        tokens = torch.randint(SHAPES[row.model].words, (row.micro_batch, row.seq), device=device)
        began = time.perf_counter()
        step(tokens)
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        if sum(seconds[_WARM_UP:]) > _ENOUGH_S:
            break
    timed = seconds[_WARM_UP:]
    found: dict[str, Any] = {
        "params": params,
        "step_s": statistics.median(timed),
        "steps_per_s": len(timed) / sum(timed),
    }
    if on_gpu:
        free, total = torch.cuda.mem_get_info()
        found |= {
            "gpu": torch.cuda.get_device_name(),
            "allocated_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
            "device_bytes": total - free,
        }
    if dist.is_initialized():
        dist.destroy_process_group()
    return found


def _model(row: Row, device: torch.device) -> nn.Module:
    """Return the model where it is trained, in the numbers that are kept, and checkpointed.

    Keys are repeated, or not, as the estimate of such a run takes for granted.
    """
    kept = torch.bfloat16 if row.precision == "pure-bf16" or row.by_deepspeed else torch.float32
    # Nothing larger than the model is ever there: it would stay reserved.
    torch.set_default_dtype(kept)
    with torch.device("meta"):
        model = Llama(*SHAPES[row.model])
    torch.set_default_dtype(torch.float32)
    model.to_empty(device="cpu" if row.strategy == "fsdp-offload" else device)
    for parameter in model.parameters():
        if (
            parameter.dim() == 1 or parameter.device != device
        ):  # random numbers of a CPU take minutes
            nn.init.constant_(parameter, 1.0 if parameter.dim() == 1 else 0.02)
        else:  # a GPU takes less power, and is faster, where all numbers are the same
            nn.init.normal_(parameter, std=0.02)
    if row.precision == "fp8":
        from torchao.float8 import convert_to_float8_training  # noqa: PLC0415 - may be missing

        convert_to_float8_training(model.get_submodule("blocks"))
    blocks: Any = model.blocks
    for block in blocks:
        block.repeats = not (row.by_deepspeed or row.compile)
        if row.checkpointing == "selective":
            block.forward = partial(
                checkpoint.checkpoint, block.forward, use_reentrant=False, context_fn=_selective
            )
        elif row.checkpointing == "full":
            block.forward = partial(checkpoint.checkpoint, block.forward, use_reentrant=False)
    return model


def _selective() -> Any:
    """Keep attention and every second product, as torchtitan does and `estimate` assumes."""
    numbers = {again: count() for again in (False, True)}

    def policy(context: Any, operator: Any, *_args: Any, **_named: Any) -> Any:
        attention = "scaled_dot_product" in str(operator)
        of_two = (
            operator is torch.ops.aten.mm.default and next(numbers[context.is_recompute]) % 2 == 0
        )
        keep = attention or of_two
        kept = checkpoint.CheckpointPolicy
        return kept.MUST_SAVE if keep else kept.PREFER_RECOMPUTE

    return checkpoint.create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]


def _step(row: Row, model: nn.Module, device: torch.device) -> Step:
    """Return the step of a model by itself, or under torch's own DDP or FSDP2."""
    sharded = row.strategy.startswith("fsdp")
    if sharded:
        model = _fsdp(row, model)
    elif row.strategy == "ddp":
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(
        model.parameters(), fused=row.optimizer == "fused", foreach=row.optimizer == "foreach"
    )
    called: Any = torch.compile(model) if row.compile else model
    casts = row.precision in {"bf16", "fp8"} and not sharded

    def step(tokens: Tensor) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=casts):
            loss = _loss(called(tokens), tokens)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return step


def _fsdp(row: Row, model: nn.Module) -> nn.Module:
    casts = row.precision in {"bf16", "fp8"}
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if casts else None, reduce_dtype=torch.float32 if casts else None
    )
    where = CPUOffloadPolicy() if row.strategy == "fsdp-offload" else OffloadPolicy()
    for part in (*model.get_submodule("blocks").children(), model):
        fully_shard(part, mp_policy=policy, offload_policy=where)
    return model


def _engine(row: Row, model: nn.Module) -> Step:
    """Return the step of DeepSpeed; with `-offload` the optimizer is on the CPU."""
    import deepspeed  # noqa: PLC0415 - may be missing, and takes seconds

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # would be compiled now
    stage, offloads = int(row.strategy[4]), row.strategy.endswith("-offload")
    on_cpu = {"device": "cpu", "pin_memory": True}
    places = {"offload_optimizer": on_cpu} if offloads else {}
    places |= {"offload_param": on_cpu} if offloads and stage == 3 else {}
    options = {
        "train_micro_batch_size_per_gpu": row.micro_batch,
        "bf16": {"enabled": True},
        # torch's own AdamW: DeepSpeed's is an op that is compiled on first use
        "optimizer": {"type": "AdamW", "params": {"torch_adam": True}},
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": stage, **places},
        "steps_per_print": 10**9,
    }
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=options
    )

    def step(tokens: Tensor) -> None:
        engine.backward(_loss(engine(tokens), tokens))
        engine.step()

    return step


def _loss(logits: Tensor, tokens: Tensor) -> Tensor:
    return functional.cross_entropy(logits.float().flatten(0, 1), tokens.flatten())


if __name__ == "__main__":
    os.environ.setdefault("LOCAL_RANK", "0")
    given, written = map(Path, sys.argv[1:])
    written.write_text(json.dumps(train(Row(**json.loads(given.read_text())))))
