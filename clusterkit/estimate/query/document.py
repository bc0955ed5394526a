"""The JSON document of `clusterkit estimate`; GB are 10^9 bytes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from clusterkit.core.records import picked
from clusterkit.estimate.advice.changes import lowering_settings, smallest_change
from clusterkit.estimate.advice.launch import Launch
from clusterkit.estimate.advice.recommend import Answer, Candidate, warnings_for
from clusterkit.estimate.machines.instances import break_even
from clusterkit.estimate.query.mixed import Mixed
from clusterkit.estimate.query.smallest import Smallest
from clusterkit.estimate.request import Request
from clusterkit.estimate.results import Interval, parts_of
from clusterkit.estimate.speed.step_time import bill_of

_OF_SETUP = ("dp", "tp", "pp", "cp", "micro_batch", "accumulation", "precision", "checkpointing")


def document(answer: Answer, *, launch: Launch | None = None) -> Mapping[str, Any]:
    """Return everything that the report says, and what starts the chosen strategy."""
    request, chosen, subject = answer.request, answer.chosen, answer.subject
    found: dict[str, Any] = {
        "strategies": [_strategy(one, request) for one in answer.candidates],
        "recommended": chosen.name if chosen else None,
        "why": answer.why,
        "refused": [
            {"strategy": refused.name, "reason": problem.message, "hint": problem.hint}
            for refused in answer.refused
            for problem in refused.problems
        ],
        "model": picked(request.model, "name", "params", "active_params"),
        "gpu": request.gpu.name,
        **picked(request, "gpus", "gpus_per_node", "seq", "micro_batch", "global_batch"),
        "limit_gb": _gb(subject.memory.limit),
        "assumed": answer.assumed,
        "measured": request.calibration.subject if request.calibration else None,
        "warnings": [problem.message for problem in warnings_for(subject)],
    }
    if request.explain:
        found["explain"] = {"strategy": subject.name, **_explained(subject)}
    if request.scale:
        found["scale"] = {"strategy": subject.name, "points": answer.points()}
    if request.tokens is not None:
        bill = bill_of(subject.setup, subject.speed, request.tokens, price=request.price)
        found["bill"] = {"strategy": subject.name, "bill": bill}
    power, kept = request.gpu.power, subject.speed.of_full_power
    if power is not None and kept is not None:
        found["power_limit"] = {
            "strategy": subject.name,
            **picked(power, "watts", "default_watts", "trainings"),
            "speed_ratio": _rounded(kept.likely),
            "speed_ratio_range": _range(kept),
            "energy_ratio_range": tuple(map(_rounded, power.energies)),
        }
    if request.instance is not None:
        found["instance"] = request.instance
    if request.owned is not None and request.price is not None:
        rent = request.gpus * request.price
        found["own_or_rent"] = break_even(request.owned, rent_per_hour=rent)
    if launch is not None:
        found["launch"] = {"command": shlex.join(launch.command), "files": launch.files}
    return found


def document_of_smallest(found: Smallest) -> Mapping[str, Any]:
    """Return the document for the smallest number of GPUs that is enough, and what was tried."""
    tried = [
        {
            "gpus": one.gpus,
            "recommended": one.chosen.name if one.chosen else None,
            "total_gb": _gb(one.answer.subject.memory.device.likely) if one.answer else None,
            "reason": one.reason,
        }
        for one in found.tries
    ]
    return {**document(found.answer), "tried": tried}


def document_of_mixed(found: Mixed) -> Mapping[str, Any]:
    """Return what two kinds of GPUs take of a step; no kind where no strategy fits on both."""
    request = found.request
    return {
        "model": picked(request.model, "name", "params", "active_params"),
        **picked(request, "gpus", "gpus_per_node", "seq", "global_batch"),
        "recommended": found.strategy,
        "why": found.why,
        "kinds": [
            {
                "gpu": share.setup.gpu.name,
                "gpus": gpus,
                "total_gb": _gb(share.memory.device.likely),
                "limit_gb": _gb(share.memory.limit),
                "step_s": _rounded(share.speed.step_s.likely),
                **picked(share.setup, *_OF_SETUP),
            }
            for (gpus, _), share in zip(found.kinds, found.shares, strict=False)
        ],
        "step_s": _rounded(found.step_s) if found.shares else None,
        "even_step_s": None if found.even_s is None else _rounded(found.even_s),
        "full": found.full,
        "assumed": found.assumed,
    }


def _strategy(one: Candidate, request: Request) -> Mapping[str, Any]:
    setup, memory, speed = one.setup, one.memory, one.speed
    change = (
        None if one.fits else smallest_change(setup, request.fits, per_node=request.gpus_per_node)
    )
    return {
        "strategy": one.name,
        "fits": one.fits,
        "memory_gb": {
            **{str(kind): _gb(amount) for kind, amount in parts_of(memory).items()},
            "total": _gb(memory.device.likely),
        },
        "comm_gb_per_step": _gb(speed.bytes_per_step),
        "step_s": _rounded(speed.step_s.likely),
        "tokens_per_s_per_gpu": _rounded(speed.tokens_per_s_per_gpu.likely),
        "mfu": _rounded(speed.mfu.likely),
        "step_s_range": _range(speed.step_s),
        "tokens_per_s_per_gpu_range": _range(speed.tokens_per_s_per_gpu),
        "mfu_range": _range(speed.mfu),
        "total_gb_range": _range(memory.device, 1e9),
        "allocated_gb": _gb(memory.allocated),
        "reserved_gb": _gb(memory.reserved.likely),
        "limit_gb": _gb(memory.limit),
        "host_gb": _gb(memory.host_bytes),
        "host_limit_gb": _gb(memory.host_limit),
        "nvme_gb": _gb(memory.nvme_bytes),
        "binding": {
            "phase": memory.peak.name,
            "tensor": memory.binding.name,
            "gb": _gb(memory.binding.bytes),
        },
        "peak_gb": {str(kind): _gb(amount) for kind, amount in memory.by_kind().items()},
        "phases_gb": {phase.name: _gb(phase.bytes) for phase in memory.phases},
        "smallest_change": change.flags if change else None,
        "settings_gb": {name: _gb(size) for name, size in lowering_settings(setup, memory).items()},
        **picked(setup, *_OF_SETUP),
    }


def _explained(one: Candidate) -> Mapping[str, Any]:
    phases = [
        {
            "phase": phase.name,
            "gb": _gb(phase.bytes),
            "terms": [
                {"name": term.name, "kind": term.kind, "gb": _gb(term.bytes)}
                | {"formula": term.formula, "source": term.source}
                for term in phase.terms
            ],
        }
        for phase in one.memory.phases
    ]
    return {"phases": phases, "transfers": one.speed.transfers}


def _gb(amount: float) -> float:
    return round(amount / 1e9, 3)


def _rounded(number: float) -> float:
    return float(f"{number:.5g}")


def _range(interval: Interval, unit: float = 1.0) -> tuple[float, float]:
    return _rounded(interval.low / unit), _rounded(interval.high / unit)
