"""TOPO: whether nodes stand together, by what their cloud and their GPUs say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from clusterkit.preflight.checks.base import known, most
from clusterkit.preflight.checks.gpu_imex import no_nvlink_between
from clusterkit.preflight.checks.results import Advice, Results, advice, ok, skip
from clusterkit.preflight.checks.types import Evidence, Tier, check
from clusterkit.preflight.probes.gpu import imex, nvidia_gpus
from clusterkit.preflight.probes.gpu.imex import clique_of
from clusterkit.preflight.probes.host import placement
from clusterkit.transport.probe import PreflightJob

_HINTED = ("aws", "azure", "gcp", "oci")
"""Clouds, of all of `core/dmi.py`, of which `checks.ini` says how to keep nodes together."""


def _one_node(job: PreflightJob) -> str | None:
    return None if job.spans_nodes else "one node"


@check(
    "TOPO007",
    "topo-placement",
    placement.PROBE,
    placement.BLOCK,
    tier=Tier.ROUND_TRIP,
    skip_if=_one_node,
)
def _placement(evidence: Evidence) -> Results:
    job, blocks = evidence.job, known(evidence, placement.BLOCK)[0]
    if blocks:
        inside = {n.name: f"block {b}" if (b := blocks.get(n.name)) else "" for n in evidence.nodes}
        yield from _together(inside, job, advice("TOPO007", "slurm"), racks=True)
        return
    if not job.asks_cloud:
        yield None, skip("platform: off asks no cloud")
        return
    found, results = known(evidence, placement.PROBE)
    yield from results
    places = {
        node: ", ".join(f"{kind} {name}" for kind, name in facts.places.items())
        for node, facts in found.items()
    }
    clouds = {facts.cloud for facts in found.values()}
    apart = advice("TOPO007", next((one for one in _HINTED if clouds == {one}), ""))
    none = "the cloud does not say where it stands"
    yield from _together(places, job, apart, none=none)


@check(
    "TOPO008",
    "topo-clique",
    nvidia_gpus.PROBE,
    imex.PROBE,
    tier=Tier.ROUND_TRIP,
    skip_if=no_nvlink_between,
)
def _clique(evidence: Evidence) -> Results:
    found, results = known(evidence, nvidia_gpus.PROBE)
    yield from results
    cliques = {node: clique_of(facts) for node, facts in found.items()}
    places = {node: f"NVLink domain {clique}" if clique else "" for node, clique in cliques.items()}
    none = "no NVLink between nodes"
    yield from _together(places, evidence.job, advice("TOPO008"), none=none, racks=True)
    if evidence.job.kind == "slurm":
        return  # a prolog lists the nodes that were asked together
    listed = known(evidence, imex.PROBE)[0]
    for clique in filter(None, dict.fromkeys(cliques.values())):
        here = {n: frozenset(one.nodes) for n, one in listed.items() if cliques.get(n) == clique}
        usual = most(Counter(here.values()))
        for node, nodes in here.items():
            if nodes and nodes != usual:
                what = "IMEX lists other nodes than on most" if usual else "IMEX lists differ"
                yield node, advice("TOPO008", "lists").fail(what, f"{len(nodes)} listed")


def _together(
    places: Mapping[str, str],
    job: PreflightJob,
    apart: Advice,
    *,
    none: str = "",
    racks: bool = False,
) -> Results:
    """Warn of nodes that are not in the place in which most of them are.

    There is nothing to warn of where Slurm chooses from them, and was told to keep the job's nodes
    together, or places are `racks`, none of which has as many (or it is asked for no job at all).
    """
    counts = Counter(filter(None, places.values()))
    if not counts:
        for node in places:
            yield node, skip(none)
        return
    ((usual, number),) = counts.most_common(1)
    seen = ", ".join(f"{place}: {n}" for place, n in counts.most_common(8))
    too_large = racks and number < (job.nodes or len(job.hosts))
    fine = job.kind == "slurm" and (job.kept_together or too_large)
    for node, place in places.items():
        if place and (place == usual or fine):
            yield node, ok(place, seen)
        else:
            where = f"{number} of {len(places)} nodes are in {usual}"
            yield node, apart.warn(f"{place or 'in none'}: {where}", seen)
