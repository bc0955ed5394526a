"""TCP reach, latency and bandwidth between the nodes, as programs/preflight/links.py prints them.

ck-net 1 NODE NODES ROUNDS SLOT_S     port WANTED BOUND
pair ROUND PEER ok MICROSECONDS|- BYTES_PER_S|-       pair ROUND PEER STATUS
head STATUS MICROSECONDS|-            to PEER STATUS
nic NAME MBIT_PER_S|-                 end
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterkit.preflight.probes.net.pairs import whole_number
from clusterkit.preflight.probes.net.program import DEFAULT_PORT, snippet
from clusterkit.transport.probe import PreflightJob, Probe, Unparsed

MOST_ROUNDS = 63
"""All pairs of up to 64 nodes; of more nodes, each is measured against 63 others."""
WINDOW_S = 10.0
"""How long nodes wait for others to start."""
_BUDGET_S = 30.0
_SLOTS_S = (0.45, 1.0)

OK = "ok"
_STATUS = re.compile(
    r"ok|refused|timeout|unreachable|closed|foreign|name|uncalled|wrong:[\w.:-]{1,255}", re.ASCII
)
_NAME = re.compile(r"[\w.:-]{1,255}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """What one node says of its slot with another."""

    peer: str
    status: str
    latency_us: int | None = None
    """Round trip; told by the node that called."""
    bytes_per_s: int | None = None
    """What arrived here from the peer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFacts:
    """What one node saw of the others."""

    node: str
    port: int
    bound: int
    """The port that was free; differs from `port` where something else has that."""
    head: str | None = None
    """How connecting to `port` of the head went; None on the head itself."""
    reach: tuple[tuple[str, str], ...]
    """Peer and how connecting to it went."""
    meetings: tuple[Meeting, ...]
    nic: str | None = None
    nic_mbit: int | None = None


def parse(text: str) -> LinkFacts:
    """Return what a node printed.

    Raises:
        Unparsed: it is not that, or it is cut off.
    """
    lines = [line.split() for line in text.splitlines()]
    if len(lines) < 3 or lines[-1] != ["end"] or lines[0][:2] != ["ck-net", "1"]:
        raise Unparsed("no report from its first line to its end")
    if len(lines[0]) != 6 or len(lines[1]) != 3 or lines[1][0] != "port":
        raise Unparsed("its first lines are damaged")
    head: str | None = None
    nic: tuple[str | None, int | None] = (None, None)
    reach, meetings = [], []
    for words in lines[2:-1]:
        match words:
            case ["pair", number, peer, status, *rest]:
                whole_number(number)
                meetings.append(_meeting(peer, status, rest))
            case ["to", peer, status]:
                reach.append((_name(peer), _status(status)))
            case ["head", status, _]:
                head = _status(status)
            case ["nic", name, speed]:
                nic = (None if name == "-" else name, _optional(speed))
            case _:
                raise Unparsed(f"unexpected line {' '.join(words)[:60]!r}")
    return LinkFacts(
        node=_name(lines[0][2]),
        port=whole_number(lines[1][1]),
        bound=whole_number(lines[1][2]),
        head=head,
        reach=tuple(reach),
        meetings=tuple(meetings),
        nic=nic[0],
        nic_mbit=nic[1],
    )


def _meeting(peer: str, status: str, rest: list[str]) -> Meeting:
    if status != OK and not rest:
        return Meeting(peer=_name(peer), status=_status(status))
    if status != OK or len(rest) != 2:
        raise Unparsed("a pair without its figures")
    return Meeting(
        peer=_name(peer), status=OK, latency_us=_optional(rest[0]), bytes_per_s=_optional(rest[1])
    )


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise Unparsed(f"no name of a node: {text[:60]!r}")
    return text


def _status(text: str) -> str:
    if not _STATUS.fullmatch(text):
        raise Unparsed(f"no status: {text[:60]!r}")
    return text


def _optional(text: str) -> int | None:
    return None if text == "-" else whole_number(text)


def links_snippet(job: PreflightJob, *, run: str = "-", rounds: str = "") -> str | None:
    """Return the snippet for all nodes of `job`; `rounds` such as `0-1,2-3;0-2` replaces all pairs.

    `run` keeps the nodes of one run from talking to those of another.
    """
    if len(job.hosts) < 2:
        return None
    count = rounds.count(";") + 1 if rounds else min(len(job.hosts), MOST_ROUNDS)
    low, high = _SLOTS_S
    slot_s = min(high, max(low, _BUDGET_S / count))
    words = (
        ",".join(job.hosts),
        str(job.port or DEFAULT_PORT),
        run,
        f"{WINDOW_S:g}",
        f"{slot_s:.2f}",
        str(MOST_ROUNDS),
        rounds,
        (job.network_interface or "").split(",")[0].lstrip("="),
    )
    return snippet(job, ("netnode", "traffic"), "links", words, env=False)


PROBE = Probe(
    name="net-links",
    command=links_snippet,
    parse=parse,
    # Window, rounds and the time that stragglers have to be told of.
    timeout_s=WINDOW_S + _BUDGET_S + 15.0,
)
AGAIN = Probe(name="net-links-again", command=links_snippet, parse=parse, timeout_s=PROBE.timeout_s)
"""Pairs that seemed slow, measured once more while the others are quiet."""
