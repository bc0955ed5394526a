"""Measure a run for `clusterkit estimate --calibrate FILE`: memory, time of a step, all-reduce.

    clusterkit submit --framework torchrun --nodes 2 examples/train_ddp.py --measure step.json

The first steps are not counted: they compile, allocate and connect. Memory is that of the rank
that needs most; without a GPU there is none to measure, and the figures stand as null.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import charlm
import torch
import torch.distributed as dist
from torch import nn

WARM_UP = 5  # steps
REPEATS = 5
SIZES = tuple(1 << power for power in (16, 20, 24, 28))  # bytes, those of an all-reduce


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Give a script the argument that asks for a measurement."""
    parser.add_argument(
        "--measure", type=Path, metavar="FILE", help="write what `estimate --calibrate` reads"
    )


def profiler(folder: Path | None) -> torch.profiler.profile | None:
    """Start a profiler of three steps after the warm-up, if it is given a folder for its traces.

    Each rank writes `rank-N.json` there, which https://ui.perfetto.dev and chrome://tracing draw.
    """
    if folder is None:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    trace = folder / f"rank-{dist.get_rank()}.json"
    started = torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=WARM_UP, warmup=1, active=3, repeat=1),
        on_trace_ready=lambda profile: profile.export_chrome_trace(str(trace)),
    )
    started.start()
    return started


class Meter:
    """Measure from the end of the warm-up to the last step; every rank calls it at every step."""

    def __init__(
        self, args: argparse.Namespace, strategy: str, model: nn.Module, where: torch.device
    ) -> None:
        self.args, self.strategy, self.where = args, strategy, where
        # ZeRO-3 leaves empty tensors behind, and says elsewhere how large they are.
        sizes = (getattr(p, "ds_numel", None) or p.numel() for p in model.parameters())
        self.params = sum(sizes)
        self.steps, self.began = 0, 0.0

    def advance(self) -> None:
        """Count a step."""
        self.steps += 1
        if self.args.measure is not None and self.steps == WARM_UP:
            self._settle()
            if self.where.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            self.began = time.perf_counter()

    def write(self) -> None:
        """Write the file, on rank 0, where one was asked for and there were steps to measure."""
        if self.args.measure is None:
            return
        if self.steps <= WARM_UP:
            raise SystemExit(
                f"--measure needs more than {WARM_UP} steps, and there were {self.steps}"
            )
        self._settle()
        step_s = self._most((time.perf_counter() - self.began) / (self.steps - WARM_UP))
        on_gpu = self.where.type == "cuda"
        allocated = self._most(torch.cuda.max_memory_allocated()) if on_gpu else None
        reserved = self._most(torch.cuda.max_memory_reserved()) if on_gpu else None
        found = {
            "schema": 1,
            "setup": self._setup(),
            "allocated_bytes": allocated,
            "reserved_bytes": reserved,
            "step_s": step_s,
            "all_reduce": [self._all_reduce(size) for size in SIZES],
        }
        if dist.get_rank() == 0:
            self.args.measure.write_text(json.dumps(found, indent=2) + "\n")
            print(f"measure: {step_s:.4f} s a step, in {self.args.measure}", flush=True)

    def _setup(self) -> dict[str, Any]:
        args, world = self.args, dist.get_world_size()
        return {
            "model": charlm.shape(args) | {"params": self.params},
            "gpu": torch.cuda.get_device_name() if self.where.type == "cuda" else None,
            "gpus": world,
            "gpus_per_node": min(world, torch.cuda.device_count() or world),
            "strategy": self.strategy,
            "precision": getattr(args, "precision", "fp32"),
            "seq": charlm.CONTEXT,
            "micro_batch": args.batch_size,
            "accumulation": 1,
        }

    def _all_reduce(self, size: int) -> dict[str, float]:
        tensor = torch.zeros(size // 4, device=self.where)
        dist.all_reduce(tensor)
        self._settle()
        began = time.perf_counter()
        for _ in range(REPEATS):
            dist.all_reduce(tensor)
        self._settle()
        seconds = self._most((time.perf_counter() - began) / REPEATS)
        return {"bytes": size, "seconds": seconds, "ranks": dist.get_world_size()}

    def _settle(self) -> None:
        if self.where.type == "cuda":
            torch.cuda.synchronize()

    def _most(self, value: float) -> float:
        """Return the largest value of all ranks."""
        largest = torch.tensor(float(value), dtype=torch.float64, device=self.where)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return largest.item()
