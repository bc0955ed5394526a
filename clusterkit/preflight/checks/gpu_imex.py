"""GPU: what NVLink between nodes needs of each."""

from __future__ import annotations

from collections.abc import Iterator

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import Found, each_machine
from clusterkit.preflight.checks.results import Result, Results, advice, ok, skip
from clusterkit.preflight.checks.types import Evidence, NodeFacts, check
from clusterkit.preflight.probes.gpu import imex, nvidia_gpus
from clusterkit.preflight.probes.gpu.imex import Imex, clique_of
from clusterkit.preflight.probes.host import names
from clusterkit.preflight.probes.host.names import Names
from clusterkit.transport.probe import Missing, PreflightJob

_SWITCH = "NCCL_MNNVL_ENABLE"


def no_nvlink_between(job: PreflightJob) -> str | None:
    """Return why a job uses no NVLink between its nodes."""
    if job.uses_gpus is False:
        return "the job uses no GPU"
    if job.env.get(_SWITCH) == "0":
        return f"{_SWITCH}=0: the job does without"
    return None if job.spans_nodes else "one node"


@check("GPU029", "gpu-imex", nvidia_gpus.PROBE, imex.PROBE, names.PROBE, skip_if=no_nvlink_between)
def _imex(evidence: Evidence) -> Results:
    def rule(node: NodeFacts) -> Found:
        if clique_of(node.need(nvidia_gpus.PROBE)) is None:
            return skip("no NVLink between nodes")
        # Sites start it in Slurm's prolog, which a login by ssh does not run.
        early = evidence.job.kind == "slurm" and node.reach.via == "ssh"
        verdict = Verdict.WARN if early else Verdict.FAIL
        return [*_faults(node.need(imex.PROBE), node, verdict)] or ok("IMEX is ready")

    return each_machine(rule)(evidence)


def _faults(found: Imex, node: NodeFacts, verdict: Verdict) -> Iterator[Result]:
    wrong, named = advice("GPU029"), node.of(names.PROBE)
    if found.channel != "open":
        how = "may not be opened" if found.channel == "denied" else "is not there"
        summary = f"the IMEX channel {how}: NCCL ends at its start"
        yield advice("GPU029", "channel").result(verdict, summary)
    if found.state and found.state.lower() not in {"ready", "active"}:
        yield wrong.result(verdict, f"IMEX is {found.state}")
    if not found.nodes:
        yield advice("GPU029", "nodes").result(verdict, "IMEX has no list of nodes")
    elif not isinstance(named, Missing) and not _lists(found.nodes, node.name, named):
        summary = "IMEX does not list the node itself"
        listed = f"{len(found.nodes)} listed: {' '.join(found.nodes[:8])}"
        yield advice("GPU029", "nodes").result(verdict, summary, listed)


def _lists(nodes: tuple[str, ...], name: str, named: Names) -> bool:
    """Tell whether a node is in a list; also where its own addresses are not all known."""
    unknown = not named.local or any(":" in listed for listed in nodes)
    return unknown or not {name, named.name, *named.own, *named.local}.isdisjoint(nodes)
