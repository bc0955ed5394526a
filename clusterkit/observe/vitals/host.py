"""What a node is doing: raw counters of the kernel, and the processes of clusterkit's jobs on it.

Counters mean nothing alone: `clusterkit.observe.vitals.sample` turns two readings into rates.
Sources: proc(5) (`/proc/stat`, `/proc/meminfo`, `/proc/net/dev`, `/proc/PID/stat`), the kernel's
Documentation/ABI/stable/sysfs-class-infiniband (data counters are in units of four octets), and
Documentation/admin-guide/cgroup-v2.rst and scheduler/sched-bwc.rst (`cpu.stat`).

Processes of jobs, and their ranks, are known by their variables (programs/probes/ranks.sh). Of the
cgroups that they, and the script itself, are in, those with a limit are told, up to the root; one
that ends while it is read is left out. So are an interface on top of one that is told (`lower_*` in
its folder: bond, VLAN, bridge, macvlan), as the same bytes pass both, and an RDMA port whose
counters are not numbers (drivers/infiniband/core/sysfs.c: `N/A (no PMA)`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from clusterkit.core.data import read_template
from clusterkit.preflight.probes.net.interfaces import VIRTUAL
from clusterkit.transport.probe import PreflightJob, Probe, Unparsed

_KIB = 1024
_LANES = 4
"""Octets in a unit of the data counters of a port."""
_PAUSE_S = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTicks:
    """Time of all CPUs together since the boot, in ticks."""

    busy: int
    idle: int
    waiting: int
    """Idle with a read or write of a disk outstanding (I/O wait)."""
    stolen: int
    """Used by the host of a virtual machine (CPU steal)."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.busy + self.idle + self.waiting + self.stolen


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCounters:
    """A network interface since the boot, or a port of an RDMA device since it was reset."""

    name: str
    """Such as `eth0`, or `mlx5_0/1` of a port."""
    received_bytes: int
    sent_bytes: int
    errors: int = 0
    """Of both directions."""
    dropped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuQuota:
    """A cgroup that may not use more than so many CPUs."""

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
    cpus: int
    ticks: CpuTicks
    load: float
    """Average number of processes that ran or waited for a disk in the last minute."""
    memory_bytes: int
    available_bytes: int
    """Memory that new processes can have without swapping."""
    swap_bytes: int
    swap_free_bytes: int
    interfaces: tuple[LinkCounters, ...]
    ports: tuple[LinkCounters, ...]
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
    "net": re.compile(rf"net ({_NUMBER}(?: {_NUMBER}){{5}}) (?P<name>{_NAME})"),
    "port": re.compile(rf"port ({_MAYBE}) ({_MAYBE}) (?P<name>[\w.-]+/\d{{1,3}})"),
    "quota": re.compile(rf"quota ({_NUMBER}(?: {_NUMBER}){{3}}) ?(?P<name>.*)"),
    "limit": re.compile(rf"limit ({_NUMBER}(?: {_NUMBER}){{2}}) ?(?P<name>.*)"),
    "task": re.compile(
        r"task ([\w.-]+):(\d{1,7}),(\d{1,9}|-) (?P<name>\d{1,10}) \((.{0,255})\) (\w)"
        r" (-?\d+(?: -?\d+)*)"
    ),
}
"""Of the same kind and name, the last counts."""
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
    readings: list[tuple[float, list[str]]] = []
    for line in lines:
        began = _READING.fullmatch(line)
        if began is not None:
            readings.append((float(began[1]), []))
        elif not readings:
            raise Unparsed(f"line {line[:40]!r} before a reading")
        else:
            readings[-1][1].append(line)
    if not readings:
        raise Unparsed("no reading")
    return tuple(_host(uptime, lines, int(units[1]), int(units[2])) for uptime, lines in readings)


def _host(uptime_s: float, lines: Sequence[str], ticks_per_s: int, page_bytes: int) -> HostVitals:
    found = _by_kind(lines)
    memory = {match[1]: int(match[2]) for match in found["memory"]}
    cpu, cpus, load = (found[kind][-1:] for kind in ("cpu", "cpus", "load"))
    total = memory.get("MemTotal")
    if not cpu or not cpus or not int(cpus[0][1]) or not load or not total:
        raise Unparsed("a reading is cut off")
    # Kernels before 3.14 do not say what is available.
    guess = sum(memory.get(name, 0) for name in ("MemFree", "Buffers", "Cached"))
    return HostVitals(
        uptime_s=uptime_s,
        cpus=int(cpus[0][1]),
        ticks=_ticks(cpu[0]),
        load=float(load[0][1]),
        memory_bytes=total * _KIB,
        available_bytes=memory.get("MemAvailable", guess) * _KIB,
        swap_bytes=memory.get("SwapTotal", 0) * _KIB,
        swap_free_bytes=memory.get("SwapFree", 0) * _KIB,
        interfaces=tuple(map(_interface, found["net"])),
        ports=tuple(_port(one) for one in found["port"] if f"{one[1]}{one[2]}".isdecimal()),
        quotas=tuple(map(_quota, found["quota"])),
        limits=tuple(map(_limit, found["limit"])),
        processes=tuple(_process(one, ticks_per_s, page_bytes) for one in found["task"]),
    )


def _by_kind(lines: Iterable[str]) -> Mapping[str, list[re.Match[str]]]:
    found: dict[str, dict[str, re.Match[str]]] = {kind: {} for kind in _SHAPES}
    for number, line in enumerate(lines):
        kind = line.partition(" ")[0]
        if kind == "task" and not line.isprintable():
            continue  # a process named itself so; nobody else can be meant
        match = _SHAPES[kind].fullmatch(line) if kind in _SHAPES else None
        if match is None:
            raise Unparsed(f"line {line[:40]!r}")
        found[kind][match.groupdict().get("name", str(number))] = match
    return {kind: list(matches.values()) for kind, matches in found.items()}


def _ticks(match: re.Match[str]) -> CpuTicks:
    user, nice, system, idle, waiting, hard, soft, *more = map(int, match[1].split())
    busy = user + nice + system + hard + soft  # guests stand in `user` already
    return CpuTicks(busy=busy, idle=idle, waiting=waiting, stolen=more[0] if more else 0)


def _interface(match: re.Match[str]) -> LinkCounters:
    received, bad_in, lost_in, sent, bad_out, lost_out = map(int, match[1].split())
    return LinkCounters(
        name=match["name"],
        received_bytes=received,
        sent_bytes=sent,
        errors=bad_in + bad_out,
        dropped=lost_in + lost_out,
    )


def _port(match: re.Match[str]) -> LinkCounters:
    received, sent = int(match[1]) * _LANES, int(match[2]) * _LANES
    return LinkCounters(name=match["name"], received_bytes=received, sent_bytes=sent)


def _quota(match: re.Match[str]) -> CpuQuota:
    quota, period, periods, throttled = map(int, match[1].split())
    if not period:
        raise Unparsed("a quota of no period")
    return CpuQuota(path=match["name"], cpus=quota / period, periods=periods, throttled=throttled)


def _limit(match: re.Match[str]) -> MemoryLimit:
    limit, used, kills = map(int, match[1].split())
    return MemoryLimit(path=match["name"], limit_bytes=limit, used_bytes=used, oom_kills=kills)


def _process(match: re.Match[str], ticks_per_s: int, page_bytes: int) -> Process:
    run, node_rank, rank, pid, command, state, rest = match.groups()
    fields = rest.split()
    if len(fields) <= _PAGES:
        raise Unparsed("a process is cut off")
    return Process(
        pid=int(pid),
        run=run,
        node_rank=int(node_rank),
        rank=None if rank == "-" else int(rank),
        command=command,
        state=state,
        cpu_s=(int(fields[_UTIME]) + int(fields[_STIME])) / ticks_per_s,
        threads=int(fields[_THREADS]),
        memory_bytes=int(fields[_PAGES]) * page_bytes,
        started_ticks=int(fields[_STARTED]),
    )


def _snippet(job: PreflightJob) -> str:
    del job
    vitals = read_template("programs/probes/vitals.sh").replace("@VIRTUAL@", VIRTUAL)
    return read_template("programs/probes/ranks.sh") + vitals


def _snippet_twice(job: PreflightJob) -> str:
    return f"{_snippet(job)}sleep {_PAUSE_S}\nreading\n"


PROBE = Probe(name="vitals-host", command=_snippet, parse=read_host)
"""One reading."""
TWICE = Probe(name="vitals-host-twice", command=_snippet_twice, parse=read_host)
"""Two readings, a second apart: for whoever asks once."""
