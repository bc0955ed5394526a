"""IB: RDMA devices and network interfaces that differ from those of most nodes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from typing import TypeVar

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import Part, known, majority, most, node_check
from clusterkit.preflight.checks.results import Result, Results, advice, ok, skip
from clusterkit.preflight.checks.types import Evidence, Tier, check
from clusterkit.preflight.probes.gpu import pci_gpus
from clusterkit.preflight.probes.gpu.pci_gpus import GpuDirect
from clusterkit.preflight.probes.net import interfaces, rdma_ports
from clusterkit.preflight.probes.net.rdma_ports import Efa, Rdma
from clusterkit.transport.probe import PreflightJob

V = TypeVar("V", bound=Hashable)
Kinds = tuple[tuple[str, int], ...]


def _votes(cast: Iterable[tuple[str, V]]) -> dict[str, Counter[V]]:
    """Return how often each value was seen under each name."""
    votes: dict[str, Counter[V]] = defaultdict(Counter)
    for name, value in cast:
        votes[name][value] += 1
    return votes


_DEVICES = advice("IB001")
_PART = Part(name="RDMA device", advice=_DEVICES)


@check("IB001", "ib-devices", rdma_ports.PROBE, tier=Tier.ROUND_TRIP)
def _devices(evidence: Evidence) -> Results:
    found, results = known(evidence, rdma_ports.PROBE, part=_PART)
    wanted = evidence.job.rdma_devices or 0
    for name, result in results:
        none = wanted and result.verdict is not Verdict.UNKNOWN
        yield name, _short(0, wanted) if none else result
    kinds = {
        name: tuple(sorted(Counter(device.family for device in rdma.devices).items()))
        for name, rdma in found.items()
    }
    usual = majority(kinds)
    for name, rdma in found.items():
        count = len(rdma.devices)
        yield name, _short(count, wanted) if count < wanted else _compared(rdma, kinds[name], usual)


def _short(count: int, wanted: int) -> Result:
    return _DEVICES.fail(f"{count or 'no'} RDMA devices, the instance type has {wanted}")


def _compared(rdma: Rdma, has: Kinds, usual: Kinds | None) -> Result:
    dead = [device.name for device in rdma.devices if not device.ports]
    count = len(rdma.devices)
    if dead:
        return _DEVICES.fail(f"{','.join(dead)} cannot be read")
    if usual is None:
        return _DEVICES.warn("RDMA devices differ between nodes, none is usual", _text(has))
    if has == usual:
        return ok(f"{count} RDMA devices")
    on_most = sum(n for _, n in usual)
    differs = f"has {_text(has)}; most nodes: {_text(usual)}"
    if count < on_most:
        return _DEVICES.fail(f"{count} RDMA devices, most nodes have {on_most}", differs)
    return _DEVICES.warn("other RDMA devices than most nodes", differs)


def _text(kinds: Kinds) -> str:
    return ", ".join(f"{n} x {kind or 'unknown kind'}" for kind, n in kinds)


@check("IB005", "ib-firmware", rdma_ports.PROBE, tier=Tier.ROUND_TRIP)
def _firmware(evidence: Evidence) -> Results:
    found, results = known(evidence, rdma_ports.PROBE)
    yield from results
    devices = {name: [d for d in rdma.devices if d.firmware] for name, rdma in found.items()}
    votes = _votes((d.family, d.firmware or "") for listed in devices.values() for d in listed)
    usual = {family: most(seen) for family, seen in votes.items()}
    for name, listed in devices.items():
        odd = [device for device in listed if device.firmware != usual[device.family]]
        if not listed:
            yield name, skip("firmware of devices is not known")
        elif odd:
            first, most_have = odd[0], usual[odd[0].family]
            summary = "firmware differs within a kind of device, none is usual"
            if most_have:
                names = ",".join(device.name for device in odd)
                summary = f"firmware {first.firmware} on {names}, usual is {most_have}"
            seen = ", ".join(f"{version}: {n}" for version, n in votes[first.family].most_common())
            yield name, advice("IB005", device=first.name).warn(summary, seen)
        else:
            yield name, ok("firmware is the same within each kind of device")


def _no_gpu_traffic(job: PreflightJob) -> str | None:
    if job.uses_gpus is False:
        return "the job uses no GPU"
    return "one node" if len(job.hosts) < 2 else None


@node_check("IB008", "ib-gpudirect", pci_gpus.GPUDIRECT, skip_if=_no_gpu_traffic)
def _gpudirect(facts: GpuDirect) -> Result:
    if facts.peermem or facts.dma_buf:
        return ok(f"GPUDirect RDMA by {facts.peermem or 'dma-buf'}")
    kernel = ".".join(str(part) for part in facts.kernel)
    summary = "no GPUDirect RDMA: nvidia_peermem is not loaded, and no dma-buf"
    driver = f"{'open' if facts.open_driver else 'closed'} driver"
    return advice("IB008").warn(summary, f"kernel {kernel}, {driver}")


@node_check("IB011", "ib-efa", rdma_ports.EFA)
def _efa(found: Efa) -> Result:
    if found.bound < found.pci:
        lost = found.pci - found.bound
        return advice("IB011").fail(f"{lost} of {found.pci} EFA devices have no driver")
    if found.usable < found.bound:
        summary = f"only {found.usable} of {found.bound} EFA devices may be opened"
        return advice("IB011", "denied").fail(summary)
    if found.provider is False:
        summary = "libfabric finds no EFA device: NCCL's plug-in goes over TCP"
        return advice("IB011", "provider").warn(summary)
    seen = "" if found.provider else "there is no fi_info that could ask libfabric"
    return ok(f"{found.pci} EFA devices", seen)


@check("IB009", "ib-mtu", interfaces.PROBE, tier=Tier.ROUND_TRIP)
def _mtu(evidence: Evidence) -> Results:
    found, results = known(evidence, interfaces.PROBE)
    yield from results
    votes = _votes((i.name, i.mtu) for up in found.values() for i in up)
    usual = {name: most(seen) for name, seen in votes.items()}
    for node, up in found.items():
        odd = [(i.name, i.mtu) for i in up if i.mtu != usual[i.name]]
        if not up:
            yield node, skip("no network interface is up")
        elif odd:
            (name, mtu), differs = odd[0], advice("IB009", interface=odd[0][0])
            seen = f"{name} " + ", ".join(f"{v}: {n}" for v, n in sorted(votes[name].items()))
            if usual[name] is None:
                summary = f"MTU of {name} differs between nodes and no value has a majority"
                yield node, differs.warn(summary, seen)
            else:
                yield (
                    node,
                    differs.fail(f"MTU of {name} is {mtu}, on most nodes {usual[name]}", seen),
                )
        else:
            yield node, ok("MTU is the same on all nodes")


@check("IB010", "ib-interface-speed", interfaces.PROBE, tier=Tier.ROUND_TRIP)
def _interface_speed(evidence: Evidence) -> Results:
    found, results = known(evidence, interfaces.PROBE)
    yield from results
    measured = {
        node: [(i.name, i.speed_mbps) for i in up if i.speed_mbps is not None]
        for node, up in found.items()
    }
    votes = _votes(pair for speeds in measured.values() for pair in speeds)
    usual = {name: most(seen) or 0 for name, seen in votes.items()}
    for node, speeds in measured.items():
        slow = [(name, speed) for name, speed in speeds if speed < usual[name]]
        if not speeds:
            yield node, skip("interfaces do not say their speed")
        elif not slow:
            yield node, ok("interfaces are as fast as on most nodes")
        else:
            name, speed = slow[0]
            summary = f"{name} runs at {speed} Mb/s, on most nodes {usual[name]}"
            figures = ", ".join(f"{n} {s} Mb/s" for n, s in slow)
            yield node, advice("IB010", interface=name).warn(summary, figures)
