"""The network between the nodes of an attempt, measured in its allocation before commands start.

That is for nodes that could not be asked before the job was handed over, such as those that Slurm
had powered down. The first node starts `python -m clusterkit.executors.node.network RUN_FOLDER`,
which runs steps on all nodes; every node waits for what it finds, which stands in the run folder.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from clusterkit.core import files
from clusterkit.core.commands import require_utf8
from clusterkit.core.errors import ClusterkitError
from clusterkit.core.records import object_of, text_of, texts_of
from clusterkit.executors.node.health import note
from clusterkit.executors.node.identity import Identity
from clusterkit.executors.node.peers import is_told_to_end
from clusterkit.executors.node.supervisor import BLOCKED
from clusterkit.executors.run import node_results
from clusterkit.executors.run.runfolder import RunFolder

_LONGEST_S = 900.0
"""More than all looks at links and all-reduces take together (preflight/network.py)."""
_LOOK_EVERY_S = 0.5


def network_fault(run: RunFolder, me: Identity) -> str | None:
    """Return what is wrong with the links of this node; None where nothing is, or nobody asks.

    What could not be measured is no fault of a node.
    """
    if (files.read_json(run.node_checks) or {}).get("network") is not True:
        return None
    if me.rank:
        found = _await(run, me)
    else:
        with subprocess.Popen((sys.executable, "-P", "-m", __name__, str(run.path))) as measuring:
            found = _await(run, me, measuring)
            measuring.terminate()
        note(run, me, texts_of(found, "lines"))
    return text_of(object_of(found, "unfit"), me.name)


def _await(
    run: RunFolder, me: Identity, measuring: subprocess.Popen[bytes] | None = None
) -> dict[str, Any]:
    """Return what was found, once it is there; nothing where this attempt ends before."""
    give_up_at = time.monotonic() + _LONGEST_S
    while time.monotonic() < give_up_at:
        over = measuring is not None and measuring.poll() is not None
        found = files.read_json(run.network(me.attempt))
        if found is not None:
            return found
        failed = node_results.first_failure(run, me.attempt) is not None
        if over or failed or is_told_to_end() or run.cancelled.exists():
            break
        time.sleep(_LOOK_EVERY_S)
    return {}


def _measure(run: RunFolder, me: Identity) -> dict[str, Any]:
    # Load a hundred small modules, and only here.
    from clusterkit.preflight.on_node import examine_network  # noqa: PLC0415
    from clusterkit.preflight.text import in_words, report_lines  # noqa: PLC0415
    from clusterkit.transport.base import by_step  # noqa: PLC0415

    document = files.read_json(run.node_checks) or {}
    steps = by_step(me.job_id, name="clusterkit-network")
    try:
        report = examine_network(document, me.among, steps)
    except ClusterkitError as error:
        return {"lines": [f"the network could not be checked: {error}"]}
    return {
        "lines": [line for _, line in report_lines(report)] if report.bad else [],
        "unfit": {
            node: in_words([finding for finding in report.bad if node in finding.nodes])
            for node in report.exclude
        },
    }


def main(arguments: list[str]) -> int:
    """Measure, and leave what was found where all nodes look for it."""
    # The worker that starts this has them blocked, and ends it by one.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED)
    require_utf8()
    run = RunFolder(Path(arguments[0]))
    me = Identity.from_environment(os.environ)
    with suppress(ClusterkitError):  # a disk that takes no more is for the worker to tell
        files.write_json(run.network(me.attempt), _measure(run, me))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
