"""Keep Slurm from giving a job again the nodes on which it failed.

Slurm lets the nodes to be left out be changed only while a job waits (scontrol(1), ExcNodeList), so
that no node of the job can do it; a client that looks on can.
"""

from __future__ import annotations

from clusterkit.core import files
from clusterkit.core.commands import run_command
from clusterkit.core.errors import RemoteError
from clusterkit.core.hosts import hostlist
from clusterkit.core.records import object_of, text_of
from clusterkit.executors.run import node_results
from clusterkit.executors.run.runfolder import RunFolder, Submission


def leave_out(run: RunFolder, submission: Submission) -> None:
    """Tell Slurm, once for each list, which nodes the waiting job is not to get.

    Not where it asks for spares enough: its script leaves those nodes out by itself, and without
    them there might never be so many nodes.

    Raises:
        RemoteError: Slurm did not take it; the job may have begun in this moment.
        UserError: the run folder cannot be written.
    """
    failed = node_results.left_out(run)
    nodes = hostlist.fold_set(failed)
    if len(failed) <= submission.spares or files.read_json(run.told_slurm) == {"left_out": nodes}:
        return
    excluded = _asked_for(run)
    listed = ",".join(part for part in (excluded, nodes) if part)
    answer = run_command(
        ["scontrol", "update", f"JobId={submission.job_id}", f"ExcNodeList={listed}"]
    )
    if answer.code:
        raise RemoteError(f"Slurm does not leave out {nodes}: {answer.errors.strip()}")
    files.write_json(run.told_slurm, {"left_out": nodes})


def _asked_for(run: RunFolder) -> str:
    """Return the nodes that the user left out, which the new list replaces."""
    plan = files.read_json(run.plan, own=True) or {}
    asked = text_of(object_of(plan, "directives"), "exclude") or ""
    return hostlist.fold_set(hostlist.expand(asked, source=str(run.plan)))
