"""HOST003: whether a node's own name leads to an address that others can reach."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling, each, passed
from clusterkit.preflight.probes.host.names import PROBE, Names

ABOUT = About(
    what="A node's own name resolves to an address of its network, and that back to its name.",
    why="Debian writes 127.0.1.1 for a machine's own name. The head then listens on loopback, and"
    " Gloo tells its peers to come to 127.0.1.1: every other node waits or is refused.",
    how="getent ahostsv4 $(uname -n), then getent hosts ADDRESS, on each node.",
    fix="Put the real address before the name in /etc/hosts, or remove the 127.0.1.1 line where DNS"
    " knows the name. Else set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME.",
    source="Debian reference, section 5.1.1, on 127.0.1.1; NVIDIA/nccl#286, horovod#636",
)


def judge(evidence: Evidence) -> Judgement:
    """Fail nodes whose name is a trap; alone, a machine may call itself what it likes."""
    if evidence.job.kind == "local" or len(evidence.job.hosts) < 2:
        yield None, Ruling(verdict=Verdict.SKIP, summary="a single machine")
    else:
        yield from each(evidence, PROBE, _rule)


def _rule(names: Names) -> Ruling:
    if not names.own:
        return _bad(Verdict.FAIL, "does not resolve its own name", names, "")
    address = names.own[0]
    if address.startswith("127.") or address == "::1":
        return _bad(Verdict.FAIL, f"its own name resolves to {address}, loopback", names, "")
    if names.local and ":" not in address and address not in names.local:
        summary = "its own name resolves to an address that it does not have"
        return _bad(Verdict.FAIL, summary, names, address)
    short = names.name.split(".")[0].lower()
    if names.reverse and short not in {name.split(".")[0].lower() for name in names.reverse}:
        summary = "its address resolves back to another name"
        return _bad(Verdict.WARN, summary, names, f"{address} is {' '.join(names.reverse)}")
    return passed("its own name resolves to its own address")


def _bad(verdict: Verdict, summary: str, names: Names, evidence: str) -> Ruling:
    return Ruling(
        verdict=verdict,
        summary=summary,
        evidence=evidence or f"{names.name}: {' '.join(names.own) or 'nothing'}",
        hint="put the node's real address before its name in /etc/hosts",
        command="getent ahosts $(uname -n); grep -n $(uname -n) /etc/hosts",
    )


CHECK = Check(id="HOST003", name="host-own-name", about=ABOUT, probes=(PROBE,), judge=judge)
