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
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from statistics import median

from clusterkit.core.errors import UserError
from clusterkit.launch.rank_layout.fabric import Fabric, measured_fabric
from clusterkit.preflight.bundle import Bundle
from clusterkit.preflight.bundle_reader import read_bundle
from clusterkit.preflight.checks.base import Check, Evidence, NodeFacts, Tier
from clusterkit.preflight.checks.net_evidence import BAD, SLOW, Pair, facts_of, far, read_links
from clusterkit.preflight.evaluate import evidence_of
from clusterkit.preflight.probes.net import allreduce
from clusterkit.preflight.probes.net import links as net_links
from clusterkit.transport.base import Reply, Transport
from clusterkit.transport.probe import NOT_APPLICABLE, Output, Probe
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
        RemoteError: the transport itself is missing.
    """
    names = {p.name for check in checks if check.tier is Tier.NETWORK for p in check.probes}
    began = time.monotonic()
    stage = _Stage(bundle, transport, most, on_reply)
    for probe, measure in ((net_links.PROBE, _links), (allreduce.PROBE, _all_reduces)):
        if probe.name not in names:
            continue
        stage.note(probe, stage.others, "not among the nodes that were measured")
        if bundle.job.kind == "local":
            stage.note(probe, stage.nodes, "all nodes are this machine")
        elif len(stage.nodes) < 2:
            stage.note(probe, stage.nodes, "there are not two nodes to connect")
        else:
            measure(stage)
    seconds = bundle.seconds + time.monotonic() - began
    return dataclasses.replace(stage.bundle, seconds=seconds)


class _Stage:
    """A bundle that grows by what its nodes measure of each other."""

    def __init__(
        self,
        bundle: Bundle,
        transport: Transport,
        most: int | None,
        on_reply: Callable[[Reply], None],
    ) -> None:
        self.bundle = bundle
        self.transport = transport
        self.on_reply = on_reply
        problems = {reply.node: reply.reach.problem for reply in bundle.replies}
        reached = tuple(node for node, problem in problems.items() if problem is None)
        self.nodes, self.others = reached[:most], reached[len(reached[:most]) :]
        self.job = dataclasses.replace(bundle.job, hosts=self.nodes)

    def evidence(self) -> Evidence:
        """Return what is known by now."""
        parts = (reply for reply in self.bundle.replies if reply.node in self.nodes)
        facts = (NodeFacts(name=r.node, outputs=r.outputs, reach=r.reach) for r in parts)
        return Evidence(job=self.job, nodes=tuple(facts))

    def note(self, probe: Probe[object], nodes: Sequence[str], why: str) -> None:
        """Note why a probe does not apply to nodes."""
        output = Output(stdout=why + "\n", exit_code=NOT_APPLICABLE)
        self.bundle = self.bundle.with_outputs(probe.name, dict.fromkeys(nodes, output))

    def ask(self, probe: Probe[object], snippet: str | None) -> None:
        """Run one probe on all reached nodes at once."""
        query = dataclasses.replace(probe, command=lambda _: snippet)
        compound = compose((query,), self.job, token=new_token(), together=True)
        outputs: dict[str, Output] = {}
        for reply in self.transport.ask(self.nodes, compound, on_reply=self.on_reply):
            lost = Output(stdout="", stderr=reply.reach.detail, exit_code=_FAILED)
            unfinished = Output(stdout="", exit_code=None)
            missing = unfinished if reply.reach.problem is None else lost
            outputs[reply.node] = reply.outputs.get(probe.name, missing)
        self.bundle = self.bundle.with_outputs(probe.name, outputs)


def _links(stage: _Stage) -> None:
    run = secrets.token_hex(4)
    stage.ask(net_links.PROBE, net_links.links_snippet(stage.job, run=run))
    links = read_links(stage.evidence())
    usual = median(links.rates.values()) if links.rates else 0
    slow = {pair for pair, rate in links.rates.items() if rate < SLOW * usual}
    both = (*sorted(slow), *sorted(far(links.latencies_us)))
    suspect = [pair for pair in both if pair[0] != pair[1]]
    rounds = disjoint(_indices(suspect, stage.nodes), most=_MOST_LINKS_AGAIN)
    if rounds:
        rounds *= min(_LOOKS, _MOST_LINKS_AGAIN // len(rounds))
        again = net_links.links_snippet(stage.job, run=run + "a", rounds=_written(rounds))
        stage.ask(net_links.AGAIN, again)


def _all_reduces(stage: _Stage) -> None:
    stage.ask(allreduce.PROBE, allreduce.allreduce_snippet(stage.job))
    rounds = second_pass(_sorted_out(stage.evidence()), order=stage.nodes)
    if rounds:
        again = allreduce.allreduce_snippet(stage.job, rounds=_written(rounds))
        stage.ask(allreduce.AGAIN, again)


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
    minimum = BAD * median(rates) if rates else 0.0
    slow = {(n, e.peer) for n, e in exercises if (e.bus_bytes_per_s or minimum) < minimum}
    suspect = {n for n, e in exercises if e.status != "ok"}.union(*slow)
    tried = {node for node, _ in exercises}
    return FirstPass(good=tried - suspect, suspect=suspect, untried=facts.keys() - tried, slow=slow)


def second_pass(first: FirstPass, *, order: Sequence[str]) -> Rounds:
    """Return rounds that pair suspects, and who had no partner, with nodes that are good.

    Where none is known to be good, one that was not tried has to do. Slow pairs meet once more too:
    a node was perhaps busy with something else.
    """
    partners = sorted(first.good or first.untried, key=order.index)
    retried = {*first.suspect, *(first.untried if first.good else ())}
    guests = sorted(retried, key=order.index)
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


def measured_in(folder: Path) -> Fabric:
    """Return which nodes are near each other by what preflight measured, from a bundle.

    Raises:
        UserError: it is not a bundle, or nothing was measured.
    """
    evidence = evidence_of(read_bundle(folder))
    links = read_links(evidence)
    nodes = [node.name for node in evidence.nodes]
    fabric = measured_fabric(nodes, latencies_us=links.latencies_us, rates=links.rates)
    if not fabric.leaves:
        raise UserError(
            f"{folder}: nothing was measured between the nodes",
            hint="clusterkit preflight --network --save DIR",
        )
    return fabric
