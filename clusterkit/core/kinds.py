"""The kinds of clusters, and what is special about each: the only place that lists them.

What a kind needs beside this is an executor (`executors/KIND/executor.py`) and, where its nodes are
reached in a new way, a transport (`transport/choose.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traits:
    ways: tuple[str, ...]
    scheduled: bool = False
    shares_machine: bool = False
    lists_hosts: bool = False


class ClusterKind(StrEnum):
    """How the nodes of a cluster are reached."""

    LOCAL = "local"
    SLURM = "slurm"
    SSH = "ssh"

    @property
    def ways(self) -> tuple[str, ...]:
        """The transports that reach the nodes of a job, the usual one first."""
        return _TRAITS[self].ways

    @property
    def scheduled(self) -> bool:
        """Whether Slurm queues, starts, restarts and ends jobs, and speaks of their states."""
        return _TRAITS[self].scheduled

    @property
    def shares_machine(self) -> bool:
        """Whether all nodes are this machine."""
        return _TRAITS[self].shares_machine

    @property
    def lists_hosts(self) -> bool:
        """Whether nodes are the hosts of the configuration, on which clients start jobs by ssh."""
        return _TRAITS[self].lists_hosts


_TRAITS = {
    ClusterKind.LOCAL: _Traits(ways=("local",), shares_machine=True),
    ClusterKind.SLURM: _Traits(ways=("srun", "ssh"), scheduled=True),
    ClusterKind.SSH: _Traits(ways=("ssh",), lists_hosts=True),
}
