"""Who a node is, in the variables that every executor provides.

Where there is no scheduler, `Allocation` says what these are: names, a port, the GPUs of a node.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Self

from clusterkit.core import files, peers
from clusterkit.core.bounds import Attempt, Matching, NodeName, Rank
from clusterkit.core.errors import UserError
from clusterkit.core.hosts import hostlist
from clusterkit.core.model import NodeResult, Runtime
from clusterkit.executors.run import node_results
from clusterkit.executors.run.runfolder import RunFolder, listed

_GPU_DEVICE = re.compile(r"nvidia\d+")
_STEP = re.compile(r"step-([0-9]{1,7})-([0-9]{1,10})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The nodes of one attempt at a job, in rank order."""

    job_id: Annotated[str, Matching("[A-Za-z0-9._-]{1,80}")]
    attempt: Attempt = 0
    """How often the job was restarted before this start."""
    names: tuple[NodeName, ...]
    slots: tuple[Rank, ...]
    """Slots the job has on each node."""
    tasks: Rank
    """How many nodes get a worker: all, or the first alone where it reaches the others."""
    least: Rank | None = None
    """How many nodes are enough for the job to go on; None where all are needed."""
    token: str = field(default_factory=peers.new_token)
    """By which nodes know who is of this attempt."""
    time_limit_s: int | None = None

    def restarted(self, attempt: int) -> Self:
        """Return the same nodes for another attempt, to which the token of this one is unknown."""
        return replace(self, attempt=attempt, token=peers.new_token())

    def lost(self, rank: int, reason: str) -> NodeResult:
        """Return the result of a node that has gone."""
        return node_results.lost(rank, self.names[rank], reason)

    def variables(self, rank: int, *, executor: str, head: str, port: int) -> dict[str, str]:
        """Return the variables of one node: ours (`model.Runtime`), and submitit's.

        `head` is the address of the first node, `port` the first port of the job.
        """
        submitit = f"SUBMITIT_{executor.upper()}"
        return {
            Runtime.JOB_ID.name: self.job_id,
            Runtime.RESTART_COUNT.name: str(self.attempt),
            Runtime.NNODES.name: str(len(self.names)),
            Runtime.NODE_RANK.name: str(rank),
            Runtime.NODE_NAME.name: self.names[rank],
            Runtime.NODES.name: " ".join(self.names),
            Runtime.SLOTS.name: " ".join(str(number) for number in self.slots),
            Runtime.HEAD_ADDR.name: head,
            Runtime.PORT.name: str(port),
            peers.VARIABLE: self.token,
            "SUBMITIT_EXECUTOR": executor,
            f"{submitit}_JOB_ID": self.job_id,
            f"{submitit}_NTASKS": str(self.tasks),
            f"{submitit}_JOB_NUM_NODES": str(self.tasks),
            f"{submitit}_NODEID": str(rank),
            f"{submitit}_GLOBALID": str(rank),
            f"{submitit}_LOCALID": "0",
        }


def visible_gpus() -> tuple[str, ...]:
    """Return the GPUs this machine shows, as `CUDA_VISIBLE_DEVICES` names them; no CUDA needed."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return tuple(part.strip() for part in chosen.split(",") if part.strip() not in {"", "-1"})
    # Inside a container only some devices are there, under their old numbers; CUDA counts from 0.
    count = sum(1 for path in Path("/dev").iterdir() if _GPU_DEVICE.fullmatch(path.name))
    return tuple(str(index) for index in range(count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who this node is, in the variables that every executor provides."""

    job_id: str
    attempt: int
    """How often the job was restarted before this start."""
    rank: int
    of: int
    """Number of nodes in this attempt."""
    name: str
    among: tuple[str, ...]
    """The nodes of this attempt in rank order."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Identity:
        """Read the identity of this node.

        Raises:
            UserError: the worker was not started by an executor.
        """
        needed = [Runtime.JOB_ID, Runtime.RESTART_COUNT, Runtime.NODE_RANK, Runtime.NODES]
        missing = [ref.name for ref in needed if not environment.get(ref.name)]
        if missing:
            raise UserError(
                f"not started as a node of a job: {', '.join(missing)} missing",
                hint="the worker is started by `clusterkit submit`; by hand, run node.sh",
            )
        job_id, attempt, rank, nodes = (environment[ref.name] for ref in needed)
        known = nodes.split()
        if not (attempt.isdigit() and rank.isdigit() and int(rank) < len(known)):
            raise UserError(f"no node of this job: rank {rank} of {nodes}, restart {attempt}")
        return cls(
            job_id=job_id,
            attempt=int(attempt),
            rank=int(rank),
            of=len(known),
            name=known[int(rank)],
            among=tuple(known),
        )


def of_this_step(run: RunFolder, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that differ from those of the batch script; none the first time.

    A step may run again within one start of its job: another attempt, perhaps on other nodes.
    HyperPod does that, with `srun --auto-resume=1`, once it has replaced a node. The batch script
    knows nothing of it, and its variables are those of the first time. Each step leaves its number
    in the run folder, so all nodes count alike.
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
