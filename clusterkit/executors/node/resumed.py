"""A step that runs again within one start of its job: another attempt, perhaps on other nodes.

HyperPod does that, with `srun --auto-resume=1`, once it has replaced a node. The batch script knows
nothing of it, and its variables are those of the first time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress

from clusterkit.core import files
from clusterkit.core.errors import UserError
from clusterkit.core.hosts import hostlist
from clusterkit.core.model import Runtime
from clusterkit.executors.run.runfolder import RunFolder, listed

_STEP = re.compile(r"step-([0-9]{1,7})-([0-9]{1,10})")


def of_this_step(run: RunFolder, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that differ from those of the batch script; none the first time.

    Each step leaves its number in the run folder, so all nodes count alike.
    """
    name = f"step-{environment.get(Runtime.RESTART_COUNT.name)}-{environment.get('SLURM_STEP_ID')}"
    mine = _STEP.fullmatch(name)
    if mine is None:
        return {}
    with suppress(UserError):  # a disk that takes no more is for what follows to tell
        files.create_link(run.path / name, "begun")
    restart, step = int(mine[1]), int(mine[2])
    steps = (_STEP.fullmatch(there) for there in listed(run.path))
    before = {(int(one[1]), int(one[2])) for one in steps if one is not None}
    before = {one for one in before if one < (restart, step)}
    again = len(before) - len({start for start, _ in before if start < restart})
    if not again:
        return {}
    return {Runtime.RESTART_COUNT.name: str(restart + again), **_nodes_of(environment)}


def _nodes_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a replaced node has changed, in the order of the tasks of the step."""
    known = environment.get(Runtime.NODES.name, "").split()
    try:
        nodes = hostlist.expand(environment.get("SLURM_STEP_NODELIST", ""))
    except UserError:
        return {}
    if len(nodes) != len(known) or set(nodes) == set(known):
        return {}
    changed = {Runtime.NODES.name: " ".join(nodes)}
    if nodes[0] != known[0]:
        changed[Runtime.HEAD_ADDR.name] = nodes[0]
    return changed
