"""NVLink of every GPU: `nvidia-smi nvlink -s`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from clusterkit.core.data import read_snippet
from clusterkit.core.untrusted import real
from clusterkit.preflight.probes.gpu.nvidia import nvidia_probe
from clusterkit.transport.probe import Unparsed, first_line

_BLOCKS = re.compile(r"^[ \t]*GPU (\d{1,4}): (.+) \(UUID: [^()\n]*\)[ \t\r]*$", re.MULTILINE)
_LINK = re.compile(r"Link (\d{1,4}): (?:([0-9.]+) GB/s|<inactive>)", re.IGNORECASE)


class NvlinkState(StrEnum):
    """What nvidia-smi says of a GPU in place of links."""

    LINKS = "links"
    ALL_INACTIVE = "all links are inactive"
    ABSENT = "no NVLink"
    MIG = "not told in MIG mode"


# In lower case, for they were spelt differently over the years ("NVLink", "Nvlink ... inActive").
MESSAGES = (
    ("all links are inactive", NvlinkState.ALL_INACTIVE),
    ("does not have or support nvlink", NvlinkState.ABSENT),
    ("nvlink queries are not supported for devices in mig mode", NvlinkState.MIG),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NvlinkGpu:
    """The links of one GPU."""

    index: int
    name: str
    state: NvlinkState
    gb_s: tuple[float, ...] = ()
    """Of each active link."""
    inactive: tuple[int, ...] = ()
    """Numbers of the links that are down."""

    @property
    def links(self) -> int:
        """Links that the GPU lists, active or not."""
        return len(self.gb_s) + len(self.inactive)


def parse(text: str) -> tuple[NvlinkGpu, ...]:
    """Read `nvidia-smi nvlink -s`, GPU by GPU."""
    return tuple(_gpu(index, name, links) for index, name, links in split_gpus(text))


def split_gpus(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield index and name of each GPU, and what `nvidia-smi nvlink` says below its line.

    Raises:
        Unparsed: there is no GPU, or something before the first.
    """
    before, *blocks = _BLOCKS.split(text)
    if before.strip():
        raise Unparsed(f"no GPU before {first_line(before)[:60]!r}")
    if not blocks:
        raise Unparsed("no GPU is listed")
    for index, name, said in zip(blocks[::3], blocks[1::3], blocks[2::3], strict=True):
        yield int(index), name, said


@lru_cache(maxsize=1 << 12)
def _gpu(index: int, name: str, text: str) -> NvlinkGpu:
    """Read what stands below the line of one GPU; thousands of them say the same."""
    lines = [said for line in text.splitlines() if (said := line.strip())]
    if not lines:
        return NvlinkGpu(index=index, name=name, state=NvlinkState.ABSENT)
    if not lines[0].startswith("Link "):
        said = " ".join(lines).lower()
        state = next((state for words, state in MESSAGES if words in said), None)
        if state is not None:
            return NvlinkGpu(index=index, name=name, state=state)
    links = [_link(line) for line in lines]
    return NvlinkGpu(
        index=index,
        name=name,
        state=NvlinkState.LINKS,
        gb_s=tuple(speed for _, speed in links if speed is not None),
        inactive=tuple(number for number, speed in links if speed is None),
    )


def _link(line: str) -> tuple[int, float | None]:
    """Return number and speed of a link; None is inactive."""
    link = _LINK.fullmatch(line)
    if link is None:
        raise Unparsed(f"no link: {first_line(line)[:60]!r}")
    if link[2] is None:
        return int(link[1]), None
    try:
        return int(link[1]), real(link[2], least=0)
    except ValueError:
        raise Unparsed(f"no speed: {link[2][:20]!r}") from None


PROBE = nvidia_probe("nvidia-nvlink", read_snippet("nvidia_nvlink"), parse)
