"""Published throughput against `speed_of`: with nothing measured, and with one row as measurement.

Every figure is turned into tokens per second and GPU first, so that a step time, an MFU and a
throughput of the same run err by the same part.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from clusterkit.estimate.factors import Calibration
from clusterkit.estimate.setup import Checkpointing, Precision, Setup
from clusterkit.estimate.speed.compute import attention_width, model_flops, needed_flops
from clusterkit.estimate.speed.step_time import speed_of, utilisation_of

from .truth import Row, Unused, setup_of
from .truth_model import TooLittle
from .units import factor_of

QUANTITIES = frozenset(
    {
        "tokens_per_s_per_gpu",
        "tokens_per_s_total",
        "step_time",
        "mfu_pct",
        "hfu_pct",
        "tflops_per_gpu",
        "samples_per_s",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedScore:
    """One published throughput beside its estimate, in tokens per second and GPU."""

    row: Row
    setup: Setup
    published: float
    predicted: float
    calibrated: float | None = None
    """With another row of the same model and card as the measurement; None where there is none."""

    @property
    def step_s(self) -> float:
        """The published throughput as seconds of a step."""
        return self.setup.tokens / self.setup.gpus / self.published

    @property
    def error(self) -> float:
        """Predicted over published, less 1."""
        return self.predicted / self.published - 1

    @property
    def calibrated_error(self) -> float | None:
        """The same after calibration."""
        return None if self.calibrated is None else self.calibrated / self.published - 1


def score_speed(rows: Iterable[Row]) -> tuple[tuple[SpeedScore, ...], Mapping[str, str]]:
    """Score the rows of throughput; also return why the others of them cannot be scored, by id."""
    scores: list[SpeedScore] = []
    unused: dict[str, str] = {}
    for row in rows:
        if row.quantity not in QUANTITIES:
            continue
        score = _score(row)
        if isinstance(score, Unused):
            unused[row.id] = score.reason
        else:
            scores.append(score)
    return tuple(_calibrated(score, scores) for score in scores), unused


def _score(row: Row) -> SpeedScore | Unused:
    if not row.measured:
        return Unused(reason=f"{row.kind or 'not measured'}: nobody ran it")
    setup = setup_of(row)
    if isinstance(setup, Unused):
        return setup
    try:
        factor = factor_of(row.quantity, row.unit)
    except TooLittle as missing:
        return Unused(reason=str(missing))
    if row.quantity == "step_time" and setup.pp > 1 and not _BATCH.search(row.layout):
        return Unused(reason="the time of a step of unknown length: no global batch")
    setup = replace(setup, interconnect=setup.interconnect or _network(row))
    published = rate_of(replace(row, value=factor * row.value), setup)
    if not published:
        return Unused(reason=f"{row.value:g} is no throughput")
    predicted = speed_of(setup).tokens_per_s_per_gpu.likely
    return SpeedScore(row=row, setup=setup, published=published, predicted=predicted)


_BATCH = re.compile(r"\b(gas|gbs)=")
_NICS = re.compile(
    r"(?<!\d)(\d{1,6}) ?x ?(\d{1,6}) ?Gb(?:ps|/s|it)? (RoCE|EFA|Ethernet|IB)", re.IGNORECASE
)


def _network(row: Row) -> str | None:
    """Return the network that the note of a row names, as in `4x100Gb RoCE per node`."""
    said = _NICS.search(row.note)
    if said is None:
        return None
    kind = "roce" if said[3].lower() == "ib" else said[3].lower()
    return f"{kind}:gbit={said[2]},nics={said[1]}"


def rate_of(row: Row, setup: Setup) -> float:
    """Return what a row says as tokens per second and GPU; 0 where it says nothing.

    Its value is in seconds, tokens per second, TFLOP/s or percent: see `factor_of`.
    """
    value, gpus = row.value, setup.gpus
    if row.quantity == "step_time":
        return setup.tokens / gpus / value if value else 0.0
    in_tokens = {
        "tokens_per_s_per_gpu": 1.0,
        "tokens_per_s_total": 1 / gpus,
        "samples_per_s": setup.seq / gpus,
        "tflops_per_gpu": 1e12 / _flops(row, setup),
        "hfu_pct": _peak(setup) / 100 / hardware_flops(setup),
        "mfu_pct": _peak(setup) / 100 / needed_flops(setup),
    }
    return value * in_tokens[row.quantity]


def _flops(row: Row, setup: Setup) -> float:
    """Return the operations of a token as the source of the row counts them."""
    said = f"{row.basis} {row.note}".lower()
    again = "recompute" in said or "hardware" in said
    return hardware_flops(setup) if again else needed_flops(setup)


def _peak(setup: Setup) -> float:
    fp16 = setup.precision in {Precision.FP16, Precision.AMP_FP16}
    return (setup.gpu.fp16_tflops if fp16 else setup.gpu.half_tflops) * 1e12


def _calibrated(score: SpeedScore, scores: Sequence[SpeedScore]) -> SpeedScore:
    """Return `score` as it is after the nearest other run of that model and card was measured.

    A row of the same run says the same in another unit: it is not a measurement of another.
    """
    others = [
        other for other in scores if other.setup != score.setup and _same_machine(score, other)
    ]
    if not others:
        return score
    nearest = min(others, key=lambda other: _distance(score.setup, other.setup))
    measured = Calibration(
        utilisation_scale=utilisation_of(nearest.setup, nearest.step_s), measured_step=True
    )
    speed = speed_of(score.setup, calibration=measured)
    return replace(score, calibrated=speed.tokens_per_s_per_gpu.likely)


def _distance(one: Setup, other: Setup) -> float:
    """Return how much two runs of a model differ: in doublings, and in choices."""
    numbers = ("tp", "pp", "cp", "gpus", "seq", "micro_batch")
    choices = ("sharding", "precision", "checkpointing", "compiled", "offload_optimizer", "adapter")
    ratios: list[float] = [getattr(one, name) / getattr(other, name) for name in numbers]
    differing = [name for name in choices if getattr(one, name) != getattr(other, name)]
    return sum(abs(math.log2(ratio)) for ratio in ratios) + 2 * len(differing)


def _same_machine(score: SpeedScore, other: SpeedScore) -> bool:
    return (
        other.row.family == score.row.family
        and other.setup.gpu == score.setup.gpu
        and other.row.model == score.row.model
    )


def hardware_flops(setup: Setup) -> float:
    """Return the operations of one token as HFU counts them: what is computed again counts too.

    Full checkpointing repeats the forward pass (4/3, where weights are trained), selective that of
    attention (Korthikanti, arXiv:2205.05198, equations 7 to 9).
    """
    flops, forward = needed_flops(setup), model_flops(setup.model, setup.seq) / 3
    if setup.checkpointing is Checkpointing.FULL:
        return flops + forward
    if setup.checkpointing is Checkpointing.ALTERNATE:
        return flops + forward / 2
    if setup.checkpointing is Checkpointing.SELECTIVE:
        return flops + 4 * setup.model.layers * attention_width(setup.model) * setup.seq
    return flops
