"""Turn a measured step and its all-reduces into a `Calibration`."""

from __future__ import annotations

import math
from dataclasses import replace

from clusterkit.estimate.calibration import Calibration
from clusterkit.estimate.interconnects import group_of
from clusterkit.estimate.measurement import Measurement
from clusterkit.estimate.memory import memory_of
from clusterkit.estimate.setup import Setup
from clusterkit.estimate.speed import utilisation_of
from clusterkit.estimate.wire import domain_of, fabric_of

_LEAST_MESSAGE = 1 << 20
"""Bytes below which an all-reduce measures latency, not bandwidth."""
_SCALES = (0.02, 20.0)
"""Bounds of a factor: beyond, something else was measured than was said."""


def calibrate(measurement: Measurement, *, before: Calibration | None = None) -> Calibration:
    """Return the factors with which the estimate of the measured setup is what was measured.

    `before` keeps its factors of what was not measured this time, if it was the same GPU.
    """
    setup = measurement.setup
    known = (before or Calibration()).on(setup.gpu.name)
    found = replace(known, gpu=setup.gpu.name, subject=measurement.subject)
    found = _with_bandwidth(found, measurement)
    if measurement.step_s is not None:
        scale = utilisation_of(setup, measurement.step_s, calibration=found)
        found = replace(found, utilisation_scale=scale, measured_step=True)
    if measurement.allocated_bytes is None:
        return found
    found = replace(found, activation_scale=_activation_scale(setup, measurement.allocated_bytes))
    if measurement.reserved_bytes is not None:
        ratio = max(1.0, measurement.reserved_bytes / measurement.allocated_bytes)
        found = replace(found, reserved_ratio=ratio)
    if measurement.device_bytes is not None:
        inside = measurement.reserved_bytes or measurement.allocated_bytes
        found = replace(found, context_bytes=max(1.0, measurement.device_bytes - inside))
    return found


def _with_bandwidth(known: Calibration, measurement: Measurement) -> Calibration:
    """Return `known` with the bandwidth of the largest all-reduce: small ones measure latency."""
    large = [row for row in measurement.all_reduce if row.ranks > 1 and row.bytes >= _LEAST_MESSAGE]
    if not large:
        return known
    row, setup = max(large, key=lambda one: one.bytes), measurement.setup
    group = group_of(row.ranks, 1, domain_of(setup))
    scale = _clamped(fabric_of(setup).all_reduce_s(row.bytes, group) / row.seconds)
    if group.nodes > 1:
        return replace(known, inter_busbw_scale=scale)
    return replace(known, intra_busbw_scale=scale)


def _activation_scale(setup: Setup, allocated: float) -> float:
    """Return the factor with which the estimate of allocated bytes is `allocated`."""
    low, high = _SCALES
    for _ in range(40):
        middle = math.sqrt(low * high)
        memory = memory_of(setup, calibration=Calibration(activation_scale=middle))
        low, high = (middle, high) if memory.allocated < allocated else (low, middle)
    return math.sqrt(low * high)


def _clamped(scale: float) -> float:
    return min(max(scale, _SCALES[0]), _SCALES[1])
