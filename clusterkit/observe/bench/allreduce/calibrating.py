"""What a measured all-reduce says of the links that `estimate` assumes."""

from __future__ import annotations

from dataclasses import replace

from clusterkit.core.errors import UserError
from clusterkit.estimate.calibration.calibrate import LEAST_MESSAGE, with_bandwidth
from clusterkit.estimate.calibration.measurement import AllReduce
from clusterkit.estimate.factors import Calibration
from clusterkit.observe.bench.allreduce.expected import Place
from clusterkit.observe.bench.allreduce.operations import Operation
from clusterkit.observe.bench.allreduce.result import Result

_NAMING = "name the network that it ran over, or how many adapters a node has: --interconnect 4xhdr"


def learned(result: Result, place: Place | None, *, before: Calibration | None) -> Calibration:
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
    if place is None or result.ranks is None:
        raise UserError(
            "--save: the result does not say on which GPUs it was measured, or on how many nodes",
            hint="say it: --gpu h100 --nodes 2 --gpus-per-node 8",
        )
    rows = [
        AllReduce(bytes=one.bytes, seconds=one.seconds, ranks=result.ranks)
        for one in result.of(Operation.ALL_REDUCE)
    ]
    if max((row.bytes for row in rows), default=0) < LEAST_MESSAGE:
        raise UserError(
            "--save: no all-reduce of 1 MiB or more was measured",
            hint="--ops all-reduce --sizes 1M:1G",
        )
    known = (before or Calibration()).on(place.gpu.name)
    found = with_bandwidth(known, rows, place.fabric, place.domain, naming=_NAMING)
    subject = known.subject or f"all-reduces, {result.ranks} x {place.gpu.name}"
    return replace(found, gpu=place.gpu.name, subject=subject)
