"""Traffic between the nodes, after the one round trip: links first, then all-reduces.

Each stage is a script that the same transport runs on all reached nodes at once, and what they
print becomes outputs of probes in the bundle, so that judging stays pure. What the first look of a
stage suspects is looked at once more: slow or far links while the others are quiet, failed and slow
all-reduces with a partner that is known to be good, and slow ones with the same partner too.
"""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from statistics import median

from clusterkit.preflight.bundle import Bundle
from clusterkit.preflight.checks.base import Check, Evidence, NodeFacts, Tier
from clusterkit.preflight.checks.net_evidence import BAD, SLOW, Pair, facts_of, far, read_links
from clusterkit.preflight.probes.net import allreduce
from clusterkit.preflight.probes.net import links as net_links
from clusterkit.transport.base import Reply, Transport
from clusterkit.transport.probe import NOT_APPLICABLE, Output, PreflightJob, Probe
from clusterkit.transport.script import compose, new_token

_MOST_LINKS_AGAIN = 8
"""Rounds of the second look at links."""
_LOOKS = 2
"""How often the second look measures a link, where few are suspect: the best figure counts, so that
one moment in which a node was busy does not."""
_FAILED = 255
"""Exit code of a probe on a node that the transport lost after the round trip; as ssh's own."""

Rounds = tuple[tuple[tuple[int, int], ...], ...]
"""Disjoint pairs of indices of nodes, round by round."""


def with_network(
    bundle: Bundle,
    transport: Transport,
    checks: Sequence[Check],
    *,
    most: int | None = None,
    on_reply: Callable[[Reply], None] = lambda _: None,
) -> Bundle:
    """Return `bundle` with what the network stages that `checks` need have to say.

    Only reached nodes take part, and no more than `most` of them. At most about a minute for
    links, a few for all-reduces that hang.

    Raises:
        RemoteError: the transport itself is not there.
    """
    names = {p.name for check in checks if check.tier is Tier.NETWORK for p in check.probes}
    began = time.monotonic()
    stage = _Stage(bundle=bundle, transport=transport, on_reply=on_reply, most=most)
    if net_links.PROBE.name in names:
        stage = _links(stage.without_others(net_links.PROBE))
    if allreduce.PROBE.name in names:
        stage = _all_reduces(stage.without_others(allreduce.PROBE))
    seconds = stage.bundle.seconds + time.monotonic() - began
    return dataclasses.replace(stage.bundle, seconds=seconds)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """A bundle that grows."""

    bundle: Bundle
    transport: Transport
    on_reply: Callable[[Reply], None]
    most: int | None = None

    @property
    def reached(self) -> tuple[str, ...]:
        """The nodes that were reached, in rank order."""
        reached = (reply.node for reply in self.bundle.replies if reply.reach.problem is None)
        return tuple(dict.fromkeys(reached))

    @property
    def nodes(self) -> tuple[str, ...]:
        """Those that take part."""
        return self.reached[: self.most]

    @property
    def job(self) -> PreflightJob:
        """The job on the nodes that were reached."""
        return dataclasses.replace(self.bundle.job, hosts=self.nodes)

    @property
    def evidence(self) -> Evidence:
        """What is known by now."""
        parts = (reply for reply in self.bundle.replies if reply.node in self.nodes)
        facts = (NodeFacts(name=r.node, outputs=r.outputs, reach=r.reach) for r in parts)
        return Evidence(job=self.job, nodes=tuple(facts))

    def skipped(self, probe: Probe[object], why: str) -> _Stage:
        """Note on all nodes why a probe does not apply."""
        output = Output(stdout=why + "\n", exit_code=NOT_APPLICABLE)
        return self._merged(probe, dict.fromkeys(self.nodes, output))

    def without_others(self, probe: Probe[object]) -> _Stage:
        """Note on the reached nodes that take no part why a probe does not apply."""
        output = Output(stdout="not among the nodes that were measured\n", exit_code=NOT_APPLICABLE)
        return self._merged(probe, dict.fromkeys(self.reached[len(self.nodes) :], output))

    def ask(self, probe: Probe[object], snippet: str | None) -> _Stage:
        """Run one probe on all reached nodes at once."""
        asking = dataclasses.replace(probe, command=lambda _: snippet)
        compound = compose((asking,), self.job, token=new_token(), together=True)
        outputs: dict[str, Output] = {}
        for reply in self.transport.ask(self.nodes, compound, on_reply=self.on_reply):
            lost = Output(stdout="", stderr=reply.reach.detail, exit_code=_FAILED)
            unfinished = Output(stdout="", exit_code=None)
            missing = unfinished if reply.reach.problem is None else lost
            outputs[reply.node] = reply.outputs.get(probe.name, missing)
        return self._merged(probe, outputs)

    def _merged(self, probe: Probe[object], outputs: Mapping[str, Output]) -> _Stage:
        replies = tuple(
            dataclasses.replace(reply, outputs={**reply.outputs, probe.name: outputs[reply.node]})
            if reply.node in outputs
            else reply
            for reply in self.bundle.replies
        )
        return dataclasses.replace(self, bundle=dataclasses.replace(self.bundle, replies=replies))


def _cannot(stage: _Stage) -> str | None:
    if stage.bundle.job.kind == "local":
        return "all nodes are this machine"
    if len(stage.nodes) < 2:
        return "there are not two nodes to connect"
    return None


def _links(stage: _Stage) -> _Stage:
    if (why := _cannot(stage)) is not None:
        return stage.skipped(net_links.PROBE, why)
    run = secrets.token_hex(4)
    stage = stage.ask(net_links.PROBE, net_links.links_snippet(stage.job, run=run))
    links = read_links(stage.evidence)
    usual = median(links.rates.values()) if links.rates else 0
    slow = {pair for pair, rate in links.rates.items() if rate < SLOW * usual}
    both = (*sorted(slow), *sorted(far(links.latencies_us)))
    suspect = [pair for pair in both if pair[0] != pair[1]]
    rounds = disjoint(_indices(suspect, stage.nodes), most=_MOST_LINKS_AGAIN)
    if not rounds:
        return stage
    rounds *= min(_LOOKS, _MOST_LINKS_AGAIN // len(rounds))
    again = net_links.links_snippet(stage.job, run=run + "a", rounds=_written(rounds))
    return stage.ask(net_links.AGAIN, again)


def _all_reduces(stage: _Stage) -> _Stage:
    if (why := _cannot(stage)) is not None:
        return stage.skipped(allreduce.PROBE, why)
    stage = stage.ask(allreduce.PROBE, allreduce.allreduce_snippet(stage.job))
    first = _sorted_out(stage.evidence)
    rounds = second_pass(first, order=stage.nodes)
    if not rounds:
        return stage
    again = allreduce.allreduce_snippet(stage.job, rounds=_written(rounds))
    return stage.ask(allreduce.AGAIN, again)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FirstPass:
    """Who came how through the first pass of all-reduces."""

    good: Collection[str]
    suspect: Collection[str]
    untried: Collection[str] = ()
    slow: Collection[Pair] = ()
    """Pairs that came to an end, and took long."""


def _sorted_out(evidence: Evidence) -> FirstPass:
    facts = facts_of(evidence, allreduce.PROBE)
    # A node may name anybody as its partner.
    exercises = [
        (node, e)
        for node, seen in facts.items()
        for e in seen.exercises
        if e.peer in facts and e.peer != node
    ]
    rates = [e.bus_bytes_per_s for _, e in exercises if e.bus_bytes_per_s is not None]
    least = BAD * median(rates) if rates else 0.0
    slow = {
        (node, e.peer)
        for node, e in exercises
        if e.bus_bytes_per_s is not None and e.bus_bytes_per_s < least
    }
    suspect = {node for node, e in exercises if e.status != "ok"} | {
        node for pair in slow for node in pair
    }
    tried = {node for node, _ in exercises}
    return FirstPass(good=tried - suspect, suspect=suspect, untried=facts.keys() - tried, slow=slow)


def second_pass(first: FirstPass, *, order: Sequence[str]) -> Rounds:
    """Return rounds that pair suspects, and who had no partner, with nodes that are good.

    Where none is known to be good, one that was not tried has to do. Slow pairs meet once more too:
    a node was perhaps busy with something else.
    """
    partners = sorted(first.good or first.untried, key=order.index)
    wanted = {*first.suspect, *(first.untried if first.good else ())}
    guests = sorted(wanted, key=order.index)
    pairs = [(guest, partners[k % len(partners)]) for k, guest in enumerate(guests) if partners]
    return disjoint(_indices([*sorted(first.slow), *pairs], order), most=allreduce.MOST_ROUNDS)


def _indices(pairs: Collection[Pair], order: Sequence[str]) -> Iterator[tuple[int, int]]:
    index = {name: k for k, name in enumerate(order)}
    for a, b in pairs:
        low, high = sorted((index[a], index[b]))
        yield low, high


def disjoint(pairs: Iterator[tuple[int, int]], *, most: int) -> Rounds:
    """Return `pairs` in rounds in which no node stands twice; beyond `most`, leave the last out."""
    rounds: list[dict[int, tuple[int, int]]] = []
    for pair in dict.fromkeys(pairs):
        free = next((r for r in rounds if not r.keys() & set(pair)), None)
        if free is None:
            if len(rounds) == most:
                continue
            free = {}
            rounds.append(free)
        free.update(dict.fromkeys(pair, pair))
    return tuple(tuple(sorted(set(taken.values()))) for taken in rounds)


def _written(rounds: Rounds) -> str:
    return ";".join(",".join(f"{low}-{high}" for low, high in pairs) for pairs in rounds)
