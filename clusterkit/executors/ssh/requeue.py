"""Start the next attempt of a job over ssh, with spares in the place of nodes that cannot be used.

Done by a client that looks on (`wait`, `logs -f`, `supervise`), because there is nobody else: the
machines have no scheduler.
"""

from __future__ import annotations

import dataclasses
import secrets

from clusterkit.core import files
from clusterkit.executors.run import node_results, runfolder
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.executors.ssh import start, states
from clusterkit.executors.ssh.choose_nodes import on_willing_nodes
from clusterkit.executors.ssh.layout import read_layout


def start_again(run: RunFolder, submission: Submission) -> None:
    """Start the next attempt, unless another client does, or just has.

    Raises:
        RemoteError: too few nodes take the job now; it is as if nothing had been started.
        RefusalError: a node refused in the last moment; that was an attempt.
        UserError: the run folder cannot be read or written.
    """
    with files.locked(run.starting) as mine:
        # Another client may have started it, and even seen its end, since this one looked.
        if not mine or {run.cancelled.name, run.state.name} & runfolder.listed(run.path):
            return
        known = states.states({run: submission}).get(run)
        if known is None:
            return
        attempt = max(known.attempt, node_results.latest_attempt(run))
        if not node_results.starts_again(run, submission, known.state, attempt):
            return
        without = node_results.left_out(run)
        layout, _ = on_willing_nodes(run, read_layout(run), without=without)
        layout = dataclasses.replace(layout, attempt=attempt + 1, token=secrets.token_hex(16))
        start.start(run, layout, handing_over=lambda: None)
