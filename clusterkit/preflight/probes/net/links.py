"""TCP reach, latency and bandwidth between the nodes, as programs/preflight/links.py prints them.

ck-net 1 NODE NODES ROUNDS SLOT_S     port WANTED BOUND
pair ROUND PEER ok MICROSECONDS|- BYTES_PER_S|-       pair ROUND PEER STATUS
head STATUS MICROSECONDS|-            to PEER STATUS
nic NAME MBIT_PER_S|-                 end

Beside that, whether a node can log in to the next one by SSH, as mpirun and its like do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterkit.core.data import read_snippet
from clusterkit.core.shell import quote
from clusterkit.preflight.probes.snippets import (
    number_of,
    port_of,
    read_pairs,
    snippet,
    text_of,
)
from clusterkit.transport.probe import PreflightJob, Probe, Unparsed

MOST_ROUNDS = 63
"""All pairs of up to 64 nodes; of more nodes, each is measured against 63 others."""
WINDOW_S = 10.0
"""How long nodes wait for others to start."""
_BUDGET_S = 30.0
_SLOTS_S = (0.45, 1.0)

OK = "ok"
_NODE = r"[\w.:-]{1,255}"
_COUNT = r"[0-9]{1,20}|-"
_STATUS = rf"refused|timeout|unreachable|closed|foreign|name|uncalled|wrong:{_NODE}"
_HEAD = re.compile(rf"ck-net 1 {_NODE} \S+ \S+ \S+\nport ([0-9]{{1,20}}) ([0-9]{{1,20}})", re.ASCII)
_LINE = re.compile(
    rf"pair \d{{1,20}} (?P<met>{_NODE})"
    rf" (?:ok (?P<us>{_COUNT}) (?P<rate>{_COUNT})|(?P<why>{_STATUS}))"
    rf"|to (?P<peer>{_NODE}) (?P<status>ok|{_STATUS})|head (?P<head>ok|{_STATUS}) \S+"
    rf"|nic (?P<nic>\S+) (?P<mbit>{_COUNT})",
    re.ASCII,
)


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
    *lines, end = text.splitlines() or [""]
    top = _HEAD.fullmatch("\n".join(lines[:2]))
    if top is None or end != "end":
        raise Unparsed("no report from its first line to its end")
    head: str | None = None
    nic: tuple[str | None, int | None] = (None, None)
    reach, meetings = [], []
    for line in lines[2:]:
        found = _LINE.fullmatch(line)
        if found is None:
            raise Unparsed(f"unexpected line {line[:60]!r}")
        if found["met"]:
            latency_us, rate = _figure(found["us"]), _figure(found["rate"])
            status = found["why"] or OK
            meeting = Meeting(
                peer=found["met"], status=status, latency_us=latency_us, bytes_per_s=rate
            )
            meetings.append(meeting)
        elif found["peer"]:
            reach.append((found["peer"], found["status"]))
        elif found["head"]:
            head = found["head"]
        else:
            nic = (None if found["nic"] == "-" else found["nic"], _figure(found["mbit"]))
    return LinkFacts(
        port=int(top[1]),
        bound=int(top[2]),
        head=head,
        reach=tuple(reach),
        meetings=tuple(meetings),
        nic=nic[0],
        nic_mbit=nic[1],
    )


def _figure(text: str | None) -> int | None:
    return None if text in {None, "-"} else int(text or "")


def links_snippet(job: PreflightJob, *, run: str = "-", rounds: str = "") -> str | None:
    """Return the snippet for all nodes of `job`; `rounds` such as `0-1,2-3;0-2` replaces all pairs.

    `run` keeps the nodes of one run from talking to those of another.
    """
    if len(job.hosts) < 2:
        return None
    count = rounds.count(";") + 1 if rounds else min(len(job.hosts), MOST_ROUNDS)
    low, high = _SLOTS_S
    slot_s = min(high, max(low, _BUDGET_S / count))
    arguments = (
        ",".join(job.hosts),
        str(port_of(job)),
        run,
        f"{WINDOW_S:g}",
        f"{slot_s:.2f}",
        str(MOST_ROUNDS),
        rounds,
        (job.network_interface or "").split(",")[0].lstrip("="),
    )
    return snippet(job, ("netnode", "traffic"), "links", arguments, env=False)


PROBE = Probe(
    name="net-links",
    command=links_snippet,
    parse=parse,
    # Window, rounds and the time that stragglers have to be told of.
    timeout_s=WINDOW_S + _BUDGET_S + 15.0,
)
AGAIN = Probe(name="net-links-again", command=links_snippet, parse=parse, timeout_s=PROBE.timeout_s)
"""Pairs that seemed slow, measured once more while the others are quiet."""


_MAX_BYTES = 100_000
"""For the list of nodes; Linux takes 128 KiB as one argument (MAX_ARG_STRLEN)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLogin:
    """One attempt to log in to another node."""

    peer: str
    exit_code: int
    message: str
    """The last line of what ssh printed."""


def _login_command(job: PreflightJob) -> str | None:
    if not wanted(job) or len(job.hosts) < 2:
        return None
    hosts = " ".join(map(quote, job.hosts))
    return read_snippet("ssh_peer", hosts=hosts if len(hosts) < _MAX_BYTES else quote(job.hosts[0]))


def wanted(job: PreflightJob) -> bool:
    """Tell whether something will log in from node to node; every job of ours starts without."""
    return job.kind != "local" and job.peer_ssh


def parse_login(text: str) -> PeerLogin:
    """Read the pairs of the snippet."""
    pairs = read_pairs(text)
    code = number_of(pairs, "code")
    if code > 255:
        raise Unparsed(f"exit code {code}")
    return PeerLogin(peer=text_of(pairs, "peer"), exit_code=code, message=pairs.get("said", ""))


PEER_LOGIN = Probe(name="ssh-peer", command=_login_command, parse=parse_login, timeout_s=12.0)
