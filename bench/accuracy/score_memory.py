"""Published memory against `memory_of`, each figure against what its source measured.

A figure of `max_memory_allocated` is compared with the tensors of the peak, one of
`max_memory_reserved` with what the allocator takes, one of `nvidia-smi` with the whole process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from clusterkit.estimate.memory.phases import memory_of
from clusterkit.estimate.memory.states import (
    bytes_of,
    frozen_bytes,
    on_gpu,
    shares_of,
    stages_of,
)
from clusterkit.estimate.results import GIB, Kind, Memory
from clusterkit.estimate.setup import Setup

from .habits import HABITS, Habits, habits_of
from .truth import Row, Unused, setup_of
from .truth_model import TooLittle
from .units import factor_of

QUANTITIES = frozenset({"mem_per_gpu", "act_mem_per_gpu", "mem_resident_per_gpu"})
_GUESSED = ("micro batch", "computed again")
"""What must not be assumed of a run that is to show whether something fits."""


class Basis(StrEnum):
    """What a published figure counts."""

    ALLOCATED = "allocated"
    RESERVED = "reserved"
    OTHER = "other"
    """`nvidia-smi`, or a peak that nobody says more of."""
    ANALYTIC = "analytic"
    """The result of a formula, of states or activations alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryScore:
    """One published figure beside its estimate, in bytes."""

    row: Row
    setup: Setup
    basis: Basis
    published: float
    predicted: float
    peak: str
    """The fullest moment and its largest tensor."""

    @property
    def error(self) -> float:
        """Predicted over published, less 1."""
        return self.predicted / self.published - 1

    @property
    def doubt(self) -> str:
        """What may be behind an error: what the row leaves open, else where the peak is."""
        guesses = [f"assumed {what}" for what in self.setup.model.assumed]
        if any(word in self.row.note for word in ("inferred", "assumed", "taken from")):
            guesses.append(self.row.note)
        return "; ".join([*guesses, f"peak: {self.peak}"])


def score_memory(
    rows: Iterable[Row], known: Mapping[str, Habits] = HABITS
) -> tuple[tuple[MemoryScore, ...], Mapping[str, str]]:
    """Score the rows of memory; also return why the others of them cannot be scored, by id.

    `known` are the habits of programs that complete rows: none of them shows what an estimate of
    a program that nobody has read is worth.
    """
    scores: list[MemoryScore] = []
    unused: dict[str, str] = {}
    for row in rows:
        if row.quantity not in QUANTITIES:
            continue
        score = Unused(reason=row.flaw) if row.flaw else _score(row, known)
        if isinstance(score, Unused):
            unused[row.id] = score.reason
        else:
            scores.append(score)
    return tuple(scores), unused


def _score(row: Row, known: Mapping[str, Habits]) -> MemoryScore | Unused:
    if "resident" in row.quantity:
        return Unused(reason="what it counts is a guess of the table")
    if not row.measured and "deepspeed" in row.source.lower():
        return Unused(reason="the output of another estimator")
    if not row.value:
        return Unused(reason="no bytes")
    try:
        published = published_bytes(row)
    except TooLittle as missing:
        return Unused(reason=str(missing))
    setup = setup_of(row, known)
    if isinstance(setup, Unused):
        return setup
    logged = habits_of(row.source, known).logs_rank_0
    memory = memory_of(setup, first_stage=logged)
    return MemoryScore(
        row=row,
        setup=setup,
        basis=basis_of(row),
        published=published,
        predicted=_predicted(row, setup, memory),
        peak=f"{memory.peak.name}, {memory.binding.name}",
    )


def basis_of(row: Row) -> Basis:
    """Return what the figure of a row counts, by the words of its source."""
    said = row.basis.lower()
    if not row.measured:
        return Basis.ANALYTIC
    if "allocated" in said:
        return Basis.ALLOCATED
    return Basis.RESERVED if "reserved" in said else Basis.OTHER


def published_bytes(row: Row) -> float:
    """Return the figure of a row in bytes.

    `nvidia-smi` counts in MiB, whatever is written behind the figure; programs that print GB
    divide by 10^9.

    Raises:
        TooLittle: its unit is not known.
    """
    factor = factor_of(row.quantity, row.unit)
    if "nvidia-smi" in row.basis.lower():
        factor = {1e6: GIB / 1024, 1e9: float(GIB)}.get(factor, factor)
    return row.value * factor


def _predicted(row: Row, setup: Setup, memory: Memory) -> float:
    said = row.basis.lower()
    if not row.measured:
        forward = next(phase for phase in memory.phases if phase.name == "forward")
        kept = sum(term.bytes for term in forward.terms if term.kind is Kind.ACTIVATIONS)
        return kept if row.quantity.startswith("act") else model_state_bytes(setup)
    if "nvidia-smi" in said:
        return memory.device.likely
    tensors = any(word in said for word in ("allocated", "peak", "active"))
    return memory.allocated if tensors else memory.reserved.likely


@dataclass(frozen=True, slots=True, kw_only=True)
class FitScore:
    """One run, whether it fitted its GPU, and whether the estimate says so."""

    row: Row
    setup: Setup
    fitted: bool
    memory: Memory

    @property
    def false_fit(self) -> bool:
        """Whether it ran out of memory where the estimate sees enough."""
        return self.memory.fits and not self.fitted

    @property
    def false_misfit(self) -> bool:
        """Whether it ran where the estimate, with the default margin, sees too little memory."""
        return self.fitted and not self.memory.fits

    @property
    def beyond_card(self) -> bool:
        """Whether it ran where the estimate is larger than the GPU itself, without a margin."""
        return self.fitted and self.memory.device.likely > self.setup.gpu.usable_bytes


def score_fits(rows: Iterable[Row]) -> tuple[FitScore, ...]:
    """Return what is known of fitting: whoever published a figure had enough memory.

    Each setup once, and only those with the micro batch and the checkpointing given.
    """
    found: dict[tuple[Setup, bool], FitScore] = {}
    for row in rows:
        setup = setup_of(row) if row.measured else None
        if setup is None or isinstance(setup, Unused):
            continue
        if any(word in what for what in setup.model.assumed for word in _GUESSED):
            continue
        fitted = row.quantity != "fits" or bool(row.value)
        if (setup, fitted) not in found:
            memory = memory_of(setup)
            score = FitScore(row=row, setup=setup, fitted=fitted, memory=memory)
            found[(setup, fitted)] = score
    return tuple(found.values())


def model_state_bytes(setup: Setup) -> float:
    """Return the bytes of parameters, gradients and optimizer states of the fullest rank.

    As the ZeRO paper and Megatron's table count them: nothing that is there for a moment.
    """
    each, shares = bytes_of(setup), shares_of(setup)
    gpu_optimizer, gpu_params = on_gpu(setup.offload_optimizer), on_gpu(setup.offload_params)
    largest = max(stages_of(setup), key=lambda held: held.params)
    params = each.params * largest.kept_trained(shares.params) * gpu_params
    # DeepSpeed moves gradients to where the optimizer is.
    gradients = each.gradients * largest.kept_trained(shares.gradients) * gpu_optimizer
    optimizer = each.optimizer * largest.kept_trained(shares.optimizer) * gpu_optimizer
    return params + gradients + optimizer + frozen_bytes(largest) * gpu_params
