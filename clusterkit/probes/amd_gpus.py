"""State of AMD GPUs: `rocm-smi --json`.

Written after the documented output of ROCm 5 and 6 (rocm_smi.py, `showProductName`, `showTemp`);
no recording of a whole answer was at hand, so only names that all of them share are read.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass

from clusterkit.probes.base import PreflightJob, Probe, Unparsed, first_line

# The answer is one line: it is broken up, because lines of a probe are cut at a few thousand bytes.
_SNIPPET = r"""has() { for d in /sys/bus/pci/devices/*; do
v='' c=''; { read -r v <"$d/vendor"; read -r c <"$d/class"; } 2>/dev/null
case "$v $c" in '0x1002 0x0302'* | '0x1002 0x0380'* | '0x1002 0x12'*) return 0 ;; esac
done; return 1; }
PATH=$PATH:/opt/rocm/bin
command -v rocm-smi >/dev/null 2>&1 || {
has || { echo 'no AMD GPU'; exit 77; }
echo 'rocm-smi is not on PATH, though there is an AMD GPU' >&2; exit 127; }
said=$(rocm-smi --showproductname --showdriverversion --showtemp --json 2>/dev/null) || {
c=$?; has || { echo 'no AMD GPU'; exit 77; }; exit "$c"; }
printf '%s\n' "$said" | awk '{ gsub(/", "/, "\",\n\""); gsub(/\}, "/, "},\n\""); print }'
"""
_NO_GPU_JOB = "echo 'the job uses no GPU'; exit 77\n"
_CARD = re.compile(r"card(\d{1,4})")


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdGpu:
    """One AMD GPU; None is "rocm-smi does not say"."""

    index: int
    name: str | None
    junction_c: float | None
    """Temperature of the hottest spot of the die; of its edge where there is no such sensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdGpus:
    """The AMD GPUs of a node."""

    driver: str | None
    gpus: tuple[AmdGpu, ...]


def parse(text: str) -> AmdGpus:
    """Read `rocm-smi --json`, before which it may have printed warnings."""
    start = text.find("{")
    try:
        document, _ = json.JSONDecoder().raw_decode(text[max(start, 0) :])
        cards = {
            int(found[1]): {str(k).lower(): str(v) for k, v in values.items()}
            for key, values in document.items()
            if (found := _CARD.fullmatch(key))
        }
        system = document.get("system", {})
        driver = system.get("Driver version")
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise Unparsed(f"no JSON of rocm-smi: {first_line(text)[:60]!r}") from None
    if not cards:
        raise Unparsed("no card in the JSON of rocm-smi")
    return AmdGpus(
        driver=None if driver is None else str(driver),
        gpus=tuple(
            AmdGpu(
                index=index,
                name=_said(card, "card series", "card model"),
                junction_c=_degrees(card),
            )
            for index, card in sorted(cards.items())
        ),
    )


def _said(card: dict[str, str], *names: str) -> str | None:
    for name in names:
        value = card.get(name, "").strip()
        if value and value not in {"N/A", "None"}:
            return value
    return None


def _degrees(card: dict[str, str]) -> float | None:
    said = _said(card, "temperature (sensor junction) (c)", "temperature (sensor edge) (c)")
    if said is None:
        return None
    try:
        degrees = float(said)
    except ValueError:
        degrees = math.nan
    if not math.isfinite(degrees):
        raise Unparsed(f"no temperature: {said[:40]!r}")
    return degrees


def _command(job: PreflightJob) -> str:
    return _NO_GPU_JOB if job.uses_gpus is False else _SNIPPET


PROBE = Probe(name="amd-gpus", command=_command, parse=parse, timeout_s=20.0, lane="amd")
