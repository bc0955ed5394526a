"""Who is missing or behind by what NCCL's RAS said as the job hung, as a fact of the job.

Ranks are those of a communicator, of which the largest comes first: mostly that of all ranks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from clusterkit.core.text import some_of
from clusterkit.launch.array.spec import ranks_in_words

_SECTION = re.compile(
    r"(?:#(?P<comm>\d{1,9}-\d{1,9}) \(\w{1,32}\) )?(?P<kind>DEAD|INCOMPLETE|MISMATCH|ERROR)"
)
_PROCESS = re.compile(r" +Process (?P<pid>\d{1,10}) on node (?P<node>\S{1,255})\b")
_RANK = re.compile(
    r" +Rank (?P<rank>\d{1,7}) (?:(?P<what>[^-\s][^-]{0,120}?) )?-- "
    r"(?:GPU \S{1,16} managed by process \d{1,10} on node (?P<node>\S{1,255})|\[)"
)
_MANY = re.compile(r" +(?P<count>\d{1,7}) (?:ranks|job processes) (?P<what>\S.{0,120})")
_COUNTS = re.compile(r" +Communicator ranks have different (?P<op>\w{1,40}) operation counts")
_LAUNCHED = re.compile(
    r"(?:has|have) (?:launched up to operation (?P<last>\d{1,19})|not launched any)"
)
_MOST_LINES = 1 << 14
_MOST_NAMED = 8


@dataclass(slots=True, kw_only=True)
class _Behind:
    """Ranks of a communicator by the last operation of one kind that they have launched."""

    comm: str
    op: str
    counts: Counter[int] = field(default_factory=Counter)
    ranks: dict[int, dict[int, str]] = field(default_factory=dict)
    """Of each count those that are named, and their nodes."""

    def told(self) -> str:
        if len(self.counts) < 2:
            return ""
        least, most = min(self.counts), max(self.counts)
        who, ahead = self.ranks.get(least, {}), sum(self.counts.values()) - self.counts[least]
        if len(who) != self.counts[least] or len(who) >= ahead:
            return ""  # nobody can tell who waits for whom
        done = f"number {least}" if least else "none"
        return (
            f"nccl-behind={ranks_in_words(who)} on {_nodes(who.values())}; {self.op}; "
            f"{done}; {ahead} others at number {most}; communicator {self.comm}"
        )


def told(text: str) -> Iterator[str]:
    """Yield what the answer of RAS tells, as `KEY=VALUE`: who is lost, and who is behind."""
    lost: dict[str, tuple[list[str], dict[int, str]]] = {}
    behind: list[_Behind] = []
    kind, comm, many = "", "", None
    largest = ""
    """The first communicator of which ranks are missing: others number theirs anew."""
    for line in text.splitlines()[:_MOST_LINES]:
        if section := _SECTION.fullmatch(line.rstrip()):
            kind, comm, many = section["kind"], section["comm"] or "", None
            largest = largest or (comm if kind == "INCOMPLETE" else "")
        elif counts := _COUNTS.match(line):
            behind.append(_Behind(comm=comm, op=counts["op"]))
            many = None
        elif kind in {"DEAD", "INCOMPLETE"}:
            nodes, ranks = lost.setdefault(kind, ([], {}))
            if process := _PROCESS.match(line):
                nodes.append(process["node"])
            elif comm == largest and (rank := _RANK.match(line)):
                ranks.setdefault(int(rank["rank"]), rank["node"] or "?")
        elif kind == "MISMATCH" and behind and behind[-1].comm == comm:
            many = _count(line, behind[-1], many)
    for kind, (nodes, ranks) in sorted(lost.items()):
        if nodes or ranks:
            what = "is dead" if kind == "DEAD" else "does not answer"
            named = _nodes(nodes or ranks.values())
            who = ranks_in_words(ranks) if ranks else _some(len(nodes))
            yield f"nccl-lost={named}; {what}; {who}"
    yield from [said for one in behind if (said := one.told())][:1]


def _count(line: str, behind: _Behind, many: int | None) -> int | None:
    """Note a line of how far ranks have come; return of which count those that follow are."""
    if found := _RANK.match(line):
        launched = _LAUNCHED.match(found["what"] or "")
        last = int(launched["last"] or 0) if launched else many
        if last is not None:
            behind.counts[last] += launched is not None
            behind.ranks.setdefault(last, {})[int(found["rank"])] = found["node"] or "?"
        return many
    if (found := _MANY.match(line)) and (launched := _LAUNCHED.match(found["what"])):
        last = int(launched["last"] or 0)
        behind.counts[last] += int(found["count"])
        return last
    return many


def _some(count: int) -> str:
    return f"{count} process{'es' * (count > 1)}"


def _nodes(names: Iterable[str]) -> str:
    return some_of(sorted({*names}), _MOST_NAMED, rest="others").replace(";", ",")
