"""NCCL003: interfaces that variables name, against those that a node has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import (
    About,
    Check,
    Evidence,
    Judgement,
    Ruling,
    missing,
    passed,
)
from clusterkit.preflight.checks.nccl_evidence import in_force
from clusterkit.preflight.env_lint.matching import select
from clusterkit.preflight.probes.host.nccl_settings import CONF, ENVIRONMENT
from clusterkit.preflight.probes.net.nccl_interfaces import PROBE, NamedInterface
from clusterkit.transport.probe import Missing

ABOUT = About(
    what="Interfaces named by NCCL_SOCKET_IFNAME, NCCL_OOB_NET_IFNAME, GLOO_SOCKET_IFNAME and "
    "TP_SOCKET_IFNAME exist on the node, are up and have an address.",
    why="A name that a node does not have stops the job at start, or lets it hang: the others "
    "wait for an address that never comes.",
    how="/sys/class/net and `ip -o addr`. NCCL's names are prefixes unless the list starts with "
    "`=`; Gloo's are exact, and all of them have to be there.",
    fix="Name an interface that every node has, or unset the variable.",
    source="NCCL sources, src/misc/utils.cc and socket.cc; PyTorch's documentation of Gloo",
)

_BY_PREFIX = ("NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME")
_EXACT = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def judge(evidence: Evidence) -> Judgement:
    """Compare names and interfaces, node by node."""
    for node in evidence.nodes:
        settings = in_force(evidence.job, node)
        given = {name: settings[name] for name in (*_BY_PREFIX, *_EXACT) if settings.get(name)}
        facts = node.of(PROBE)
        if not given:
            summary = "no variable names an interface: the libraries choose"
            yield node.name, Ruling(verdict=Verdict.SKIP, summary=summary)
        elif isinstance(facts, Missing):
            yield node.name, missing(facts)
        else:
            found = tuple(_rulings(given, facts))
            for ruling in found or (passed("the interfaces that variables name are usable"),):
                yield node.name, ruling


def _rulings(given: Mapping[str, str], interfaces: tuple[NamedInterface, ...]) -> Iterator[Ruling]:
    usable = [i.name for i in interfaces if i.usable and i.name != "lo"]
    evidence = f"usable here: {', '.join(usable) or 'none'}"
    for name, value in given.items():
        said = f"{name}={value}"
        selection = select(value, (i.name for i in interfaces), exact=name in _EXACT)
        hint = f"set {name} to an interface that every node has"
        lost = () if selection.exclude else selection.unmatched
        taken = [i for i in interfaces if i.name in selection.taken]
        if not taken or (lost and name in _EXACT):
            what = f"no interface {', '.join(lost)}" if lost else "it leaves no interface"
            yield _ruling(Verdict.FAIL, f"{said}: {what}", evidence, hint)
        elif not any(i.usable for i in taken):
            names = ", ".join(i.name for i in taken)
            yield _ruling(
                Verdict.FAIL, f"{said}: {names} is down or has no address", evidence, hint
            )
        elif lost:
            summary = f"{said}: no interface {', '.join(lost)}"
            yield _ruling(Verdict.WARN, summary, evidence, hint)
        for item, matched in selection.surprises.items():
            summary = f"{said}: {item} is a prefix, it matches {', '.join(matched)}"
            yield _ruling(Verdict.WARN, summary, evidence, "start the list with =")


def _ruling(verdict: Verdict, summary: str, evidence: str, hint: str) -> Ruling:
    command = "ip -brief addr" if verdict is Verdict.FAIL else "clusterkit explain NCCL123"
    return Ruling(verdict=verdict, summary=summary, evidence=evidence, hint=hint, command=command)


CHECK = Check(
    id="NCCL003",
    name="nccl-interfaces",
    about=ABOUT,
    probes=(PROBE, ENVIRONMENT, CONF),
    judge=judge,
)
