"""IMEX, NVIDIA's service for memory that GPUs of several nodes share over NVLink (GB200, GB300)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterkit.core.data import read_snippet
from clusterkit.preflight.probes.gpu import for_gpu_jobs
from clusterkit.preflight.probes.gpu.nvidia_gpus import NvidiaGpus
from clusterkit.preflight.probes.snippets import read_pairs, text_of
from clusterkit.transport.probe import Probe, Unparsed

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


def parse(text: str) -> Imex:
    """Read the pairs of the snippet."""
    pairs = read_pairs(text)
    if (channel := text_of(pairs, "channel")) not in _CHANNELS or "nodes" not in pairs:
        raise Unparsed(f"channel {channel[:40]!r}")
    if len(listed := pairs["nodes"]) > _LONGEST:
        raise Unparsed("more nodes than a rack has")
    return Imex(channel=channel, state=pairs.get("state", "")[:40], nodes=tuple(listed.split()))


PROBE = Probe(name="imex", command=for_gpu_jobs(read_snippet("imex")), parse=parse)


def clique_of(facts: NvidiaGpus) -> str | None:
    """Return what NVLink joins the GPUs of a node to; None where that is no other node."""
    cliques = {
        f"{gpu.fabric_domain[:8]}/{gpu.fabric_clique}"
        for gpu in facts.gpus
        if gpu.fabric_domain and _ANY_DIGIT.search(gpu.fabric_domain)
    }
    return ", ".join(sorted(cliques)) or None
