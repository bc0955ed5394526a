"""HOST: whether the names of the nodes lead to the addresses that they have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import known, most, node_check, single_machine
from clusterkit.preflight.checks.results import Result, Results, advice, ok
from clusterkit.preflight.checks.types import Evidence, Tier, check
from clusterkit.preflight.probes.host import names
from clusterkit.preflight.probes.host.names import Names, names_to_resolve


@check("HOST002", "host-names", names.PROBE, tier=Tier.ROUND_TRIP, skip_if=single_machine)
def _names(evidence: Evidence) -> Results:
    found, results = known(evidence, names.PROBE)
    yield from results
    resolved = {name for facts in found.values() for name, seen in facts.hosts.items() if seen}
    # A name that nobody knows, and that was not reached, is no fault of those who look it up.
    nobodies = {node.name for node in evidence.unreached} - resolved
    targets = [target for target in names_to_resolve(evidence.job.hosts) if target not in nobodies]
    usual = {target: _usual(target, found) for target in targets}
    # What most say is right where that node has the address; then a look at the rest is enough.
    agreed = {target: a for target, a in usual.items() if a and _right(a, target, found)}
    for name, facts in found.items():
        odd = {target: a for target, a in usual.items() if _differs(facts, target, agreed)}
        yield name, _resolution(name, facts, found, odd, evidence.job.hosts[0])


def _usual(target: str, known: Mapping[str, Names]) -> str | None:
    """Return the address that most nodes find for `target`."""
    # Its own answer counts against a single other one only: a node may call itself what it likes.
    answers = Counter(
        found[0]
        for name, facts in known.items()
        if name != target and (found := facts.hosts.get(target))
    )
    if answers.total() == 1 and target in known:
        own = known[target].hosts.get(target)
        return own[0] if own and not own[0].startswith("127.") else None
    return most(answers)


def _resolution(
    name: str,
    facts: Names,
    known: Mapping[str, Names],
    odd: Mapping[str, str | None],
    head: str,
) -> Result:
    absent = [target for target in odd if target != name and not facts.hosts.get(target)]
    if absent:
        first = head if head in absent else absent[0]
        count = f"{len(absent)} names: {absent[:5]}"
        verdict = Verdict.FAIL if first == head else Verdict.WARN
        return advice("HOST002", name=first).result(verdict, f"cannot resolve {first}", count)
    for target in sorted(odd, key=lambda target: target != head):
        found = facts.hosts[target][0] if facts.hosts.get(target) else None
        if target == name or found is None or _right(found, target, known):
            continue
        wrong = advice("HOST002", name=target)
        usual, resolves = odd[target], f"resolves {target} to {found}"
        owned = target in known and bool(known[target].local) and ":" not in found
        if usual is None and not owned:
            return wrong.warn(f"{resolves}, and the nodes disagree")
        if found != usual:
            most_say = f"most nodes say {usual}" if usual else ""
            return wrong.fail(f"{resolves}, wrong", most_say)
        if owned:
            # All agree: an address that is translated on the way, or a stale entry for all.
            return wrong.warn(f"{resolves}, which none of its interfaces has")
    return ok("resolves the nodes of the job as they are")


def _differs(facts: Names, target: str, agreed: Mapping[str, str]) -> bool:
    found = facts.hosts.get(target)
    return not found or found[0] != agreed.get(target)


def _right(address: str, target: str, known: Mapping[str, Names]) -> bool:
    if address.startswith("127."):
        return False
    return target in known and address in known[target].local


@node_check("HOST003", "host-own-name", names.PROBE, skip_if=single_machine)
def _own_name(facts: Names) -> Result:
    own, wrong = f"{facts.name}: {' '.join(facts.own) or 'nothing'}", advice("HOST003")
    if not facts.own:
        return wrong.fail("does not resolve its own name", own)
    address = facts.own[0]
    if address.startswith("127.") or address == "::1":
        return wrong.fail(f"its own name resolves to {address}, loopback", own)
    if facts.local and ":" not in address and address not in facts.local:
        summary = "its own name resolves to an address that it does not have"
        return wrong.fail(summary, address)
    short = facts.name.split(".")[0].lower()
    if facts.reverse and short not in {name.split(".")[0].lower() for name in facts.reverse}:
        reverse = f"{address} is {' '.join(facts.reverse)}"
        return wrong.warn("its address resolves back to another name", reverse)
    return ok("its own name resolves to its own address")
