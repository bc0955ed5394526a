"""Read how fast a script trains from the lines that it prints (docs/how-to/bench-scaling.md)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from clusterkit.core.text import ESCAPES

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


def step_of(line: str) -> int | None:
    """Return the step that a line of the training tells, with or without a rate; None for none."""
    if not _STEP_WORD.search(line):
        return None
    text = ESCAPES.sub("", line[-_LONGEST:]).rpartition("\r")[2]
    found = read(text)
    if found is not None:
        return found.step
    step = _STEP.search(text)
    return int(step[1]) if step and not _is_evaluation(text, step.start()) else None


_LONGEST = 4096
"""Characters at the end of a line that are looked at; more is no line of a trainer."""
_DIGITS = r"(?P<n>\d[\d,]{0,20}(?:\.\d*)?(?:[eE][+-]?\d+)?)"
_END = r"(?![\w.]|,\d)"
_NUMBER = _DIGITS + _END
_SCALED = rf"{_DIGITS}(?P<times>(?-i:[kKMGT]|\s[kKMGT](?!\w|\s*[:=\d])))?{_END}"
"""With a suffix perhaps, `12.3K` or `1.2 M`; in `12 T 5` and `12 T=5`, T is another figure."""
_TIMES = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_DECIMAL = r"(?<![\d.])\d+(?:\.\d+)?"
"""Of no part of `2.32.31`, as two bars leave it that write into each other."""
_PER_S = r"(?:/s(?:ec(?:ond)?)?|[_ ]per[_ ]sec(?:ond)?)"
_SLOT = r"(?:\s*/\s*|[_ ]\(?per[_ -])(?:gpu|device|rank|slot)(?![^\W_])\)?"
_NOUN = (
    r"(?<![A-Za-z_/-])(?:valid[_ ](?=tok))?"
    r"(?P<noun>samples|examples|sequences|images|imgs?|tokens|toks?)"
)
"""Valid tokens are those of a batch that are no padding."""
_NOUN_PER_S = rf"{_NOUN}(?P<slot>{_SLOT})?{_PER_S}(?P<each>{_SLOT})?"
_STEP = re.compile(
    r"(?<![\w-])(?:global_?step|steps?|iteration|iter)\b['\"]?\s*+(?:[:=]\s*+)?['\"]?(\d{1,18})(?!\d)",
    re.IGNORECASE,
)
"""Of a dict or JSON as well: `{'step': 60, ...}`."""
_STEP_WORD = re.compile(r"(?i)step|iter|\d/\d|/--")
_EVALUATION = (
    r"(?<![\w./-])(?:validat[a-z]+|valid|val|eval(?:uat[a-z]+)?"
    r"|test(?:ed|ing)?|predict(?:ed|ing|ion)?|sanity)(?![^\W_])"
)
"""No part of a host's name: `gpu-test: `."""
_EVALUATED = re.compile(
    rf"{_EVALUATION}[\W_]{{0,4}}(?:(?:global_?)?(?:step|iter|iteration|batch)(?![A-Za-z])"
    r"|(?:(?:throughput|speed|rate|time|dt|tps)[\W_]{1,4})?\Z)",
    re.IGNORECASE,
)
_BEGINS_EVALUATION = re.compile(rf"[\W_]{{0,4}}{_EVALUATION}(?![\w=/-]|\.\w)", re.IGNORECASE)
"""But `val_loss 0.3` is a figure, which a line of the training may begin with as well."""
_PREFIX = re.compile(
    r"\s+|[-|:]\s|epoch\s\d{1,9}(?:/\d{1,9})?[:,]\s|\[(?!\s*(?:step|iter|epoch|\d+/))[^\]]*\]:?"
    r"|\d{4}[-/]\d\d[-/]\d\d(?:T[\d:.,+Z-]+)?|\d\d:\d\d:\d\d[\d.,]*"
    r"|[IWEF]\d{4} [\d:.]+ +\d+ \S+\]"
    r"|[\w.]+:[\w.<>]+:\d+(?=\s)|[\w.@-]+:|[a-z_][\w.]*\s{1,16}[-|]\s|(?:DEBUG|INFO|WARN(?:ING)?)\b",
    re.IGNORECASE,
)
"""What launchers, loggers and scripts put before a message: names, ranks, levels, times, epochs."""


def _is_evaluation(line: str, at: int) -> bool:
    """Tell whether the rate at `at` is one of evaluation.

    What the message begins with says so, or what stands right before its step or the rate.
    """
    start = 0
    while not _BEGINS_EVALUATION.match(line, start, at):
        prefix = _PREFIX.match(line, start, at)
        if prefix is None:
            return _EVALUATED.search(line, 0, at) is not None
        start = prefix.end()
    return True


def _made(
    number: str,
    unit: Unit,
    line: str,
    *,
    at: int = 0,
    times: float = 1,
    average: bool = False,
    per_slot: bool = False,
) -> Throughput | None:
    """Return what a number tells that begins at `at` of the line, or whose name does."""
    rate = float(number.replace(",", "")) * times
    if not (rate > 0 and math.isfinite(rate)) or _is_evaluation(line, at):
        return None  # nothing is measured yet, or no training
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
    rates = {match["kind"]: match for match in _DEEPSPEED.finditer(line)}
    for kind in ("Curr", "", "RunningAvg"):
        if kind in rates:
            found, average = rates[kind], kind == "RunningAvg"
            return _made(found["n"], "samples", line, at=found.start(), average=average)
    return None


# megatron/training/training.py, training_log
_MEGATRON = re.compile(r"elapsed time per iteration \(ms\):\s*" + _NUMBER)
_GLOBAL_BATCH = re.compile(r"global batch size:\s*(\d{1,18})(?!\d)")


def _megatron(line: str) -> Throughput | None:
    elapsed = _MEGATRON.search(line)
    if elapsed is None:
        return None
    ms = float(elapsed["n"].replace(",", ""))
    if ms <= 0:
        return None
    batch = _GLOBAL_BATCH.search(line)
    samples = int(batch[1]) if batch else 0
    rate = f"{(samples or 1) * 1000 / ms:.9g}"
    return _made(rate, "samples" if samples else "steps", line, at=elapsed.start())


_NAMED = re.compile(rf"{_NOUN_PER_S}['\"]?[\s:=]+{_SCALED}(?!\s*%)", re.IGNORECASE)
_VALUE = r"['\"]?\s*[:=]|\s+[-+~]?(?:\d(?![\d.]*\s*%)|(?:inf|infinity|nan|none|n/a)\b)"
_NAMED_BEHIND = re.compile(
    r"(?P<other>(?:step|iter|iteration|epoch|batch|rank|loss|lr|norm|acc|accuracy)s?[\s:=#]*[-+]?)?"
    rf"(?<![\w./]){_SCALED}(?<!,)\s*{_NOUN_PER_S}(?!\w|\s*/\s*[a-z]|\s*\(?per\b|{_VALUE})",
    re.IGNORECASE,
)
"""With `other`, the number is that of a step or loss, and the rate is what follows or nothing."""
_BAR = re.compile(r"\[[\d:]+[<,]")
"""Of a progress bar in samples: data sets print those while they prepare data."""


def _named(line: str) -> Throughput | None:
    found = list(_NAMED.finditer(line))
    if not found and not _BAR.search(line):
        found = [match for match in _NAMED_BEHIND.finditer(line) if match["other"] is None]
    for match in sorted(found, key=_of_slot):
        unit: Unit = "tokens" if match["noun"].lower().startswith("tok") else "samples"
        times = _TIMES[match["times"].strip().upper()] if match["times"] else 1
        per_slot, at = _of_slot(match), match.start()
        reading = _made(match["n"], unit, line, at=at, times=times, per_slot=per_slot)
        if reading is not None:
            return reading
    return None


def _of_slot(match: re.Match[str]) -> bool:
    return bool(match["slot"] or match["each"])


# torchtitan/components/metrics.py: "tps" are tokens per second and device
_TITAN = re.compile(r"\bstep:\s*\d+\b.*\btps:\s*" + _NUMBER)


def _titan(line: str) -> Throughput | None:
    found = _TITAN.search(line)
    if found is None:
        return None
    return _made(found["n"], "tokens", line, at=found.start("n"), per_slot=True)


# nanoGPT: "iter 10: loss 2.5, time 123.45ms, mfu 12.3%"; others: "dt: 123.4ms", "98 ms/iter"
_MS = re.compile(
    r"^(?>.*?\b(?:iter|step)[\s:=]*\d+\b).*?"
    rf"(?:(?:\btime|\bdt|step_avg)[\s:=]*(?P<ms>{_DECIMAL})\s*ms\b"
    rf"|\b(?P<each>{_DECIMAL})\s*ms/(?:iter|it|step)\b)",
    re.IGNORECASE,
)


def _milliseconds(line: str) -> Throughput | None:
    found = _MS.search(line)
    if found is None:
        return None
    name = "ms" if found["ms"] else "each"
    ms = float(found[name])
    at = found.start(name)
    return _made(f"{1000 / ms:.9g}", "steps", line, at=at) if ms > 0 else None


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
