"""What a node without a scheduler is given in place of an allocation: names, a port, its GPUs."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from clusterkit.core import peers
from clusterkit.core.model import Runtime

_GPU_DEVICE = re.compile(r"nvidia\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The nodes of one attempt at a job, in rank order."""

    job_id: str
    attempt: int = 0
    """How often the job was restarted before this start."""
    names: tuple[str, ...]
    slots: tuple[int, ...]
    tasks: int
    """How many nodes get a worker: all, or the first alone where it reaches the others."""
    head: str
    """Address of the first node."""
    port: int
    token: str
    """By which nodes know who is of this attempt."""

    def variables(self, rank: int, *, executor: str) -> dict[str, str]:
        """Return the variables of one node: ours (`model.Runtime`), and submitit's."""
        submitit = f"SUBMITIT_{executor.upper()}"
        return {
            Runtime.JOB_ID.name: self.job_id,
            Runtime.RESTART_COUNT.name: str(self.attempt),
            Runtime.NNODES.name: str(len(self.names)),
            Runtime.NODE_RANK.name: str(rank),
            Runtime.NODE_NAME.name: self.names[rank],
            Runtime.NODES.name: " ".join(self.names),
            Runtime.SLOTS.name: " ".join(str(number) for number in self.slots),
            Runtime.HEAD_ADDR.name: self.head,
            Runtime.PORT.name: str(self.port),
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
