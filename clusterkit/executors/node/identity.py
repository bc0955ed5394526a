"""Who a node is, in the variables that every executor provides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clusterkit.core.errors import UserError
from clusterkit.core.model import Runtime


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
