"""The lines that an administrator would type to drain the unfit nodes; nothing runs them here."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator

from clusterkit.core.errors import UserError
from clusterkit.core.hosts import hostlist
from clusterkit.core.model import ClusterKind
from clusterkit.preflight.bundle import Bundle
from clusterkit.preflight.report import Report
from clusterkit.transport.probe import PreflightJob

_REASON = 200
"""Characters of a reason that stay readable in sinfo."""


def require_slurm(job: PreflightJob) -> None:
    """Refuse nodes that Slurm does not know.

    Raises:
        UserError: their cluster is none of Slurm.
    """
    if job.kind != ClusterKind.SLURM:
        raise UserError(
            f"--drain-command: Slurm does not know the nodes of a cluster of kind {job.kind}",
            hint="leave it out; --write-hostfile FILE writes those that are usable",
        )


def drain_commands(report: Report, bundle: Bundle) -> Iterator[str]:
    """Yield one scontrol line for each set of nodes that is unfit for the same reasons.

    A node that is drained already keeps its reason: scontrol would replace it, so leave it out.
    So are nodes that could not be asked: that may be the fault of whoever asks, and Slurm itself
    finds those that are down.
    """
    left_out = {node for f in report.bad if f.check == _STATE for node in f.nodes}
    left_out.update(reply.node for reply in bundle.replies if reply.reach.problem is not None)
    reasons: dict[str, list[str]] = {}
    for finding in report.bad:
        for node in finding.nodes:
            reasons.setdefault(node, []).append(f"{finding.id} {finding.summary}")
    groups: dict[str, list[str]] = {}
    for node, said in reasons.items():
        if node not in left_out:
            groups.setdefault(_reason(said), []).append(node)
    for reason, nodes in groups.items():
        reason_word = shlex.quote(f"Reason=clusterkit: {reason}")
        names = shlex.quote(f"NodeName={hostlist.fold_set(nodes)}")
        yield f"scontrol update {names} State=DRAIN {reason_word}"


def _reason(said: list[str]) -> str:
    return textwrap.shorten("; ".join(said), _REASON, placeholder=" ...", break_on_hyphens=False)


_STATE = "slurm-state"
