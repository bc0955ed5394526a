"""The nodes of a local job: loopback addresses, a port, and their shares of this machine's GPUs."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clusterkit.core import peers
from clusterkit.core.ports import HeldPort, hold_port
from clusterkit.executors.node.allocation import Allocation, visible_gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLayout:
    """The nodes of one local job."""

    allocation: Allocation
    devices: tuple[tuple[str, ...], ...] | None
    """GPUs of each node; None where every node sees what this machine shows."""
    time_limit_s: float | None
    port: HeldPort

    @classmethod
    def from_plan(cls, job_id: str, plan: Mapping[str, Any], *, tasks: int) -> LocalLayout:
        """Lay out the nodes of a `plan.json`, of which the first `tasks` get a worker.

        Raises:
            RemoteError: no port is free.
        """
        count = int(plan["nodes"])
        slots = tuple(int(number) for number in plan["slots"][:count])
        low, high = (int(port) for port in plan["cluster"]["port_range"])
        port = hold_port(low, high, seed=job_id)
        return cls(
            allocation=Allocation(
                job_id=job_id,
                names=tuple(plan["node_names"][:count]) or tuple(f"node-{k}" for k in range(count)),
                slots=slots,
                tasks=tasks,
                head=address_of(0),
                port=port.number,
                token=peers.new_token(),
            ),
            devices=split_devices(visible_gpus(), slots),
            time_limit_s=plan["time_limit_s"],
            port=port,
        )

    def again(self) -> LocalLayout:
        """Return the layout of the next attempt, which has the same port."""
        attempt = self.allocation.attempt + 1
        allocation = replace(self.allocation, attempt=attempt, token=peers.new_token())
        return replace(self, allocation=allocation)

    def environment(self, rank: int) -> dict[str, str]:
        """Return the variables of one node."""
        nodes = self.allocation
        environment = {
            **nodes.variables(rank, executor="local"),
            "CK_NODE_ADDR": address_of(rank),
        }
        if self.devices is not None and nodes.tasks == len(nodes.names):
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(self.devices[rank])
        return environment


def address_of(rank: int) -> str:
    """Return the loopback address of a node: 127.0.0.1 for the first, then upward."""
    return str(ipaddress.IPv4Address("127.0.0.1") + rank)


def split_devices(
    devices: Sequence[str], slots: Sequence[int]
) -> tuple[tuple[str, ...], ...] | None:
    """Give every node as many GPUs as it has slots; None where there are not enough for all."""
    if not devices or sum(slots) > len(devices):
        return None
    shares = []
    first = 0
    for number in slots:
        shares.append(tuple(devices[first : first + number]))
        first += number
    return tuple(shares)
