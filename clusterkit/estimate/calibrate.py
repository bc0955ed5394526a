"""Turn a measured step and its all-reduces into a `Calibration`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clusterkit.core.errors import UserError
from clusterkit.estimate.factors import Calibration
from clusterkit.estimate.machines.interconnects import Fabric, group_of
from clusterkit.estimate.measurement import AllReduce, Measurement
from clusterkit.estimate.memory.phases import memory_of
from clusterkit.estimate.setup import Setup
from clusterkit.estimate.speed.communication import domain_of, fabric_of
from clusterkit.estimate.speed.compute import compute_of
from clusterkit.estimate.speed.step_time import factor_between, speed_of, utilisation_of

MIN_MESSAGE = 1 << 20
"""Bytes below which an all-reduce measures latency, not bandwidth."""
_MIN_ACTIVATIONS = 1 << 28
"""Bytes of activations below which allocated memory says nothing of them."""
_FACTORS = (0.25, 4.0)
"""Bounds of a factor: beyond, something else was measured than was said."""
_NETWORK = 'name the network that it ran over: "interconnect": "ethernet-25" in `setup`'
_NEAR = 0.25
"""Part by which allocated memory may differ where activations alone cannot explain it."""


def calibrate(measurement: Measurement, *, before: Calibration | None = None) -> Calibration:
    """Return the factors with which the estimate of the measured setup is what was measured.

    `before` keeps its factors of what was not measured this time, if it was the same GPU. A model
    that is too small to fill a GPU says nothing of others: its factors are left out, and `note`
    tells why.

    Raises:
        UserError: a figure is so far from its estimate that the file describes another run, or
            none of them says anything of other models.
    """
    setup = measurement.setup
    known = (before or Calibration()).on(setup.gpu.name)
    known = replace(known, gpu=setup.gpu.name, subject=measurement.subject, note="")
    links = fabric_of(setup), domain_of(setup)
    found = _with_step(with_bandwidth(known, measurement.all_reduce, *links), measurement)
    found = _with_memory(found, measurement)
    if measurement.device_bytes is not None:
        inside = measurement.reserved_bytes or measurement.allocated_bytes or 0.0
        found = replace(found, context_bytes=measurement.device_bytes - inside)
    if found.note and replace(found, note="") == known:
        raise UserError(
            f"nothing can be learned from this run: {found.note}",
            hint="the scripts in examples/ take --width, --layers and --batch-size",
        )
    return found


def _with_step(known: Calibration, measurement: Measurement) -> Calibration:
    setup = measurement.setup
    if measurement.step_s is None:
        return known
    if compute_of(setup).launch_bound:
        return _noted(known, "the step waits for kernels to be launched: use a larger model")
    scale = utilisation_of(setup, measurement.step_s, calibration=known)
    if not _possible(scale):
        bare = replace(known, utilisation_scale=1.0)
        usual = f"{speed_of(setup, calibration=bare).step_s.likely:.3g} s"
        took = f"{measurement.step_s:.3g} s"
        raise _other_run("step_s", took, usual, f"computing {scale:.2g}")
    return replace(known, utilisation_scale=scale, measured_step=True)


def _with_memory(known: Calibration, measurement: Measurement) -> Calibration:
    setup, allocated = measurement.setup, measurement.allocated_bytes
    if allocated is None:
        return known
    whole, half = (_allocated(setup, scale) for scale in (1.0, 0.5))
    if 2 * (whole - half) < _MIN_ACTIVATIONS:
        return _noted(known, "hardly any memory is activations: use a larger model or batch")
    scale = factor_between(0.02, 50.0, lambda scale: _allocated(setup, scale) < allocated)
    if _possible(scale):
        found = replace(known, activation_scale=scale)
    elif abs(allocated / whole - 1) <= _NEAR:
        found = _noted(known, "allocated memory differs by more than activations can explain")
    else:
        raise _other_run("allocated_bytes", _gb(allocated), _gb(whole), f"activations {scale:.2g}")
    if measurement.reserved_bytes is None:
        return found
    ratio = measurement.reserved_bytes / allocated
    if not _possible(ratio):
        reserved, usual = _gb(measurement.reserved_bytes), f"{_gb(allocated)} and some gaps"
        raise _other_run("reserved_bytes", reserved, usual, f"gaps {ratio:.2g}")
    return replace(found, reserved_ratio=ratio)


def _possible(factor: float) -> bool:
    return _FACTORS[0] <= factor <= _FACTORS[1]


def _gb(size: float) -> str:
    return f"{size / 1e9:.3g} GB"


def _other_run(key: str, measured: str, estimated: str, factor: str, hint: str = "") -> UserError:
    low, high = _FACTORS
    return UserError(
        f"{key}: {measured} measured, {estimated} estimated: that makes {factor} times what is "
        f"usual, where {low:g} to {high:g} is possible",
        hint=hint or "check `setup` in the file: is it what ran, with all that it switched on?",
    )


def _noted(known: Calibration, note: str) -> Calibration:
    return replace(known, note="; ".join(filter(None, (known.note, note))))


def with_bandwidth(
    known: Calibration,
    rows: Sequence[AllReduce],
    fabric: Fabric,
    domain: int,
    *,
    naming: str = _NETWORK,
) -> Calibration:
    """Return `known` with the bandwidth of the largest all-reduce: small ones measure latency.

    `fabric` is what the estimate assumes, `domain` how many GPUs share the fast links, and `naming`
    tells the user how to say which network it was.

    Raises:
        UserError: it is so far from what is assumed that it ran over something else.
    """
    large = [row for row in rows if row.ranks > 1 and row.bytes >= MIN_MESSAGE]
    if not large:
        return known
    row = max(large, key=lambda one: one.bytes)
    group = group_of(row.ranks, 1, domain)
    usual = fabric.all_reduce_s(row.bytes, group)
    scale = usual / row.seconds
    if not _possible(scale):
        where = "within a node" if group.nodes == 1 else f"over {group.nodes} nodes"
        raise _other_run(
            f"all_reduce of {_gb(row.bytes)} by {row.ranks} ranks {where}",
            f"{row.seconds * 1e3:.3g} ms",
            f"{usual * 1e3:.3g} ms",
            f"bandwidth {scale:.2g}",
            hint=naming if group.nodes > 1 else "",
        )
    if group.nodes > 1:
        return replace(known, inter_busbw_scale=scale)
    return replace(known, intra_busbw_scale=scale)


def _allocated(setup: Setup, activation_scale: float) -> float:
    return memory_of(setup, calibration=Calibration(activation_scale=activation_scale)).allocated
