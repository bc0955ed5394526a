"""Evidence for checks, built from what probes would have printed."""

from __future__ import annotations

from collections.abc import Mapping

from clusterkit.preflight.checks.base import Evidence, NodeFacts
from clusterkit.transport.probe import Output, PreflightJob, Reach


def evidence(
    nodes: Mapping[str, Mapping[str, str | Output]],
    *,
    job: PreflightJob | None = None,
    reach: Mapping[str, Reach] | None = None,
) -> Evidence:
    """Return evidence of `nodes`: name -> probe name -> standard output, or a whole `Output`."""
    facts = tuple(
        NodeFacts(
            name=name,
            outputs={
                probe: said if isinstance(said, Output) else Output(stdout=said)
                for probe, said in outputs.items()
            },
            reach=(reach or {}).get(name, Reach()),
        )
        for name, outputs in nodes.items()
    )
    return Evidence(
        job=job or PreflightJob(hosts=tuple(nodes)),
        nodes=tuple(node for node in facts if node.reach.problem is None),
        unreached=tuple(node for node in facts if node.reach.problem is not None),
    )
