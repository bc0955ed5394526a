"""A result beside what `estimate` assumes and others have published."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from clusterkit.core.errors import UserError
from clusterkit.core.records import picked
from clusterkit.estimate.calibrate import MIN_MESSAGE, with_bandwidth
from clusterkit.estimate.factors import Calibration
from clusterkit.estimate.machines.gpus import gpu_named
from clusterkit.estimate.machines.interconnects import (
    Fabric,
    fast_domain,
    group_of,
    interconnect_named,
    network_of,
)
from clusterkit.estimate.measurement import AllReduce
from clusterkit.observe.bench.allreduce.result import MEASURED, Measured, Operation, Result
from clusterkit.preflight.probes.gpu.nccl_tests import MIN_BYTES, Published, published_for

_GATHERS = (Operation.ALL_GATHER, Operation.REDUCE_SCATTER)
_NAMING = "name the network that it ran over, or how many adapters a node has: --interconnect 4xhdr"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """What `estimate` takes for the links of these ranks, before any calibration."""

    op: Operation
    bytes: int
    """The message that was measured."""
    busbw: float
    """Bytes per second that the estimate assumes for this size."""
    share: float
    """Measured over assumed."""
    over: str
    """The links: `NVLink of H100-SXM`, `infiniband-ndr`."""


def fabric_of(result: Result, interconnect: str | None, gpu: str | None = None) -> Fabric | None:
    """Return the links that were measured; None where too little is known of them.

    Raises:
        UserError: `interconnect` or `gpu` names nothing that is known.
    """
    known = gpu_named(gpu) if gpu is not None else None
    with suppress(UserError):  # one that the estimate does not know, or several
        known = gpu_named(result.device or "")
    if known is None or result.device == "cpu":
        return None
    if result.ranks is None or result.ranks < 2 or result.per_node is None:
        return None
    return Fabric(
        gpu=known,
        gpus_per_node=fast_domain(known, result.per_node, result.ranks),
        network=network_of(known, interconnect),
    )


def assumed(
    result: Result, measured: Measured, fabric: Fabric | None, interconnect: str | None
) -> Assumption | None:
    """Return what the estimate assumes of the links for a message; None where it knows nothing.

    Without GPUs only a network that is named can be compared with: its rate in one direction, of
    which a ring between all ranks has the whole.
    """
    if measured.op not in MEASURED or result.perhaps:
        return None
    groups = result.groups
    if fabric is not None and result.ranks is not None:
        ranks, stride = (groups.ranks, groups.stride) if groups else (result.ranks, 1)
        group = group_of(ranks, stride, fabric.gpus_per_node)
        within = group.nodes == 1
        if measured.op is Operation.ALL_REDUCE:
            usual = fabric.all_reduce_s(measured.bytes, group)
        elif measured.op is Operation.ALLTOALL:
            usual = fabric.all_to_all_s(measured.bytes, group)
        elif measured.op in _GATHERS:
            usual = fabric.all_gather_s(measured.bytes, group)
        else:
            return None  # no step of training is estimated from it
        over = f"the links in a node of {fabric.gpu.name}" if within else fabric.network.name
        busbw = measured.busbw * measured.seconds / usual
    elif groups is None and _ring_over_network(result, measured) and interconnect is not None:
        network = interconnect_named(interconnect)
        busbw, over = network.node_gbs(1) * 1e9, network.name
    else:
        return None
    share = measured.busbw / busbw
    return Assumption(op=measured.op, bytes=measured.bytes, busbw=busbw, share=share, over=over)


def _ring_over_network(result: Result, measured: Measured) -> bool:
    rings = (Operation.ALL_REDUCE, *_GATHERS)
    return result.backend == "gloo" and (result.node_count or 0) > 1 and measured.op in rings


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was measured, and what it is compared with."""

    result: Result
    fabric: Fabric | None
    """The links that it went over, as the estimate knows them."""
    assumptions: Mapping[Operation, Assumption]
    """Of the largest message of each collective."""
    published: Published | None
    """For all-reduces on the same hardware."""

    @property
    def published_share(self) -> float | None:
        """The best large all-reduce over what is published; None where there is none of either."""
        reduced = self.result.of(Operation.ALL_REDUCE)
        large = [one.busbw for one in reduced if one.bytes >= MIN_BYTES]
        if self.published is None or not large:
            return None
        return max(large) / (self.published.gbs * 1e9)


def answer(result: Result, *, interconnect: str | None, gpu: str | None) -> Answer:
    """Return a result with what `estimate` assumes and what is published.

    Raises:
        UserError: `interconnect` or `gpu` names nothing that is known.
    """
    fabric = fabric_of(result, interconnect, gpu)
    found = {
        op: assumption
        for op in result.operations
        if (assumption := assumed(result, result.large(op), fabric, interconnect)) is not None
    }
    known = None
    device, nodes, per_node = result.device, result.node_count, result.per_node
    if device is not None and nodes is not None and per_node is not None and not result.groups:
        network = fabric.network.name if fabric is not None else None
        known = published_for(device, nodes=nodes, per_node=per_node, network=network)
    return Answer(result=result, fabric=fabric, assumptions=found, published=known)


def document(found: Answer) -> dict[str, Any]:
    """Return what `--json` tells, without the job."""
    result, known = found.result, found.published
    names = (
        "source", "backend", "device", "versions", "nodes", "node_count", "ranks", "complete",
        "correct", "wrong", "suspects", "left_out",
    )  # fmt: skip
    return {
        **picked(result, *names),
        "failed_with": result.error,
        "group": result.groups and picked(result.groups, "over", "ranks", "stride"),
        "measured": [_row(one) for one in result.measured],
        "best": {op.value: _row(result.best(op)) for op in result.operations},
        "large": {op.value: _row(result.large(op)) for op in result.operations},
        "expected": {
            "estimate": {
                op.value: {
                    "bytes": one.bytes,
                    "busbw_gbs": one.busbw / 1e9,
                    **picked(one, "share", "over"),
                }
                for op, one in found.assumptions.items()
            },
            "published": None
            if known is None
            else {
                "busbw_gbs": known.gbs,
                "share": found.published_share,
                **picked(known, "system", "source", "warn", "replace", "limits_of"),
            },
        },
    }


def empty_document() -> dict[str, Any]:
    """Return what `--json` tells where nothing was measured: all keys of `document`."""
    nothing = Result(source="", backend="", complete=False)
    empty = document(Answer(result=nothing, fabric=None, assumptions={}, published=None))
    return {**empty, "source": None, "backend": None}


def _row(one: Measured) -> dict[str, Any]:
    spread = {"fastest": one.fastest, "slowest": one.slowest}
    return {
        **picked(one, "op", "bytes", "seconds", "repeats", "iterations"),
        "algbw_gbs": one.algbw / 1e9,
        "busbw_gbs": one.busbw / 1e9,
        **{f"{name}_busbw_gbs": rate and rate / 1e9 for name, rate in spread.items()},
    }


def learned(result: Result, fabric: Fabric | None, *, before: Calibration | None) -> Calibration:
    """Return `before` with the bandwidth of the largest all-reduce that was measured.

    Raises:
        UserError: the result says nothing of what is estimated, or is far from possible.
    """
    if result.correct is False:
        raise UserError(
            "--save: the results were wrong, and so is the time that they took",
            hint="find out why first",
        )
    if result.backend != "nccl":
        raise UserError(
            f"--save: estimates are of GPUs, and this ran over {result.backend}",
            hint="measure on nodes with GPUs, or leave --save out",
        )
    if result.groups is not None:
        raise UserError(
            f"--save: estimates start from all ranks, and this is of {result.groups.over} groups",
            hint="measure without --over",
        )
    if fabric is None or result.ranks is None:
        raise UserError(
            "--save: the result does not say on which GPUs it was measured, or on how many nodes",
            hint="say it: --gpu h100 --nodes 2 --gpus-per-node 8",
        )
    rows = [
        AllReduce(bytes=one.bytes, seconds=one.seconds, ranks=result.ranks)
        for one in result.of(Operation.ALL_REDUCE)
    ]
    if max((row.bytes for row in rows), default=0) < MIN_MESSAGE:
        raise UserError(
            "--save: no all-reduce of 1 MiB or more was measured",
            hint="--ops all-reduce --sizes 1M:1G",
        )
    known = (before or Calibration()).on(fabric.gpu.name)
    found = with_bandwidth(known, rows, fabric, fabric.gpus_per_node, naming=_NAMING)
    subject = known.subject or f"all-reduces, {result.ranks} x {fabric.gpu.name}"
    return replace(found, gpu=fabric.gpu.name, subject=subject)
