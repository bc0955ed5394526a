"""Start the next attempt of a job over ssh, with spares in the place of nodes that cannot be used.

Done by a client that looks on (`wait`, `logs -f`, `supervise`), because there is nobody else: the
machines have no scheduler.
"""

from __future__ import annotations

import dataclasses
import secrets

from clusterkit import files, node_results, runfolder
from clusterkit.attempts import choose_nodes, nodes_to_leave_out, starts_again
from clusterkit.executors import ssh_runs, ssh_start
from clusterkit.executors.ssh_layout import SshLayout, read_layout, write_layout
from clusterkit.executors.ssh_start import NodesBusy
from clusterkit.runfolder import RunFolder, Submission


def start_again(run: RunFolder, submission: Submission) -> None:
    """Start the next attempt, unless another client does, or just has.

    Raises:
        RemoteError: nodes are busy or do not answer, and there are no spares for them; nothing
            was started.
        RefusalError: a node refused in the last moment; that was an attempt.
        UserError: the run folder cannot be read or written.
    """
    with files.locked(run.starting) as mine:
        # Another client may have started it, and even seen its end, since this one looked.
        if not mine or {run.cancelled.name, run.state.name} & runfolder.listed(run.path):
            return
        known = ssh_runs.states({run: submission}).get(run)
        if known is None:
            return
        attempt = max(known.attempt, node_results.latest_attempt(run))
        again = starts_again(
            known.state,
            node_results.first_failure(run, attempt),
            attempt=attempt,
            left_out=len(nodes_to_leave_out(node_results.read_failures(run))),
            submission=submission,
        )
        if not again:
            return
        layout = dataclasses.replace(
            read_layout(run), attempt=attempt + 1, token=secrets.token_hex(16)
        )
        ssh_start.start(run, _on_fit_nodes(run, layout), handing_over=lambda: None)


def _on_fit_nodes(run: RunFolder, layout: SshLayout) -> SshLayout:
    """Return the layout with nodes that would take the job at this moment."""
    without = set(nodes_to_leave_out(node_results.read_failures(run)))
    while True:
        names = choose_nodes(layout.names, layout.spares, without)
        layout = layout.on(names)
        write_layout(run, layout)
        try:
            ssh_start.check(run, layout)
        except NodesBusy:
            raise
        except ssh_start.NodesRefuse as error:
            if len(error.nodes) > len(layout.spares):
                raise
            without |= error.nodes
        else:
            return layout
