"""How often to write a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

NODE_MTBF_S = 128 * 7.9 * 3600
"""Of one node with eight GPUs, in the mean: jobs of 1,024 GPUs failed every 7.9 hours on Meta's
research clusters (Kokolis et al., "Revisiting Reliability in Large-Scale Machine Learning Research
Clusters", HPCA 2025)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """When to write checkpoints that take `write_s`, where a failure comes every `mtbf_s`."""

    write_s: float
    mtbf_s: float
    young_s: float
    daly_s: float
    lost: float
    """The share of all time that goes into checkpoints and steps that are computed again."""


def interval(write_s: float, mtbf_s: float) -> Interval:
    """Return how long to compute between two checkpoints, so that the least time is lost.

    J. W. Young, "A first order approximation to the optimum checkpoint interval", Communications
    of the ACM 17 (1974) 530: sqrt(2 w M). J. T. Daly, "A higher order estimate of the optimum
    checkpoint interval for restart dumps", Future Generation Computer Systems 22 (2006) 303,
    equation 37: sqrt(2 w M) (1 + sqrt(w / 2M) / 3 + w / 18M) - w for w < 2M, else M.
    What is lost, to the first order: a checkpoint in each interval, and half an interval with each
    failure.
    """
    young = sqrt(2 * write_s * mtbf_s)
    part = write_s / (2 * mtbf_s)
    daly = young * (1 + sqrt(part) / 3 + part / 9) - write_s if part < 1 else mtbf_s
    lost = min(1.0, write_s / (daly + write_s) + (daly + write_s) / (2 * mtbf_s))
    return Interval(write_s=write_s, mtbf_s=mtbf_s, young_s=young, daly_s=daly, lost=lost)
