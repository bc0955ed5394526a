"""NET001: whether every node reaches the rendezvous port of the head."""

from __future__ import annotations

from clusterkit.checks.base import About, Check, Evidence, Judgement, Ruling, Tier, passed
from clusterkit.checks.net_evidence import absent, facts_of
from clusterkit.findings import Verdict
from clusterkit.probes.net_links import OK, PROBE

ABOUT = About(
    what="Every node can open a TCP connection to the job's rendezvous port on its first node.",
    why="torchrun, DeepSpeed and Horovod all start by meeting there; a node that cannot come makes"
    " the whole job wait until its time-out, without a word about which node it is.",
    how="A program on the head listens on the port, the same program on every other node"
    " connects to it by the head's name (`clusterkit preflight --network`).",
    fix="Open the cluster's `port_range` between its nodes, mend the name of the head in DNS or"
    " /etc/hosts, or end the process that holds the port.",
    source="our own",
)
_OPEN = "open the cluster's `port_range` between its nodes"
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
    if not evidence.nodes or (head := evidence.nodes[0].name) not in facts:
        for node in facts:
            summary = f"nothing listened on the head {evidence.nodes[0].name}"
            yield node, Ruling(verdict=Verdict.UNKNOWN, summary=summary)
        return
    port = facts[head].port
    said = {node: seen.head for node, seen in facts.items() if seen.head is not None}
    if facts[head].bound != port:
        yield from _taken(evidence, head, tuple(said))
        return
    bad = {node: status for node, status in said.items() if status != OK}
    # One verdict from all the others is about the head; with one other, it may be either.
    about_head = bad and len(bad) == len(said)
    for node, status in said.items():
        if status == OK:
            yield node, passed(f"reaches the rendezvous port {port} of {head}")
        elif about_head and len(said) > 1:
            summary = f"no node reaches the rendezvous port {port} of {head}"
            yield node, Ruling(verdict=Verdict.UNKNOWN, summary=summary)
        else:
            yield node, _cannot(head, port, status)
    if about_head:
        worst = next(iter(bad.values()))
        who = "no node reaches" if len(said) > 1 else f"{next(iter(bad))} does not reach"
        yield (
            head,
            Ruling(
                verdict=Verdict.FAIL,
                summary=f"{who} its rendezvous port {port}",
                evidence=_words(worst),
                hint=_OPEN,
                command="sudo nft list ruleset",
            ),
        )
    else:
        yield head, passed(f"reaches the rendezvous port {port} of {head}")


def _cannot(head: str, port: int, status: str) -> Ruling:
    if status == "name" or status.startswith("wrong:"):
        wrong = status.removeprefix("wrong:")
        return Ruling(
            verdict=Verdict.FAIL,
            summary=f"{head} "
            + ("does not resolve" if status == "name" else f"resolves to {wrong}"),
            evidence=_words(status),
            hint="mend the name of the head in DNS or /etc/hosts",
            command=f"getent hosts {head}",
        )
    return Ruling(
        verdict=Verdict.FAIL,
        summary=f"cannot reach the rendezvous port {port} of {head}",
        evidence=_words(status),
        hint=_OPEN,
        command="sudo nft list ruleset",
    )


def _words(status: str) -> str:
    return _WORDS.get(status, status)


def _taken(evidence: Evidence, head: str, others: tuple[str, ...]) -> Judgement:
    """Rule where the port was in use: that matters only if it is the job's own."""
    port = evidence.job.port
    summary = "the job's port is not known" if port is None else f"port {port} was not free"
    for node in others:
        yield (
            node,
            Ruling(verdict=Verdict.SKIP if port is None else Verdict.UNKNOWN, summary=summary),
        )
    if port is None:
        yield head, Ruling(verdict=Verdict.SKIP, summary=summary)
        return
    yield (
        head,
        Ruling(
            verdict=Verdict.FAIL,
            summary=f"the rendezvous port {port} is in use by another program",
            hint="end that program, or choose another --port",
            command=f"sudo ss -ltnp 'sport = :{port}'",
        ),
    )


CHECK = Check(
    id="NET001",
    name="net-rendezvous",
    about=ABOUT,
    probes=(PROBE,),
    judge=judge,
    tier=Tier.NETWORK,
)
