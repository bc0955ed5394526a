"""Error counters of NVLinks, and for how long they can have counted: `nvidia-smi nvlink -e`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from clusterkit.core.data import read_snippet
from clusterkit.preflight.probes.gpu.nvidia import nvidia_probe
from clusterkit.preflight.probes.gpu.nvidia_nvlink import MESSAGES, split_gpus
from clusterkit.preflight.probes.net.pairs import read_lines, whole_number
from clusterkit.transport.probe import Unparsed, first_line

ERRORS = frozenset(
    {
        "Replay Errors", "Recovery Errors", "CRC Errors", "Malformed packet Errors",
        "Buffer overrun Errors", "Rx Errors", "Rx remote Errors", "Local link integrity Errors",
        "Link recovery failed events", "Effective Errors",
    }
)  # fmt: skip
"""Up to Hopper the first three. Those of Blackwell that count what correction copes with (symbol
and FEC errors), and plain traffic, are left out."""

_UP = re.compile(r"up (\d{1,12}(?:\.\d{1,3})?)")
_COUNTER = re.compile(r"Link (\d{1,4}): ([A-Za-z][\w ./-]*?): (\S+)(?: .*)?")
_COUNTED = re.compile(r"counters (\d{1,6})")


@dataclass(frozen=True, slots=True, kw_only=True)
class NvlinkErrors:
    """What one GPU has counted; None where the driver does not count on it."""

    index: int
    links: tuple[tuple[int, int], ...] | None
    """Number of a link and its errors, where there are any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvlinkErrorLog:
    """The counters of a node."""

    hours: float
    """Since boot; the counters begin then, or later, when the driver was loaded."""
    gpus: tuple[NvlinkErrors, ...]


def parse(text: str) -> NvlinkErrorLog:
    """Read what the snippet prints."""
    head, *lines = read_lines(text) or [""]
    up = _UP.fullmatch(head)
    if up is None:
        raise Unparsed(f"no time since boot: {first_line(head)[:60]!r}")
    gpus = tuple(_gpu(index, said) for index, _, said in split_gpus("\n".join(lines)))
    return NvlinkErrorLog(hours=float(up[1]) / 3600, gpus=gpus)


@lru_cache(maxsize=1 << 12)
def _gpu(index: int, text: str) -> NvlinkErrors:
    """Read what stands below the line of one GPU; thousands of them say the same."""
    lines = [said for line in text.splitlines() if (said := line.strip())]
    counted = _COUNTED.fullmatch(lines[-1]) if lines else None
    if counted is None:
        raise Unparsed("the number of counters is missing")
    body = lines[:-1]
    if not int(counted[1]):
        said = " ".join(body).lower()
        if body and not any(words in said for words, _ in MESSAGES):
            raise Unparsed(f"no counter: {first_line(body[0])[:60]!r}")
        return NvlinkErrors(index=index, links=None)
    errors: dict[int, int] = {}
    for line in body:
        counter = _COUNTER.fullmatch(line)
        if counter is None:
            raise Unparsed(f"no counter: {first_line(line)[:60]!r}")
        if counter[2] in ERRORS:
            errors[int(counter[1])] = errors.get(int(counter[1]), 0) + whole_number(counter[3])
    return NvlinkErrors(index=index, links=tuple(errors.items()))


PROBE = nvidia_probe("nvidia-nvlink-errors", read_snippet("nvidia_nvlink_errors"), parse)
