"""What a local node is given in place of an allocation: names, addresses, a port, its GPUs."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterkit.errors import RemoteError
from clusterkit.model import PORT_STRIDE, Runtime

_GPU_DEVICE = re.compile(r"nvidia\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLayout:
    """The nodes of one local job."""

    job_id: str
    names: tuple[str, ...]
    slots: tuple[int, ...]
    tasks: int
    """How many nodes get a worker: all, or the first alone where it reaches the others."""
    port: int
    devices: tuple[tuple[str, ...], ...] | None
    """GPUs of each node; None where every node sees what this machine shows."""
    time_limit_s: float | None

    @classmethod
    def from_plan(cls, job_id: str, plan: Mapping[str, Any], *, tasks: int) -> LocalLayout:
        """Lay out the nodes of a `plan.json`, of which the first `tasks` get a worker.

        Raises:
            RemoteError: no port is free.
        """
        count = int(plan["nodes"])
        slots = tuple(int(number) for number in plan["slots"][:count])
        names = tuple(plan["node_names"][:count]) or tuple(f"node-{k}" for k in range(count))
        low, high = (int(port) for port in plan["cluster"]["port_range"])
        return cls(
            job_id=job_id,
            names=names,
            slots=slots,
            tasks=tasks,
            port=free_port(low, high, seed=job_id, address=address_of(0)),
            devices=split_devices(visible_gpus(), slots),
            time_limit_s=plan["time_limit_s"],
        )


def address_of(rank: int) -> str:
    """Return the loopback address of a node: 127.0.0.1 for the first, then upward."""
    return str(ipaddress.IPv4Address("127.0.0.1") + rank)


def node_environment(layout: LocalLayout, rank: int) -> dict[str, str]:
    """Return the variables of one node: ours (`model.Runtime`) and submitit's."""
    count = str(len(layout.names))
    environment = {
        Runtime.JOB_ID.name: layout.job_id,
        Runtime.RESTART_COUNT.name: "0",
        Runtime.NNODES.name: count,
        Runtime.NODE_RANK.name: str(rank),
        Runtime.NODE_NAME.name: layout.names[rank],
        Runtime.NODES.name: " ".join(layout.names),
        Runtime.SLOTS.name: " ".join(str(number) for number in layout.slots),
        Runtime.HEAD_ADDR.name: address_of(0),
        Runtime.PORT.name: str(layout.port),
        "CK_NODE_ADDR": address_of(rank),
        "SUBMITIT_EXECUTOR": "local",
        "SUBMITIT_LOCAL_JOB_ID": layout.job_id,
        "SUBMITIT_LOCAL_NTASKS": str(layout.tasks),
        "SUBMITIT_LOCAL_JOB_NUM_NODES": str(layout.tasks),
        "SUBMITIT_LOCAL_NODEID": str(rank),
        "SUBMITIT_LOCAL_GLOBALID": str(rank),
        "SUBMITIT_LOCAL_LOCALID": "0",
    }
    if layout.devices is not None and layout.tasks == len(layout.names):
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(layout.devices[rank])
    return environment


def free_port(low: int, high: int, *, seed: str, address: str) -> int:
    """Return a port in `low..high` on which one can listen, starting where `seed` points.

    Raises:
        RemoteError: all are taken.
    """
    steps = max(1, (high - low + 1) // PORT_STRIDE)
    start = zlib.crc32(seed.encode()) % steps
    for step in range(steps):
        port = low + (start + step) % steps * PORT_STRIDE
        if _is_free(address, port):
            return port
    raise RemoteError(f"no free port in {low}-{high}", hint="set `port_range` to another range")


def visible_gpus() -> tuple[str, ...]:
    """Return the GPUs this machine shows, as `CUDA_VISIBLE_DEVICES` names them; no CUDA needed."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return tuple(part.strip() for part in chosen.split(",") if part.strip() not in {"", "-1"})
    # Inside a container only some devices are there, under their old numbers; CUDA counts from 0.
    count = sum(1 for path in Path("/dev").iterdir() if _GPU_DEVICE.fullmatch(path.name))
    return tuple(str(index) for index in range(count))


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


def _is_free(address: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError as error:
            if error.errno in {errno.EADDRINUSE, errno.EACCES}:
                return False
            raise RemoteError(f"cannot listen on {address}: {error.strerror}") from error
    return True
