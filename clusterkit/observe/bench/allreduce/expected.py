"""What the estimate assumes of the links that were measured, and what others have measured."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from clusterkit.core.errors import UserError
from clusterkit.estimate.machines.gpus import Gpu, gpu_named
from clusterkit.estimate.machines.interconnects import (
    Fabric,
    Group,
    fast_domain,
    group_of,
    interconnect_named,
    network_of,
)
from clusterkit.observe.bench.allreduce.operations import MEASURED, Operation
from clusterkit.observe.bench.allreduce.result import Measured, Result
from clusterkit.preflight.expected_busbw import Published, published_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """What `estimate` takes for the links of these ranks, before any calibration."""

    op: Operation
    bytes: int
    """The message that was measured."""
    busbw: float
    """Bytes per second that the estimate assumes for this size."""
    share: float
    """Measured over assumed."""
    over: str
    """The links: `NVLink of H100-SXM`, `infiniband-ndr`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The hardware that was measured, as the estimate knows it."""

    gpu: Gpu
    fabric: Fabric
    domain: int
    """How many GPUs share the fast links."""
    group: Group


def place_of(result: Result, interconnect: str | None, gpu: str | None = None) -> Place | None:
    """Return where a result was measured; None where too little is known of it.

    Raises:
        UserError: `interconnect` or `gpu` names nothing that is known.
    """
    known = _gpu(result, gpu)
    if known is None or result.ranks is None or result.ranks < 2 or result.per_node is None:
        return None
    network = network_of(known, interconnect)
    domain = fast_domain(known, result.per_node, result.ranks)
    return Place(
        gpu=known,
        fabric=Fabric(gpu=known, gpus_per_node=domain, network=network),
        domain=domain,
        group=group_of(result.ranks, 1, domain),
    )


def _gpu(result: Result, said: str | None) -> Gpu | None:
    """Return the GPU that a result names, or else the one that the user has said."""
    if result.device == "cpu":
        return None
    with suppress(UserError):  # one that the estimate does not know, or several
        return gpu_named(result.device or "")
    return gpu_named(said) if said is not None else None


def assumed(
    result: Result, measured: Measured, place: Place | None, interconnect: str | None
) -> Assumption | None:
    """Return what the estimate assumes of the links for a message; None where it knows nothing.

    Without GPUs only a network that is named can be compared with: its rate in one direction, of
    which a ring between all ranks has the whole.
    """
    if measured.op not in MEASURED or result.perhaps:
        return None
    if place is not None:
        collective = (
            place.fabric.all_reduce_s
            if measured.op is Operation.ALL_REDUCE
            else place.fabric.all_gather_s
        )
        usual = collective(measured.bytes, place.group)
        within = place.group.nodes == 1
        over = f"the links in a node of {place.gpu.name}" if within else place.fabric.network.name
        busbw = measured.busbw * measured.seconds / usual
    elif interconnect is not None and result.backend == "gloo" and (result.node_count or 0) > 1:
        network = interconnect_named(interconnect)
        busbw, over = network.node_gbs(1) * 1e9, network.name
    else:
        return None
    share = measured.busbw / busbw
    return Assumption(op=measured.op, bytes=measured.bytes, busbw=busbw, share=share, over=over)


def published(result: Result, place: Place | None) -> Published | None:
    """Return what others have published for the same hardware; None where nothing is known."""
    if result.device is None or result.node_count is None or result.per_node is None:
        return None
    return published_for(
        result.device,
        nodes=result.node_count,
        per_node=result.per_node,
        network=place.fabric.network.name if place is not None else None,
    )
