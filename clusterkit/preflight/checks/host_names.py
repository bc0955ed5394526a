"""HOST002: whether every node resolves the nodes of the job to the addresses that they have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from clusterkit.core.findings import Verdict
from clusterkit.core.shell import quote
from clusterkit.preflight.checks.base import (
    About,
    Check,
    Evidence,
    Judgement,
    Ruling,
    Tier,
    missing,
    passed,
)
from clusterkit.preflight.probes.host.names import PROBE, Names, asked
from clusterkit.transport.probe import Missing

ABOUT = About(
    what="Every node resolves the names of the job's nodes, to the addresses that they have.",
    why="All ranks look for the head by its name. One wrong line in one hosts file, and that node"
    " waits for an address that never answers, until the rendezvous times out.",
    how="getent ahostsv4 NAME on every node, as programs ask; compared with the addresses of the"
    " named node (/proc/net/fib_trie there), else with what most nodes say. In jobs of more than"
    " 64 nodes the head and a spread of the others are looked up.",
    fix="Mend /etc/hosts or DNS of the node; `getent` and not `dig` shows what programs get.",
    source="NVIDIA/nccl#286, #367, horovod#310: hangs from names that differ between nodes",
)


def judge(evidence: Evidence) -> Judgement:
    """Name the nodes that resolve some node wrongly, and which."""
    if evidence.job.kind == "local" or len(evidence.job.hosts) < 2:
        yield None, Ruling(verdict=Verdict.SKIP, summary="a single machine")
        return
    known: dict[str, Names] = {}
    for node in evidence.nodes:
        facts = node.of(PROBE)
        if isinstance(facts, Missing):
            yield node.name, missing(facts)
        else:
            known[node.name] = facts
    resolved = {name for facts in known.values() for name, found in facts.hosts.items() if found}
    # A name that nobody knows, and that was not reached, is no fault of those who look it up.
    nobodies = {node.name for node in evidence.unreached} - resolved
    targets = [target for target in asked(evidence.job.hosts) if target not in nobodies]
    said = {target: _most_say(target, known) for target in targets}
    # What most say is right where that node has the address; then a look at the rest is enough.
    agreed = {target: a for target, a in said.items() if a and _right(a, target, known)}
    for name, facts in known.items():
        odd = {target: usual for target, usual in said.items() if _differs(facts, target, agreed)}
        yield name, _rule(name, facts, known, odd, evidence.job.hosts[0])


def _most_say(target: str, known: Mapping[str, Names]) -> str | None:
    # Its own word counts against a single other one only: a node may call itself what it likes.
    answers = Counter(
        found[0]
        for name, facts in known.items()
        if name != target and (found := facts.hosts.get(target))
    )
    if answers.total() == 1 and target in known:
        own = known[target].hosts.get(target)
        return own[0] if own and not own[0].startswith("127.") else None
    ranked = answers.most_common(1)
    return ranked[0][0] if ranked and ranked[0][1] * 2 > answers.total() else None


def _rule(
    name: str,
    facts: Names,
    known: Mapping[str, Names],
    said: Mapping[str, str | None],
    head: str,
) -> Ruling:
    absent = [target for target in said if target != name and not facts.hosts.get(target)]
    if absent:
        first = head if head in absent else absent[0]
        verdict = Verdict.FAIL if first == head else Verdict.WARN
        return _bad(verdict, f"cannot resolve {first}", first, f"{len(absent)} names: {absent[:5]}")
    for target in sorted(said, key=lambda target: target != head):
        found = facts.hosts[target][0] if facts.hosts.get(target) else None
        if target == name or found is None or _right(found, target, known):
            continue
        usual = said[target]
        owned = target in known and bool(known[target].local) and ":" not in found
        if usual is None and not owned:
            summary = f"resolves {target} to {found}, and the nodes disagree"
            return _bad(Verdict.WARN, summary, target, "")
        if found != usual:
            evidence = f"most nodes say {usual}" if usual else ""
            return _bad(Verdict.FAIL, f"resolves {target} to {found}, wrong", target, evidence)
        if owned:
            # All agree: an address that is translated on the way, or a stale entry for all.
            summary = f"resolves {target} to {found}, which none of its interfaces has"
            return _bad(Verdict.WARN, summary, target, "")
    return passed("resolves the nodes of the job as they are")


def _differs(facts: Names, target: str, agreed: Mapping[str, str]) -> bool:
    found = facts.hosts.get(target)
    return not found or found[0] != agreed.get(target)


def _right(address: str, target: str, known: Mapping[str, Names]) -> bool:
    if address.startswith("127."):
        return False
    return target in known and address in known[target].local


def _bad(verdict: Verdict, summary: str, target: str, evidence: str) -> Ruling:
    return Ruling(
        verdict=verdict,
        summary=summary,
        evidence=evidence,
        hint="mend /etc/hosts or the name service of that node",
        command=f"getent ahosts {quote(target)}; grep -n {quote(target)} /etc/hosts",
    )


CHECK = Check(
    id="HOST002",
    name="host-names",
    about=ABOUT,
    probes=(PROBE,),
    judge=judge,
    tier=Tier.ROUND_TRIP,
)
