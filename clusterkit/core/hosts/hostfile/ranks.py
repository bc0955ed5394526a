"""Give every process its ranks in the way of Horovod's host assignment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from clusterkit.core.errors import UserError
from clusterkit.core.hosts.hostfile.slots import slot_pool
from clusterkit.core.model import Host


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One process: its place among all, on its host, and among those of equal local rank."""

    host: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int
    local_size: int
    cross_size: int


def assign_ranks(hosts: Iterable[Host], processes: int | None = None) -> tuple[Rank, ...]:
    """Return one `Rank` a process, hosts filled one after the other.

    `processes` is the exact number of processes, None for one a slot. (Horovod's own static
    launcher takes it for a minimum and starts one process a slot: horovod 0.28.1,
    runner/gloo_run.py.)

    Raises:
        UserError: `processes` is less than 1 or more than the slots, or the slots of a host are
            unknown.
    """
    capacity = {name: len(slots) for name, slots in slot_pool(hosts).items()}
    size = sum(capacity.values()) if processes is None else processes
    if size < 1:
        raise UserError(f"{size} processes cannot be started", hint="ask for at least 1")
    if size > sum(capacity.values()):
        raise UserError(
            f"{size} processes need {size} slots, and there are {sum(capacity.values())}",
            hint="ask for fewer processes, or add hosts",
        )
    local_sizes: dict[str, int] = {}
    left = size
    for host, slots in capacity.items():
        local_sizes[host] = min(slots, left)
        left -= local_sizes[host]
    cross_sizes = Counter(local for count in local_sizes.values() for local in range(count))
    cross_ranks: Counter[int] = Counter()
    ranks: list[Rank] = []
    for host, local_size in local_sizes.items():
        for local_rank in range(local_size):
            ranks.append(
                Rank(
                    host=host,
                    rank=len(ranks),
                    local_rank=local_rank,
                    cross_rank=cross_ranks[local_rank],
                    size=size,
                    local_size=local_size,
                    cross_size=cross_sizes[local_rank],
                )
            )
            cross_ranks[local_rank] += 1
    return tuple(ranks)
