"""Turn a measured step and its all-reduces into a `Calibration`."""

from __future__ import annotations

import math
from dataclasses import replace

from clusterkit.estimate.calibration import Calibration
from clusterkit.estimate.compute import compute_of
from clusterkit.estimate.interconnects import group_of
from clusterkit.estimate.measurement import Measurement
from clusterkit.estimate.memory import memory_of
from clusterkit.estimate.setup import Setup
from clusterkit.estimate.speed import utilisation_of
from clusterkit.estimate.wire import domain_of, fabric_of

_LEAST_MESSAGE = 1 << 20
"""Bytes below which an all-reduce measures latency, not bandwidth."""
_LEAST_ACTIVATIONS = 1 << 28
"""Bytes of activations below which allocated memory says nothing of them."""
_SCALES = (0.02, 20.0)
"""Bounds of a factor: beyond, something else was measured than was said."""


def calibrate(measurement: Measurement, *, before: Calibration | None = None) -> Calibration:
    """Return the factors with which the estimate of the measured setup is what was measured.

    `before` keeps its factors of what was not measured this time, if it was the same GPU. A model
    that is too small to fill a GPU says nothing of others: its factors are left out, and `note`
    tells why.
    """
    setup = measurement.setup
    known = (before or Calibration()).on(setup.gpu.name)
    found = replace(known, gpu=setup.gpu.name, subject=measurement.subject, note="")
    found = _with_memory(_with_step(_with_bandwidth(found, measurement), measurement), measurement)
    if measurement.device_bytes is not None:
        inside = measurement.reserved_bytes or measurement.allocated_bytes or 0.0
        found = replace(found, context_bytes=max(1.0, measurement.device_bytes - inside))
    return found


def _with_step(known: Calibration, measurement: Measurement) -> Calibration:
    setup = measurement.setup
    if measurement.step_s is None:
        return known
    if compute_of(setup).launch_bound:
        return _noted(known, "the step waits for kernels to be launched: use a larger model")
    scale = utilisation_of(setup, measurement.step_s, calibration=known)
    return replace(known, utilisation_scale=scale, measured_step=True)


def _with_memory(known: Calibration, measurement: Measurement) -> Calibration:
    setup, allocated = measurement.setup, measurement.allocated_bytes
    if allocated is None:
        return known
    whole, half = (_allocated(setup, scale) for scale in (1.0, 0.5))
    if 2 * (whole - half) < _LEAST_ACTIVATIONS:
        return _noted(known, "hardly any memory is activations: use a larger model or batch")
    found = replace(known, activation_scale=_activation_scale(setup, allocated))
    if measurement.reserved_bytes is None:
        return found
    return replace(found, reserved_ratio=max(1.0, measurement.reserved_bytes / allocated))


def _noted(known: Calibration, note: str) -> Calibration:
    return replace(known, note="; ".join(filter(None, (known.note, note))))


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
        below = _allocated(setup, middle) < allocated
        low, high = (middle, high) if below else (low, middle)
    return math.sqrt(low * high)


def _allocated(setup: Setup, activation_scale: float) -> float:
    return memory_of(setup, calibration=Calibration(activation_scale=activation_scale)).allocated


def _clamped(scale: float) -> float:
    return min(max(scale, _SCALES[0]), _SCALES[1])
