"""Read how fast a script trains from the lines that it prints (docs/how-to/bench-scaling.md)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from clusterkit.escapes import ESCAPES

LINE = "step 60 samples/s 431.2"
"""A line that tells it: `samples/s N` or `tokens/s N`, of all slots, and the step if it has one."""

Unit = Literal["samples", "tokens", "steps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """What one line tells of the speed of training."""

    rate: float
    """`unit` per second, above zero; of the whole job, unless `per_slot`."""
    unit: Unit
    """Steps, where the line says nothing of the batch."""
    step: int | None = None
    average: bool = False
    """An average since the start, which holds the slow first steps as well."""
    per_slot: bool = False
    """The rate is that of one slot, as torchtitan prints it."""


def read(line: str) -> Throughput | None:
    """Return what a line of a log tells of the throughput; None where it tells nothing of it.

    Colours and what a launcher puts before the line (`[node-0] `, `[rank0]:`, `0: `) do no harm.
    Of a progress bar, whose states follow each other in one line, the last state counts. Rates of
    evaluation, of loading and of anything that is no training are passed over.
    """
    for piece in reversed(ESCAPES.sub("", line[-_LONGEST:]).split("\r")):
        for reader in _READERS:
            found = reader(piece)
            if found is not None:
                return found
    return None


_LONGEST = 4096
"""Characters at the end of a line that are looked at; more is no line of a trainer."""
_NUMBER = r"(?P<n>\d[\d,]{0,20}(?:\.\d*)?(?:[eE][+-]?\d+)?)(?![\w.])"
_DECIMAL = r"(?<![\d.])\d+(?:\.\d+)?"
"""Of no part of `2.32.31`, as two bars leave it that write into each other."""
_PER_S = r"(?:/s(?:ec(?:ond)?)?|[_ ]per[_ ]sec(?:ond)?)"
_NOUN = r"(?<![A-Za-z_/-])(?P<noun>samples|examples|sequences|images|imgs?|tokens|toks?)"
_STEP = re.compile(
    r"(?<![\w-])(?:global_?step|steps?|iteration|iter)\b\s*[:=]?\s*(\d{1,18})(?!\d)", re.IGNORECASE
)


def _made(
    number: str, unit: Unit, line: str, *, average: bool = False, per_slot: bool = False
) -> Throughput | None:
    rate = float(number.replace(",", ""))
    if not (rate > 0 and math.isfinite(rate)):
        return None  # nothing is measured yet
    step = _STEP.search(line)
    return Throughput(
        rate=rate,
        unit=unit,
        step=int(step[1]) if step else None,
        average=average,
        per_slot=per_slot,
    )


# transformers/trainer_utils.py, speed_metrics: once, at the end; newer versions print texts
_TRAINER = re.compile(r"'?train_(samples|tokens|steps)_per_second'?\s*[:=]\s*'?" + _NUMBER)


def _trainer(line: str) -> Throughput | None:
    rates: Mapping[str, str] = {match[1]: match["n"] for match in _TRAINER.finditer(line)}
    units: tuple[Unit, ...] = ("samples", "tokens", "steps")
    for unit in units:
        if unit in rates:
            return _made(rates[unit], unit, line, average=True)
    return None


# deepspeed/utils/timer.py, ThroughputTimer.stop; older versions print `SamplesPerSec=` alone
_DEEPSPEED = re.compile(r"\b(?P<kind>Curr|RunningAvg|)SamplesPerSec=" + _NUMBER)


def _deepspeed(line: str) -> Throughput | None:
    rates = {match["kind"]: match["n"] for match in _DEEPSPEED.finditer(line)}
    for kind in ("Curr", "", "RunningAvg"):
        if kind in rates:
            return _made(rates[kind], "samples", line, average=kind == "RunningAvg")
    return None


# megatron/training/training.py, training_log
_MEGATRON = re.compile(r"elapsed time per iteration \(ms\):\s*" + _NUMBER)
_GLOBAL_BATCH = re.compile(r"global batch size:\s*(\d{1,18})(?!\d)")


def _megatron(line: str) -> Throughput | None:
    elapsed = _MEGATRON.search(line)
    ms = float(elapsed["n"].replace(",", "")) if elapsed else 0.0
    if ms <= 0:
        return None
    batch = _GLOBAL_BATCH.search(line)
    samples = int(batch[1]) if batch else 0
    rate = f"{(samples or 1) * 1000 / ms:.9g}"
    return _made(rate, "samples" if samples else "steps", line)


_NAMED = re.compile(_NOUN + _PER_S + r"['\"]?[\s:=]+" + _NUMBER, re.IGNORECASE)
_NAMED_BEHIND = re.compile(
    r"(?<![\w.])" + _NUMBER + r"\s*" + _NOUN + _PER_S + r"(?!\w)", re.IGNORECASE
)
_BAR = re.compile(r"\[[\d:]+[<,]")
"""Of a progress bar in samples: data sets print those while they prepare data."""


def _named(line: str) -> Throughput | None:
    found = _NAMED.search(line) or (None if _BAR.search(line) else _NAMED_BEHIND.search(line))
    if found is None:
        return None
    unit: Unit = "tokens" if found["noun"].lower().startswith("tok") else "samples"
    return _made(found["n"], unit, line)


# torchtitan/components/metrics.py: "tps" are tokens per second and device
_TITAN = re.compile(r"\bstep:\s*\d+\b.*\btps:\s*" + _NUMBER)


def _titan(line: str) -> Throughput | None:
    found = _TITAN.search(line)
    return _made(found["n"], "tokens", line, per_slot=True) if found else None


# nanoGPT: "iter 10: loss 2.5, time 123.45ms, mfu 12.3%"; others: "dt: 123.4ms", "98 ms/iter"
_MS = re.compile(
    r"\b(?:iter|step)[\s:=]*\d+\b.*?"
    rf"(?:(?:\btime|\bdt|step_avg)[\s:=]*(?P<ms>{_DECIMAL})\s*ms\b"
    rf"|\b(?P<each>{_DECIMAL})\s*ms/(?:iter|it|step)\b)",
    re.IGNORECASE,
)


def _milliseconds(line: str) -> Throughput | None:
    found = _MS.search(line)
    ms = float(found["ms"] or found["each"]) if found else 0.0
    return _made(f"{1000 / ms:.9g}", "steps", line) if ms > 0 else None


# tqdm's bars, as the Trainer and Lightning draw them, and Lightning's own by rich
_TQDM = re.compile(rf"(?P<n>{_DECIMAL})(?P<how>it/s|s/it)\b")
_PLACE = re.compile(r"(?<!\d)(?P<step>\d{1,18})/(?:\d+|\?|--)\s")
_NO_TRAINING = re.compile(
    r"(?i)\b(valid|test|predict|sanity|eval|load|download|generat|map|filter|token|sav|fetch|"
    r"shard|cach|compil)"
)


def _bar(line: str) -> Throughput | None:
    found = _TQDM.search(line)
    places = tuple(_PLACE.finditer(line, 0, found.start())) if found else ()
    if found is None or not places or _NO_TRAINING.search(line[: places[-1].start()]):
        return None
    number = float(found["n"])
    rate = number if found["how"] == "it/s" or not number else 1 / number
    if not (rate > 0 and math.isfinite(rate)):
        return None
    return Throughput(rate=rate, unit="steps", step=int(places[-1]["step"]))


_READERS: tuple[Callable[[str], Throughput | None], ...] = (
    _trainer,
    _deepspeed,
    _megatron,
    _named,
    _titan,
    _milliseconds,
    _bar,
)
"""What knows most of the batch comes first: a line may hold samples/s and ms as well."""
