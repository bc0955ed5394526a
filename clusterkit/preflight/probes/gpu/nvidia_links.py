"""Links of GPUs: NVLink (`nvidia-smi nvlink`), its errors, the matrix (`topo -m`), and IMEX.

IMEX is NVIDIA's service for memory that GPUs of several nodes share over NVLink (GB200, GB300).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from clusterkit.core.data import read_snippet
from clusterkit.core.untrusted import real, whole
from clusterkit.preflight.probes.gpu import for_gpu_jobs
from clusterkit.preflight.probes.gpu.nvidia import nvidia_probe, words_of
from clusterkit.preflight.probes.gpu.nvidia_gpus import NvidiaGpus
from clusterkit.preflight.probes.snippets import read_lines, read_pairs, text_of
from clusterkit.preflight.topology.matrix import NoMatrix, Topology, View, parse_topology
from clusterkit.transport.probe import Probe, Unparsed, first_line

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


def parse_nvlink(text: str) -> tuple[NvlinkGpu, ...]:
    """Read `nvidia-smi nvlink -s`, GPU by GPU."""
    return tuple(_gpu_links(index, name, links) for index, name, links in split_gpus(text))


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
    for index, name, part in zip(blocks[::3], blocks[1::3], blocks[2::3], strict=True):
        yield int(index), name, part


@lru_cache(maxsize=1 << 12)
def _gpu_links(index: int, name: str, text: str) -> NvlinkGpu:
    """Read what stands below the line of one GPU; thousands of them say the same."""
    lines = [*filter(None, map(str.strip, text.splitlines()))]
    if not lines:
        return NvlinkGpu(index=index, name=name, state=NvlinkState.ABSENT)
    if not lines[0].startswith("Link "):
        message = " ".join(lines).lower()
        state = next((state for phrase, state in MESSAGES if phrase in message), None)
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
    return int(link[1]), None if link[2] is None else real(link[2], minimum=0)


NVLINK = nvidia_probe("nvidia-nvlink", read_snippet("nvidia_nvlink"), parse_nvlink)


ERRORS = words_of("link-error")

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


def parse_errors(text: str) -> NvlinkErrorLog:
    """Read what the snippet prints."""
    head, *lines = read_lines(text) or [""]
    up = _UP.fullmatch(head)
    if up is None:
        raise Unparsed(f"no time since boot: {first_line(head)[:60]!r}")
    gpus = tuple(_gpu_errors(index, part) for index, _, part in split_gpus("\n".join(lines)))
    return NvlinkErrorLog(hours=float(up[1]) / 3600, gpus=gpus)


@lru_cache(maxsize=1 << 12)
def _gpu_errors(index: int, text: str) -> NvlinkErrors:
    """Read what stands below the line of one GPU; thousands of them say the same."""
    lines = [*filter(None, map(str.strip, text.splitlines()))]
    counted = _COUNTED.fullmatch(lines[-1]) if lines else None
    if counted is None:
        raise Unparsed("the number of counters is missing")
    body = lines[:-1]
    if not int(counted[1]):
        message = " ".join(body).lower()
        if body and not any(phrase in message for phrase, _ in MESSAGES):
            raise Unparsed(f"no counter: {first_line(body[0])[:60]!r}")
        return NvlinkErrors(index=index, links=None)
    errors: dict[int, int] = {}
    for line in body:
        counter = _COUNTER.fullmatch(line)
        if counter is None:
            raise Unparsed(f"no counter: {first_line(line)[:60]!r}")
        if counter[2] in ERRORS:
            errors[int(counter[1])] = errors.get(int(counter[1]), 0) + whole(counter[3])
    return NvlinkErrors(index=index, links=tuple(errors.items()))


NVLINK_ERRORS = nvidia_probe(
    "nvidia-nvlink-errors", read_snippet("nvidia_nvlink_errors"), parse_errors
)


def parse_topo(text: str) -> Topology:
    """Read the matrix; nodes of one model print the same one, so each is read once."""
    try:
        return parse_topology(text, view=View.LINKS)
    except NoMatrix as error:
        raise Unparsed(str(error)) from None


TOPO = nvidia_probe("nvidia-topo", read_snippet("nvidia_topo"), parse_topo)


_CHANNELS = frozenset({"open", "denied", "absent"})
_LONGEST = 3500
"""Characters of a list; the snippet cuts longer ones off."""
_ANY_DIGIT = re.compile(r"[1-9a-fA-F]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Imex:
    """The service as a node has it."""

    channel: str
    """`open`, `denied` or `absent`."""
    state: str
    """`READY`, or what systemd says (`active`); empty where nobody says."""
    nodes: tuple[str, ...]
    """What its list of nodes names, mostly addresses."""


def parse_imex(text: str) -> Imex:
    """Read the pairs of the snippet."""
    pairs = read_pairs(text)
    if (channel := text_of(pairs, "channel")) not in _CHANNELS or "nodes" not in pairs:
        raise Unparsed(f"channel {channel[:40]!r}")
    if len(listed := pairs["nodes"]) > _LONGEST:
        raise Unparsed("more nodes than a rack has")
    return Imex(channel=channel, state=pairs.get("state", "")[:40], nodes=tuple(listed.split()))


IMEX = Probe(name="imex", command=for_gpu_jobs(read_snippet("imex")), parse=parse_imex)


def clique_of(facts: NvidiaGpus) -> str | None:
    """Return what NVLink joins the GPUs of a node to; None where that is no other node."""
    cliques = {
        f"{gpu.fabric_domain[:8]}/{gpu.fabric_clique}"
        for gpu in facts.gpus
        if gpu.fabric_domain and _ANY_DIGIT.search(gpu.fabric_domain)
    }
    return ", ".join(sorted(cliques)) or None
