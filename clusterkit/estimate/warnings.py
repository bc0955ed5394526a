"""What can be run but should rather not be: each with its reason and what to type."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from clusterkit.core.errors import Problem
from clusterkit.estimate.refusals import divisor_below, last_stage
from clusterkit.estimate.setup import Library, Setup

_MUCH_PADDING = 1.05


def warnings_of(setup: Setup) -> tuple[Problem, ...]:
    """Return what a setup that can be run should rather not do."""
    return tuple(_warnings(setup))


def _warnings(setup: Setup) -> Iterator[Problem]:
    model = setup.model
    if setup.tp > setup.gpus_per_node:
        yield Problem(
            message=f"tp {setup.tp} goes over nodes of {setup.gpus_per_node} GPUs: every layer "
            "waits for the network four times",
            hint=f"--tp {setup.gpus_per_node}, and pipeline stages across nodes",
        )
    if model.max_seq is not None and setup.seq > model.max_seq and not model.learned_positions:
        yield Problem(
            message=f"sequences of {setup.seq} go beyond the {model.max_seq} that {model.name} "
            "was made for",
            hint=f"it has to be trained with scaled positions, or: --seq {model.max_seq}",
        )
    padded = -(-model.vocab // (128 * setup.tp)) * 128 * setup.tp
    if setup.library is Library.MEGATRON and padded > _MUCH_PADDING * model.vocab:
        yield Problem(
            message=f"Megatron pads the vocabulary of {model.vocab} to {padded}",
            hint="smaller --tp",
        )
    if setup.pp > 1 and model.layers % setup.pp:
        most = -(-model.layers // setup.pp)
        even = divisor_below(gcd(model.layers, setup.gpus // (setup.tp * setup.cp)), setup.pp)
        yield Problem(
            message=f"pp {setup.pp} does not divide the {model.layers} layers of {model.name}: "
            f"{most} on each stage, {last_stage(setup)} on the last one",
            hint=f"--pp {even}",
        )
    if setup.pp > 1 and setup.accumulation < 4 * setup.pp:
        idle = (setup.pp - 1) / (setup.vpp * setup.accumulation)
        idle /= 1 + idle
        plural = "es" if setup.accumulation > 1 else ""
        yield Problem(
            message=f"with {setup.accumulation} micro batch{plural}, {setup.pp} pipeline stages "
            f"are idle {idle:.0%} of the time",
            hint=f"--accumulation {4 * setup.pp} or more, or --vpp 2",
        )
