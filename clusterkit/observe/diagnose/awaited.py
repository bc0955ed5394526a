"""Whom the others wait for, where those that print an error of NCCL are not to blame for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from clusterkit.core.text import some_of
from clusterkit.launch.array.spec import ranks_in_words
from clusterkit.observe.diagnose.order import Event

_OF_OTHERS = frozenset({
    "collective-mismatch-timeout", "nccl-remote-error", "nccl-watchdog", "nccl-watchdog-timeout",
    "nccl-watchdog-work",
})  # fmt: skip
"""Rules of lines that tell of a rank that others have waited for."""
_COUNTS = "nccl-watchdog-work"
_MOST_NAMED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    """The node or the rank that most others name."""

    says: str
    node: str | None = None
    rank: int | None = None


def awaited(root: Event, events: Sequence[Event]) -> Awaited | None:
    """Return whom the others wait for; None where the logs do not tell of one."""
    if root.rule.id not in _OF_OTHERS:
        return None
    return next(_behind(events), None) or _lost([one for one in events if "peer" in one.groups])


def _behind(events: Iterable[Event]) -> Iterator[Awaited]:
    """Yield ranks that have not called what more of the others wait in, by process group."""
    groups: dict[str, dict[int, tuple[int, int, str | None]]] = {}
    for event in events:
        if event.rule.id == _COUNTS and event.rank is not None:
            known = groups.setdefault(event.groups.get("group", ""), {})
            work, called = (int(event.groups[name]) for name in ("work", "called"))
            known.setdefault(event.rank, (work, called, event.node))
    for known in groups.values():
        stuck = max(work for work, _, _ in known.values())
        behind = {rank: node for rank, (_, called, node) in known.items() if called < stuck}
        waiting = sum(work == stuck for work, _, _ in known.values())
        if behind and len(behind) < waiting:
            alone = next(iter(behind)) if len(behind) == 1 else None
            who = ranks_in_words(behind)
            says = f"{waiting} ranks wait in work {stuck} of NCCL, which {who} had not called."
            yield Awaited(says=says, rank=alone, node=None if alone is None else behind[alone])


def _lost(events: Iterable[Event]) -> Awaited | None:
    """Return the node that is named and says nothing itself, or that most name."""
    pairs = {
        (event.node or event.hit.file.name, event.groups["peer"].partition("<")[0])
        for event in events
    }
    telling = {_short(who) for who, _ in pairs}
    named = Counter(peer for _, peer in pairs)
    silent = [peer for peer in named if _short(peer) not in telling]
    most = [peer for peer, count in named.items() if 2 * count > len(pairs)]
    found = silent if len(silent) == 1 else most
    if not found or not found[0]:
        return None
    who = sorted({who for who, peer in pairs if peer == found[0]})
    says = f"{found[0]} was lost by {some_of(who, _MOST_NAMED, rest='others')}."
    return Awaited(says=says, node=found[0])


def _short(host: str) -> str:
    """Return a name without its domain, and an address as it is."""
    name = host.partition(".")[0]
    return host if name.isdigit() else name
