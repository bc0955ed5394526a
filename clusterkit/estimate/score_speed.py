"""Published throughput against `speed_of`: with nothing measured, and with one row as measurement.

Every figure is turned into tokens per second and GPU first, so that a step time, an MFU and a
throughput of the same run err by the same part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from clusterkit.estimate.calibration import Calibration
from clusterkit.estimate.flops import hardware_flops, model_flops
from clusterkit.estimate.setup import Precision, Setup
from clusterkit.estimate.speed import speed_of
from clusterkit.estimate.truth import Row, Unused, setup_of

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
    setup = setup_of(row)
    if isinstance(setup, Unused):
        return setup
    published = rate_of(row, setup)
    if not published:
        return Unused(reason=f"{row.value:g} is no throughput")
    predicted = speed_of(setup).tokens_per_s_per_gpu.likely
    return SpeedScore(row=row, setup=setup, published=published, predicted=predicted)


def rate_of(row: Row, setup: Setup) -> float:
    """Return what a row says as tokens per second and GPU."""
    value, gpus = row.value, setup.gpus
    match row.quantity:
        case "tokens_per_s_per_gpu":
            return value
        case "tokens_per_s_total":
            return value / gpus
        case "samples_per_s":
            return value * setup.seq / gpus
        case "step_time":
            return setup.tokens / gpus / value if value else 0.0
        case "tflops_per_gpu":
            return value * 1e12 / _flops(row, setup)
        case "hfu_pct":
            return value / 100 * _peak(setup) / hardware_flops(setup)
        case _:
            return value / 100 * _peak(setup) / model_flops(setup.model, setup.seq)


def _flops(row: Row, setup: Setup) -> float:
    """Return the operations of a token as the source of the row counts them."""
    said = f"{row.basis} {row.note}".lower()
    again = "recompute" in said or "hardware" in said
    return hardware_flops(setup) if again else model_flops(setup.model, setup.seq)


def _peak(setup: Setup) -> float:
    fp16 = setup.precision in {Precision.FP16, Precision.AMP_FP16}
    return (setup.gpu.fp16_tflops if fp16 else setup.gpu.half_tflops) * 1e12


def _calibrated(score: SpeedScore, scores: Sequence[SpeedScore]) -> SpeedScore:
    """Return `score` as it is after the first other run of the same model and card was measured.

    A row of the same run says the same in another unit: it is no measurement of another.
    """
    for other in scores:
        if other.setup != score.setup and _same_machine(score, other):
            measured = Calibration(
                utilisation_scale=utilisation_scale(other.setup, other.published),
                measured_step=True,
            )
            speed = speed_of(score.setup, calibration=measured)
            return replace(score, calibrated=speed.tokens_per_s_per_gpu.likely)
    return score


def _same_machine(score: SpeedScore, other: SpeedScore) -> bool:
    return (
        other.row.family == score.row.family
        and other.setup.gpu == score.setup.gpu
        and other.row.model == score.row.model
    )


def utilisation_scale(setup: Setup, tokens_per_s_per_gpu: float) -> float:
    """Return the factor on computing with which a setup reaches a measured throughput."""
    low, high = 0.05, 20.0
    for _ in range(40):
        middle = (low * high) ** 0.5
        speed = speed_of(setup, calibration=Calibration(utilisation_scale=middle))
        if speed.tokens_per_s_per_gpu.likely < tokens_per_s_per_gpu:
            low = middle
        else:
            high = middle
    return (low * high) ** 0.5
