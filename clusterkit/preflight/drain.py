"""The lines that an administrator would type to drain the unfit nodes; nothing runs them here."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from clusterkit import hostlist
from clusterkit.preflight.report import Report

_REASON = 200
"""Characters of a reason that stay readable in sinfo."""


def drain_commands(report: Report) -> Iterator[str]:
    """Yield one scontrol line for each set of nodes that is unfit for the same reasons.

    A node that is drained already keeps its reason: scontrol would replace it, so leave it out.
    So are nodes that could not be asked: nothing is known against them.
    """
    left_out = {node for f in report.bad if f.check == _STATE for node in f.nodes}
    left_out.update(report.unasked)
    reasons: dict[str, list[str]] = {}
    for finding in report.bad:
        for node in finding.nodes:
            reasons.setdefault(node, []).append(f"{finding.id} {finding.summary}")
    groups: dict[str, list[str]] = {}
    for node, said in reasons.items():
        if node not in left_out:
            groups.setdefault("; ".join(said)[:_REASON], []).append(node)
    for reason, nodes in groups.items():
        reason_word = shlex.quote(f"Reason=clusterkit: {reason}")
        yield f"scontrol update NodeName={hostlist.fold_set(nodes)} State=DRAIN {reason_word}"


_STATE = "slurm-state"
