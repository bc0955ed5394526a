"""Read what the snippet of `vitals_host` prints."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from clusterkit.transport.probe import Unparsed

_KIB = 1024
_LANES = 4
"""Octets in a unit of the data counters of a port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTicks:
    """Time of all processors together since the boot, in ticks of `HostVitals.ticks_per_s`."""

    busy: int
    idle: int
    waiting: int
    """Idle with a read or write of a disk outstanding (iowait)."""
    stolen: int
    """Taken by the host of a virtual machine."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.busy + self.idle + self.waiting + self.stolen


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceCounters:
    """A network interface since the boot."""

    name: str
    received_bytes: int
    sent_bytes: int
    errors: int
    """Of both directions."""
    dropped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PortCounters:
    """A port of an RDMA device since its counters were reset."""

    name: str
    """Such as `mlx5_0/1`."""
    received_bytes: int
    sent_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuQuota:
    """A cgroup that may not use more than so many processors."""

    path: str
    """Below the mount of cgroups; empty is the root that this node (or container) sees."""
    cpus: float
    periods: int
    throttled: int
    """Periods in which it was stopped because its share was used up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """A cgroup (version 2) that may not use more than so much memory."""

    path: str
    limit_bytes: int
    used_bytes: int
    """With the cache of files, which gives way."""
    oom_kills: int
    """Since the cgroup was made, in it and below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process of a job."""

    pid: int
    run: str
    """Run id of its job."""
    node_rank: int
    rank: int | None
    """Among the processes of the job; None for those that are none of its ranks."""
    command: str
    """As the kernel names it: at most 15 characters."""
    state: str
    """R runs, S sleeps, D waits for a disk or network file system, T stopped, Z has ended."""
    cpu_s: float
    threads: int
    memory_bytes: int
    started_ticks: int
    """Tells it from a later one of the same pid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostVitals:
    """One reading of a node."""

    uptime_s: float
    """The clock of the reading: seconds since the boot."""
    ticks_per_s: int
    cpus: int
    ticks: CpuTicks
    load: float
    """Average number of processes that ran or waited for a disk in the last minute."""
    memory_bytes: int
    available_bytes: int
    """Memory that new processes can have without swapping."""
    swap_bytes: int
    swap_free_bytes: int
    interfaces: tuple[InterfaceCounters, ...]
    ports: tuple[PortCounters, ...]
    quotas: tuple[CpuQuota, ...]
    limits: tuple[MemoryLimit, ...]
    processes: tuple[Process, ...]


_NUMBER = r"\d{1,20}"
_MAYBE = rf"(?:{_NUMBER}|-|N/A \(no PMA\))"
"""Earlier snippets told of ports without counters as well."""
_NAME = r"[^\s/|]{1,64}"
_SHAPES = {
    "cpu": re.compile(rf"cpu +({_NUMBER}(?: {_NUMBER}){{6,9}})"),
    "cpus": re.compile(r"cpus (\d{1,6})"),
    "load": re.compile(r"load (\d{1,9}(?:\.\d{1,3})?)"),
    "memory": re.compile(rf"memory (\w+): ({_NUMBER})"),
    "net": re.compile(rf"net ({_NUMBER}(?: {_NUMBER}){{5}}) ({_NAME})"),
    "port": re.compile(rf"port ({_MAYBE}) ({_MAYBE}) ([\w.-]+/\d{{1,3}})"),
    "quota": re.compile(rf"quota ({_NUMBER}(?: {_NUMBER}){{3}}) ?(.*)"),
    "limit": re.compile(rf"limit ({_NUMBER}(?: {_NUMBER}){{2}}) ?(.*)"),
    "task": re.compile(
        r"task ([\w.-]+):(\d{1,7}),(\d{1,9}|-) (\d{1,10}) \((.{0,255})\) (\w) (-?\d+(?: -?\d+)*)"
    ),
}
_UNITS = re.compile(r"units (\d{1,5}) (\d{1,8})")
_READING = re.compile(r"reading (\d{1,12}(?:\.\d{1,3})?)")
_UTIME, _STIME, _THREADS, _STARTED, _PAGES = 10, 11, 16, 18, 20
"""Positions behind the state in /proc/PID/stat (fields 14, 15, 20, 22 and 24)."""


def read_host(text: str) -> tuple[HostVitals, ...]:
    """Return the readings of a node in the order in which they were taken, at least one.

    Raises:
        Unparsed: a line is none of the snippet's, or a reading is not whole.
    """
    first, *lines = [line for line in text.split("\n") if line] or [""]
    units = _UNITS.fullmatch(first)
    if units is None or not int(units[1]) or not int(units[2]):
        raise Unparsed(f"no units: {first[:40]!r}")
    readings: list[_Reading] = []
    for line in lines:
        began = _READING.fullmatch(line)
        if began is not None:
            readings.append(_Reading(float(began[1]), int(units[1]), int(units[2])))
        elif not readings:
            raise Unparsed(f"line {line[:40]!r} before a reading")
        else:
            readings[-1].add(line)
    if not readings:
        raise Unparsed("no reading")
    return tuple(reading.whole() for reading in readings)


@dataclass(slots=True)
class _Reading:
    uptime_s: float
    ticks_per_s: int
    page_bytes: int
    ticks: CpuTicks | None = None
    cpus: int | None = None
    load: float | None = None
    memory: dict[str, int] = field(default_factory=dict)
    interfaces: dict[str, InterfaceCounters] = field(default_factory=dict)
    ports: dict[str, PortCounters] = field(default_factory=dict)
    quotas: dict[str, CpuQuota] = field(default_factory=dict)
    limits: dict[str, MemoryLimit] = field(default_factory=dict)
    processes: dict[int, Process] = field(default_factory=dict)

    def add(self, line: str) -> None:
        kind = line.partition(" ")[0]
        if kind == "task" and not line.isprintable():
            return  # a process named itself so; nobody else can be meant
        shape = _SHAPES.get(kind)
        match = shape.fullmatch(line) if shape is not None else None
        if match is None:
            raise Unparsed(f"line {line[:40]!r}")
        reader: Callable[[_Reading, re.Match[str]], None] = _READERS[kind]
        reader(self, match)

    def whole(self) -> HostVitals:
        memory = self.memory
        total = memory.get("MemTotal")
        if self.ticks is None or not self.cpus or self.load is None or not total:
            raise Unparsed("a reading is cut off")
        # Kernels before 3.14 do not say what is available.
        guess = sum(memory.get(name, 0) for name in ("MemFree", "Buffers", "Cached"))
        return HostVitals(
            uptime_s=self.uptime_s,
            ticks_per_s=self.ticks_per_s,
            cpus=self.cpus,
            ticks=self.ticks,
            load=self.load,
            memory_bytes=total * _KIB,
            available_bytes=memory.get("MemAvailable", guess) * _KIB,
            swap_bytes=memory.get("SwapTotal", 0) * _KIB,
            swap_free_bytes=memory.get("SwapFree", 0) * _KIB,
            interfaces=tuple(self.interfaces.values()),
            ports=tuple(self.ports.values()),
            quotas=tuple(self.quotas.values()),
            limits=tuple(self.limits.values()),
            processes=tuple(self.processes.values()),
        )


def _cpu(reading: _Reading, match: re.Match[str]) -> None:
    user, nice, system, idle, waiting, hard, soft, *more = map(int, match[1].split())
    busy = user + nice + system + hard + soft  # guests stand in `user` already
    stolen = more[0] if more else 0
    reading.ticks = CpuTicks(busy=busy, idle=idle, waiting=waiting, stolen=stolen)


def _cpus(reading: _Reading, match: re.Match[str]) -> None:
    reading.cpus = int(match[1])


def _load(reading: _Reading, match: re.Match[str]) -> None:
    reading.load = float(match[1])


def _memory(reading: _Reading, match: re.Match[str]) -> None:
    reading.memory[match[1]] = int(match[2])


def _net(reading: _Reading, match: re.Match[str]) -> None:
    received, bad_in, lost_in, sent, bad_out, lost_out = map(int, match[1].split())
    reading.interfaces[match[2]] = InterfaceCounters(
        name=match[2],
        received_bytes=received,
        sent_bytes=sent,
        errors=bad_in + bad_out,
        dropped=lost_in + lost_out,
    )


def _port(reading: _Reading, match: re.Match[str]) -> None:
    if not (match[1].isdecimal() and match[2].isdecimal()):
        return
    reading.ports[match[3]] = PortCounters(
        name=match[3], received_bytes=int(match[1]) * _LANES, sent_bytes=int(match[2]) * _LANES
    )


def _quota(reading: _Reading, match: re.Match[str]) -> None:
    quota, period, periods, throttled = map(int, match[1].split())
    if not period:
        raise Unparsed("a quota of no period")
    reading.quotas[match[2]] = CpuQuota(
        path=match[2], cpus=quota / period, periods=periods, throttled=throttled
    )


def _limit(reading: _Reading, match: re.Match[str]) -> None:
    limit, used, kills = map(int, match[1].split())
    reading.limits[match[2]] = MemoryLimit(
        path=match[2], limit_bytes=limit, used_bytes=used, oom_kills=kills
    )


def _task(reading: _Reading, match: re.Match[str]) -> None:
    fields = match[7].split()
    if len(fields) <= _PAGES:
        raise Unparsed("a process is cut off")
    pid = int(match[4])
    reading.processes[pid] = Process(
        pid=pid,
        run=match[1],
        node_rank=int(match[2]),
        rank=None if match[3] == "-" else int(match[3]),
        command=match[5],
        state=match[6],
        cpu_s=(int(fields[_UTIME]) + int(fields[_STIME])) / reading.ticks_per_s,
        threads=int(fields[_THREADS]),
        memory_bytes=int(fields[_PAGES]) * reading.page_bytes,
        started_ticks=int(fields[_STARTED]),
    )


_READERS = {
    "cpu": _cpu,
    "cpus": _cpus,
    "load": _load,
    "memory": _memory,
    "net": _net,
    "port": _port,
    "quota": _quota,
    "limit": _limit,
    "task": _task,
}
