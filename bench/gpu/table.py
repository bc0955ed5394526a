"""What was measured beside what `estimate` says: a table, and how far off it is."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.gpu.matrix import OUT_OF_MEMORY, RAN, Result
from bench.gpu.rows import measured, memory_of_run
from clusterkit.core.errors import UserError
from clusterkit.estimate.calibrate import calibrate
from clusterkit.estimate.factors import Calibration
from clusterkit.estimate.results import GIB
from clusterkit.estimate.speed.step_time import speed_of

COLUMNS = (
    *("id", "model", "strategy", "precision", "checkpointing", "micro_batch", "seq", "optimizer"),
    *("compile", "outcome", "fits", "allocated_gib", "estimated_gib", "allocated_error"),
    *("reserved_gib", "estimated_reserved_gib", "reserved_error", "step_s", "estimated_s"),
    *("step_error", "fullest"),
)
NO_GPU = "no GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One run beside its estimate; None for what there is none of."""

    result: Result
    fits: bool | None = None
    """Whether the estimate says, with its usual margin, that it fits."""
    fullest: str = ""
    """The fullest moment and its largest tensor."""
    allocated: tuple[float, float] | None = None
    """Measured and estimated, in bytes."""
    reserved: tuple[float, float] | None = None
    step_s: tuple[float, float] | None = None
    """The same in seconds, after one calibration."""
    calibrates: bool = False
    """Whether this run is the one that steps are calibrated by."""

    @property
    def false_fit(self) -> bool:
        """Whether it ran out of memory where the estimate is confident."""
        return self.result.outcome == OUT_OF_MEMORY and bool(self.fits)


def error_of(pair: tuple[float, float]) -> float:
    """Return estimated over measured, less 1."""
    return pair[1] / pair[0] - 1


def lines_of(results: Sequence[Result], gpu: str | None) -> tuple[Line, ...]:
    """Return the runs beside their estimates; the first that can calibrates the steps of all."""
    if gpu is None:
        return tuple(Line(result=result) for result in results)
    calibration, by = _calibrated(results)
    return tuple(_line(one, gpu, calibration, calibrates=one is by) for one in results)


def _calibrated(results: Sequence[Result]) -> tuple[Calibration, Result | None]:
    for result in results:
        if result.outcome == RAN:
            only_step = {name: result.figures[name] for name in ("gpu", "step_s")}
            try:
                found = calibrate(measured(result.row, only_step))
            except UserError:  # a step that waits for kernels says nothing of others
                continue
            if found.measured_step:
                return found, result
    return Calibration(), None


def _line(result: Result, gpu: str, calibration: Calibration, *, calibrates: bool) -> Line:
    try:
        setup = measured(result.row, {"gpu": gpu}).setup
    except UserError:
        return Line(result=result)
    memory = memory_of_run(result.row, setup)
    said = {"fits": memory.fits, "fullest": f"{memory.peak.name}, {memory.binding.name}"}
    if result.outcome != RAN:
        return Line(result=result, **said)  # type: ignore[arg-type]
    figures = result.figures
    return Line(
        result=result,
        allocated=(figures["allocated_bytes"], memory.allocated),
        reserved=(figures["reserved_bytes"], memory.reserved.likely),
        step_s=(figures["step_s"], speed_of(setup, calibration=calibration).step_s.likely),
        calibrates=calibrates,
        **said,  # type: ignore[arg-type]
    )


def tsv(lines: Sequence[Line]) -> str:
    """Return the table as tab-separated values."""
    return "".join("\t".join(cells) + "\n" for cells in (COLUMNS, *map(_cells, lines)))


def _cells(line: Line) -> tuple[str, ...]:
    row, ran = line.result.row, line.result.outcome == RAN
    absent = NO_GPU if ran and line.allocated is None else "-"
    step = [f"{line.result.figures['step_s']:.4f}" if ran else "-", absent, absent]
    if line.step_s is not None:
        step = [f"{line.step_s[0]:.4f}", *_second(line.step_s, 1.0, 4)]
        step[2] = "calibrates" if line.calibrates else step[2]
    return (
        *(str(getattr(row, name)) for name in COLUMNS[:8]),
        "yes" if row.compile else "no",
        line.result.outcome,
        {True: "yes", False: "no", None: absent}[line.fits],
        *_three(line.allocated, absent),
        *_three(line.reserved, absent),
        *step,
        line.fullest or absent,
    )


def _three(pair: tuple[float, float] | None, absent: str) -> tuple[str, ...]:
    return (absent,) * 3 if pair is None else (f"{pair[0] / GIB:.2f}", *_second(pair, GIB, 2))


def _second(pair: tuple[float, float], unit: float, digits: int) -> tuple[str, str]:
    return f"{pair[1] / unit:.{digits}f}", f"{error_of(pair):+.1%}"


def summary(lines: Sequence[Line]) -> dict[str, Any]:
    """Return how far off the estimates are: median and worst error, and false fits, by run."""
    parts: Mapping[str, Callable[[Line], tuple[float, float] | None]] = {
        "allocated": lambda line: line.allocated,
        "reserved": lambda line: line.reserved,
        "step": lambda line: None if line.calibrates else line.step_s,
    }
    found: dict[str, Any] = {
        "runs": len(lines),
        "ran": sum(line.result.outcome == RAN for line in lines),
        "false_fits": [line.result.row.id for line in lines if line.false_fit],
    }
    for name, part in parts.items():
        errors = {line.result.row.id: error_of(pair) for line in lines if (pair := part(line))}
        if errors:
            worst = max(errors, key=lambda one: abs(errors[one]))
            found[name] = {
                "median_abs_error": statistics.median(map(abs, errors.values())),
                "worst": {"id": worst, "error": errors[worst]},
            }
    return found


def markdown(lines: Sequence[Line], gpu: str | None) -> str:
    """Return summary and table as a page."""
    return "\n".join(_page(lines, gpu)) + "\n"


def _page(lines: Sequence[Line], gpu: str | None) -> Iterator[str]:
    found = summary(lines)
    yield f"# Training runs against `estimate`: {gpu or NO_GPU}"
    yield ""
    yield f"{found['ran']} of {found['runs']} ran."
    for name in ("allocated", "reserved", "step"):
        if name in found:
            worst = found[name]["worst"]
            median, most = found[name]["median_abs_error"], worst["error"]
            yield f"- {name}: median error {median:.1%}, worst {most:+.1%} ({worst['id']})"
    yield f"- confident fits that ran out of memory: {' '.join(found['false_fits']) or 'none'}"
    yield ""
    yield "| " + " | ".join(COLUMNS) + " |"
    yield "|" + " --- |" * len(COLUMNS)
    yield from ("| " + " | ".join(_cells(line)) + " |" for line in lines)
