"""Give a job back to Slurm from inside: for its next attempt (submitit's checkpoint), or for good.

`scontrol requeue` keeps the job id and ends what runs with SIGTERM. One node does it; a file that
is created exclusively decides which, and says why.
"""

from __future__ import annotations

import json
import os
import sys
import time

from clusterkit.core import files
from clusterkit.core.commands import run_command
from clusterkit.core.model import ClusterKind, NodeResult
from clusterkit.executors.node.identity import Identity
from clusterkit.executors.run import node_results, runfolder
from clusterkit.executors.run.runfolder import RunFolder, Submission

_PING_S = 10.0
"""How long Slurm may take to answer (MessageTimeout, slurm.conf(5)); a node that has lost the
network gets no answer."""
_FIRST = 8
"""So many nodes ask Slurm at once, and the others only where none of them has started the job."""
_OTHERS_AFTER_S = 2.0
_AGAIN_AFTER_S = (2.0, 4.0)
"""Pauses after a controller that did not take a request, or did not answer (10 s by itself)."""


def may_requeue(submission: Submission | None, me: Identity) -> bool:
    """Tell whether this attempt is one that Slurm can be asked to follow by another."""
    allowed = submission is not None and me.attempt < submission.requeue
    return allowed and "SLURM_JOB_ID" in os.environ


def give_up(run: RunFolder, me: Identity, *, lost: NodeResult) -> None:
    """Ask Slurm to end a job that has lost a node, unless it starts again.

    The step ends by itself on the nodes that are left, but srun waits until Slurm has noticed, and
    would keep them for so long.
    """
    submission = runfolder.read_submission(run)
    on_slurm = submission is not None and submission.kind is ClusterKind.SLURM
    asks = {0, 1} if lost.among else {1 if lost.node_rank == 0 else 0}
    # Another node may be the one that starts it again, now; else Slurm does when it misses a node.
    if on_slurm and me.rank in asks and not may_requeue(submission, me):
        run_command(["scancel", os.environ["SLURM_JOB_ID"]])


def requeue(run: RunFolder, me: Identity, why: str, *, lost: NodeResult | None = None) -> None:
    """Ask Slurm to start the job again, unless another node has.

    Of nodes that lost each other, the one that reaches Slurm does; a node that is `lost` may share
    the folder with the others, and would only keep them from it.
    """
    if lost is not None:
        if lost.node_rank == me.rank and not lost.among:
            return
        if me.rank > _FIRST:
            time.sleep(_OTHERS_AFTER_S)
        started = run.again(me.attempt).exists()
        if started or run_command(["scontrol", "ping"], timeout_s=_PING_S).code:
            return
    left_out = sorted(node_results.left_out(run))
    if left_out:
        files.write_text(run.left_out, "".join(f"{node}\n" for node in left_out))
    document = json.dumps({"why": why, "node": me.name, "attempt": me.attempt})
    if not files.create_text(run.again(me.attempt), document):
        return
    # Whoever times out is asked again: a job that is requeued ends this process, or is pending and
    # takes no second request.
    for pause_s in (*_AGAIN_AFTER_S, 0.0):
        answer = run_command(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]])
        if not answer.code:
            return
        print(f"clusterkit: scontrol requeue: {answer.errors.strip()}", file=sys.stderr)
        time.sleep(pause_s)
