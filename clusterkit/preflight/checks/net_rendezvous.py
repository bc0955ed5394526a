"""NET001: whether every node reaches the rendezvous port of the head."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.core.shell import quote
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling, Tier, passed
from clusterkit.preflight.checks.net_evidence import absent, facts_of
from clusterkit.preflight.probes.net.links import OK, PROBE

ABOUT = About(
    what="Every node can open a TCP connection to the job's rendezvous port on its first node.",
    why="torchrun, DeepSpeed and Horovod all start by meeting there; a node that cannot come makes"
    " the whole job wait until its time-out, without a word about which node it is.",
    how="A program on the head listens on the port, the same program on every other node"
    " connects to it by the head's name (`clusterkit preflight --network`). The port is the first"
    " of `port_range`; where something holds it, that is a warning, and the next few are tried.",
    fix="Open the cluster's `port_range` between its nodes, mend the name of the head in DNS or"
    " /etc/hosts, or end the process that holds the port.",
    source="our own",
)
_WORDS = {
    "refused": "refused (by a firewall: a program of ours listens there)",
    "timeout": "no answer (a firewall that drops?)",
    "unreachable": "no route to it",
    "closed": "the connection breaks",
    "foreign": "another program answers there",
}


def judge(evidence: Evidence) -> Judgement:
    """Name the nodes that cannot come, or the head where nobody can."""
    yield from absent(evidence, PROBE)
    facts = facts_of(evidence, PROBE)
    head = evidence.nodes[0].name if evidence.nodes else ""
    if head not in facts:
        yield from dict.fromkeys(facts, _unsure(f"nothing listened on the head {head}")).items()
        return
    port, taken = facts[head].bound, facts[head].bound != facts[head].port
    where = f"the rendezvous port {port} of {head}"
    asked = {n: dict(seen.reach).get(head) if taken else seen.head for n, seen in facts.items()}
    said = {node: status for node, status in asked.items() if status is not None and node != head}
    # One verdict from all the others is about the head; with one other, it may be either.
    about_head = bool(said) and OK not in said.values()
    for node, status in said.items():
        if status == OK:
            yield node, passed(f"reaches {where}")
        elif about_head and len(said) > 1:
            yield node, _unsure(f"no node reaches {where}")
        else:
            yield node, _cannot(head, where, status)
    if about_head:
        yield head, _own(port, said)
    elif taken and evidence.job.port is not None:
        yield head, _taken(facts[head].port)
    else:
        yield head, passed(f"reaches {where}")


def _own(port: int, said: dict[str, str]) -> Ruling:
    """Fail the head, which nobody reaches."""
    node, status = next(iter(said.items()))
    who = "no node reaches" if len(said) > 1 else f"{node} does not reach"
    return _closed(f"{who} its rendezvous port {port}", status)


def _cannot(head: str, where: str, status: str) -> Ruling:
    if status != "name" and not status.startswith("wrong:"):
        return _closed(f"cannot reach {where}", status)
    wrong = status.removeprefix("wrong:")
    return Ruling(
        verdict=Verdict.FAIL,
        summary=f"{head} " + ("does not resolve" if status == "name" else f"resolves to {wrong}"),
        hint="mend the name of the head in DNS or /etc/hosts",
        command=f"getent hosts {quote(head)}",
    )


def _closed(summary: str, status: str) -> Ruling:
    return Ruling(
        verdict=Verdict.FAIL,
        summary=summary,
        evidence=_WORDS.get(status, status),
        hint="open the cluster's `port_range` between its nodes",
        command="sudo nft list ruleset",
    )


def _taken(port: int) -> Ruling:
    # What clusterkit starts itself takes another port of the range.
    return Ruling(
        verdict=Verdict.WARN,
        summary=f"port {port}, the first of `port_range`, is in use",
        hint="jobs take the next one that is free; rendered node scripts begin there",
        command=f"sudo ss -ltnp 'sport = :{port}'",
    )


def _unsure(summary: str) -> Ruling:
    return Ruling(verdict=Verdict.UNKNOWN, summary=summary)


CHECK = Check(
    id="NET001",
    name="net-rendezvous",
    about=ABOUT,
    probes=(PROBE,),
    judge=judge,
    tier=Tier.NETWORK,
)
