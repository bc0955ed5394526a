"""What a power limit costs in speed, from trainings that were measured under several (`power.tsv`).

Between two measured limits it is interpolated; for lower limits, and for GPUs that nobody measured,
nothing is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from statistics import median
from typing import TypeAlias

from clusterkit.core.data import read_table
from clusterkit.core.errors import UserError
from clusterkit.estimate.machines.gpus import GPUS, Gpu, PowerLimit

_Points: TypeAlias = Sequence[tuple[float, float, float]]
"""Watts, seconds and joules of one training, the highest limit first."""


def under_limit(gpu: Gpu, watts: float) -> Gpu:
    """Return the GPU with a power limit in watts.

    Raises:
        UserError: no training on such a GPU was measured, or none under such a limit.
    """
    trainings = _measured().get(gpu.name)
    if trainings is None:
        alike = [name for name in _measured() if GPUS[name].arch == gpu.arch]
        near = "".join(f"nearest: {name}, of the same architecture; " for name in alike)
        raise UserError(
            f"what --power-limit costs was not measured on {gpu.name}, only on "
            f"{', '.join(_measured())}",
            hint=f"{near}clusterkit bench compute, before and after `nvidia-smi -pl`, measures it",
        )
    points = next(iter(trainings.values()))
    most, least = points[0][0], points[-1][0]
    if not least <= watts <= most:  # nor is it NaN
        wrong = f"{gpu.name} takes {most:g} W at most"
        if watts < least:
            wrong = f"on {gpu.name} nobody measured less than {least:g} W"
        hint = f"a limit from {least:g} to {most:g} W, as --power-limit {(least + most) / 2:.0f}"
        raise UserError(f"--power-limit is {watts:g}, and {wrong}", hint=hint)
    ratios = [_at(watts, points) for points in trainings.values()]
    speeds, energies = (sorted(row) for row in zip(*ratios, strict=True))
    limit = PowerLimit(
        watts=watts,
        default_watts=most,
        speeds=(speeds[0], median(speeds), speeds[-1]),
        energies=(energies[0], energies[-1]),
        trainings=tuple(trainings),
    )
    return replace(gpu, power=limit)


def _at(watts: float, points: _Points) -> tuple[float, float]:
    """Return speed and energy of a training under a limit, over those under the default one."""
    _, seconds, joules = points[0]
    upper, lower = next(pair for pair in pairwise(points) if watts >= pair[1][0])
    part = (watts - lower[0]) / (upper[0] - lower[0])
    speeds, energies = (seconds / lower[1], seconds / upper[1]), (lower[2], upper[2])
    speed, energy = ((1 - part) * ends[0] + part * ends[1] for ends in (speeds, energies))
    return speed, energy / joules


@cache
def _measured() -> Mapping[str, Mapping[str, _Points]]:
    """Return the points of each training by GPU; those of one GPU have the same range."""
    found: dict[str, dict[str, list[tuple[float, float, float]]]] = {}
    for row in read_table(__file__, "power.tsv"):
        points = found.setdefault(row["gpu"], {}).setdefault(row["training"], [])
        points.append((float(row["watts"]), float(row["seconds"]), float(row["joules"])))
    return found
