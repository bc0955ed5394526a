"""How a node resolves its own name and those of the other nodes, and its own addresses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from clusterkit.core.data import read_snippet
from clusterkit.core.shell import quote
from clusterkit.preflight.probes.snippets import read_lines
from clusterkit.transport.probe import PreflightJob, Probe, Unparsed

_MOST = 64
"""Names that every node looks up. In a larger job it is the head and a spread of the others:
that all of 4,096 nodes look up all others would be 16 million questions to the name server."""


_ADDRESS = re.compile(r"[0-9a-fA-F.:]{2,45}(?:%\w+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Answers of the name service, as programs on the node get them."""

    name: str
    """What the node calls itself (`uname -n`)."""
    own: tuple[str, ...]
    """Addresses to which its own name resolves."""
    reverse: tuple[str, ...]
    """Names of the first of these addresses."""
    local: frozenset[str]
    """IPv4 addresses of its interfaces; empty where the kernel does not tell."""
    hosts: Mapping[str, tuple[str, ...]]
    """Addresses by name of a node of the job; empty: it does not resolve."""


def names_to_resolve(hosts: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of `hosts` that every node looks up, the head first."""
    step = -(-len(hosts) // _MOST)
    return hosts[:: step or 1]


def _command(job: PreflightJob) -> str | None:
    if job.kind == "local":
        return None
    return read_snippet("host_names", hosts=" ".join(map(quote, names_to_resolve(job.hosts))))


def parse(text: str) -> Names:
    """Read the lines of the snippet."""
    single: dict[str, tuple[str, ...]] = {}
    hosts: dict[str, tuple[str, ...]] = {}
    for line in read_lines(text):
        key, *values = line.split() or [""]
        if key == "host" and values:
            hosts[values[0]] = _addresses(tuple(values[1:]))
        elif key in {"name", "own", "reverse", "local"} and key not in single:
            single[key] = tuple(values)
        else:
            raise Unparsed(f"unexpected line {line[:60]!r}")
    if len(single.get("name", ())) != 1 or "own" not in single or "local" not in single:
        raise Unparsed("its own name is missing")
    return Names(
        name=single["name"][0],
        own=_addresses(single["own"]),
        reverse=single.get("reverse", ())[1:],
        local=frozenset(_addresses(single["local"])),
        hosts=hosts,
    )


@lru_cache(maxsize=1 << 16)
def _addresses(values: tuple[str, ...]) -> tuple[str, ...]:
    # Thousands of nodes give the same answers: one tuple for all of them.
    for value in values:
        if not _ADDRESS.fullmatch(value):
            raise Unparsed(f"{value[:40]!r} is not an address")
    return values


PROBE = Probe(name="host-names", command=_command, parse=parse, timeout_s=15.0)
