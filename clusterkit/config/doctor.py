"""What this machine can and cannot do: one examination for each item of `clusterkit doctor`.

An examination takes a `Machine` and yields items. It runs commands only through the machine's
runner, and imports none of the packages it looks for.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from clusterkit.config.init import NVIDIA_SMI, Run
from clusterkit.config.settings import Settings
from clusterkit.core.distribution import DISTRIBUTION, FOREIGN, foreign_distribution
from clusterkit.core.errors import Problem
from clusterkit.core.model import ClusterKind
from clusterkit.core.version import __version__

LOCAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


class Condition(StrEnum):
    """How an item was found."""

    OK = "ok"
    WARN = "warn"
    MISSING = "missing"
    FAIL = "fail"
    """It exists and cannot work: a configuration with errors, a run folder without permissions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One line of the doctor's answer."""

    name: str
    condition: Condition
    summary: str
    fix: str | None = None
    """What to type."""
    needed: bool = False
    """Whether clusterkit, or a cluster of the configuration, cannot do without it."""

    @property
    def finding(self) -> bool:
        """Whether it makes the doctor end with exit code 1."""
        bad = self.condition is Condition.FAIL
        return bad or (self.needed and self.condition is Condition.MISSING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What is examined."""

    settings: Settings
    run: Run
    local_ports: Path = LOCAL_PORTS
    problems: tuple[Problem, ...] = ()
    """What is wrong with the configuration; `settings` are the built-in ones then."""

    def has(self, kind: ClusterKind) -> bool:
        """Tell whether a cluster of that kind is configured."""
        return any(spec.kind is kind for spec in self.settings.clusters.values())

    def pythons(self) -> tuple[str, ...]:
        """Return the interpreters that clusters name, each once."""
        named = (spec.python for spec in self.settings.clusters.values())
        return tuple(dict.fromkeys(python for python in named if python))


Examination = Callable[[Machine], Iterator[Item]]


def good(name: str, summary: str, *, needed: bool = False) -> Item:
    """Return an item with which nothing is wrong."""
    return Item(name=name, condition=Condition.OK, summary=summary, needed=needed)


def bad(
    name: str, condition: Condition, summary: str, fix: str | None = None, *, needed: bool = False
) -> Item:
    """Return an item that is not as it should be, and what to type."""
    return Item(name=name, condition=condition, summary=summary, fix=fix, needed=needed)


MIN_PYTHON = (3, 11)
_MAKE_STORE = """\
import socket
try:
    from torch.distributed import TCPStore
except ImportError:
    raise SystemExit
own = socket.create_server(("127.0.0.1", 0))
words = {"is_master": True, "wait_for_workers": False, "master_listen_fd": own.fileno()}
try:
    TCPStore("127.0.0.1", own.getsockname()[1], **words)
    own.detach()
except RuntimeError as error:
    print(error)
"""
"""Torch asks for libuv by default, and says there that it has none. Nobody else can reach it."""
FRAMEWORK_PACKAGES = ("torch", "deepspeed", "horovod", "accelerate")


def python(_machine: Machine) -> Iterator[Item]:
    """Yield this Python and clusterkit itself."""
    summary = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info[:2] >= MIN_PYTHON:
        yield good("python", summary, needed=True)
    else:
        fix = f"install Python {'.'.join(map(str, MIN_PYTHON))} or newer"
        yield bad("python", Condition.FAIL, summary, fix, needed=True)
    yield good("clusterkit", __version__)
    foreign = foreign_distribution()
    if foreign is not None:
        yield _foreign(f"this Python has {FOREIGN} {foreign.version}", sys.executable)


def packages(_machine: Machine) -> Iterator[Item]:
    """Yield the packages of this Python."""
    ours = ("submitit", "fabric")
    for name in (*ours, *FRAMEWORK_PACKAGES):
        version, needed = _version(name), name in ours
        if version:
            yield good(name, version, needed=needed)
        else:
            fix = f"{sys.executable} -m pip install {name}"
            yield bad(name, Condition.MISSING, "not in this Python", fix, needed=needed)


def training_pythons(machine: Machine) -> Iterator[Item]:
    """Yield what the interpreters that clusters name have, where they are on this machine."""
    script = (
        "import importlib.metadata as m, json\n"
        "def v(n):\n"
        " try: return m.version(n)\n"
        " except m.PackageNotFoundError: return None\n"
        "print(json.dumps({n: v(n) for n in "
        f"{(FOREIGN, *FRAMEWORK_PACKAGES)}}}))"
    )
    for python in machine.pythons():
        answer = machine.run((python, "-c", script))
        if not answer.found:
            summary = f"{python} is not on this machine; the nodes may have it"
            yield bad("job python", Condition.WARN, summary)
            continue
        try:
            versions = json.loads(answer.output) if answer.ok else {}
        except ValueError:
            versions = {}
        foreign = versions.pop(FOREIGN, None)
        if foreign is not None and python != sys.executable:  # of this one, all is said above
            yield _foreign(f"{python} has {FOREIGN} {foreign}", python)
        there = ", ".join(f"{package} {v}" for package, v in versions.items() if v)
        if there:
            yield good("job python", f"{python}: {there}")
        else:
            complaint = "no training framework" if answer.ok else answer.complaint
            fix = f"{python} -m pip install torch"
            yield bad("job python", Condition.WARN, f"{python}: {complaint}", fix)


def torch_stores(machine: Machine) -> Iterator[Item]:
    """Yield the interpreters whose torch cannot make the store by which its processes meet."""
    here = (sys.executable,) if _version("torch") else ()
    for python in dict.fromkeys((*here, *machine.pythons())):
        answer = machine.run((python, "-c", _MAKE_STORE))
        if answer.ok and "libuv" in answer.output:
            summary = f"{python}: its torch was built without libuv: torchrun and accelerate cannot"
            fix = f"{python} -m pip install torch (a build with libuv); or --env USE_LIBUV=0 with"
            others = "--framework env, mpi, horovod or deepspeed"
            summary += " meet over several nodes"
            yield bad("torch", Condition.WARN, summary, f"{fix} {others}")


def _foreign(where: str, python: str) -> Item:
    summary = f"{where}, another project whose files lie over ours (or ours under its old name)"
    fix = f"{python} -m pip uninstall {FOREIGN}, then install {DISTRIBUTION} again"
    return bad("clusterkit", Condition.FAIL, summary, fix)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def gpus(machine: Machine) -> Iterator[Item]:
    """Yield the GPUs of this machine."""
    answer = machine.run(NVIDIA_SMI)
    names = [line.strip() for line in answer.output.splitlines() if line.strip()]
    if answer.ok and names:
        kinds = (f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
        yield good("nvidia-smi", ", ".join(kinds))
    elif answer.found:
        summary = answer.complaint if not answer.ok else "lists no GPU"
        fix = "nvidia-smi (its own words say what the driver lacks)"
        yield bad("nvidia-smi", Condition.WARN, summary, fix)
    else:
        summary = "no NVIDIA driver here; jobs on this machine use CPUs"
        yield bad("nvidia-smi", Condition.MISSING, summary)


def slurm(machine: Machine) -> Iterator[Item]:
    """Yield the tools, the controller and the accounting of Slurm."""
    needed = machine.has(ClusterKind.SLURM)
    tools = {name: machine.run((name, "--version")) for name in ("sbatch", "srun", "squeue")}
    missing = [name for name, answer in tools.items() if not answer.found]
    if missing:
        summary = f"{', '.join(missing)} not on PATH"
        fix = "run on a login node, or: module load slurm" if needed else None
        yield bad("slurm", Condition.MISSING, summary, fix, needed=needed)
        return
    answer = tools["sbatch"]
    if not answer.ok:  # then no tool of Slurm finds its configuration, and none has more to say
        condition = Condition.FAIL if needed else Condition.WARN
        fix = "export SLURM_CONF=/path/to/slurm.conf"
        yield bad("slurm", condition, answer.complaint, fix, needed=needed)
        return
    yield good("slurm", answer.output.strip(), needed=needed)
    ping = machine.run(("scontrol", "ping"))
    up = ping.ok and " UP" in ping.output
    if up:
        yield good("slurmctld", ping.output.strip().splitlines()[0], needed=needed)
    else:
        fix = "scontrol ping; check SLURM_CONF, munge, and the controller itself"
        yield bad("slurmctld", Condition.MISSING, ping.complaint, fix, needed=needed)
    sacct = machine.run(("sacct", "--noheader", "--allocations", "--starttime=now"))
    if sacct.ok:
        yield good("sacct", "answers")
    elif up or sacct.complaint != ping.complaint:
        reason = sacct.complaint if sacct.found else "not on PATH"
        summary = f"{reason}; states come from squeue and from the jobs' own results"
        yield bad("sacct", Condition.WARN, summary)


def ssh(machine: Machine) -> Iterator[Item]:
    """Yield the SSH client and the keys of its agent."""
    needed = machine.has(ClusterKind.SSH)
    client = machine.run(("ssh", "-V"))
    if not client.found:
        fix = "apt install openssh-client"
        yield bad("ssh", Condition.MISSING, "no client", fix, needed=needed)
        return
    yield good("ssh", (client.errors or client.output).strip(), needed=needed)
    agent = machine.run(("ssh-add", "-l"))
    keys = len(agent.output.splitlines()) if agent.ok else 0
    if keys:
        yield good("ssh-agent", f"{keys} key{'s' if keys != 1 else ''}")
    else:
        fix = 'eval "$(ssh-agent)" && ssh-add, or set identity_file:'
        yield bad("ssh-agent", Condition.WARN, "no agent with a key", fix)


def containers(machine: Machine) -> Iterator[Item]:
    """Yield each container runtime."""
    wanted = {spec.container_runtime for spec in machine.settings.clusters.values()}
    for name, argv, fix in (
        ("docker", ("docker", "version", "--format={{.Server.Version}}"), "docker info"),
        ("apptainer", ("apptainer", "--version"), "apptainer --version"),
        ("enroot", ("enroot", "version"), "enroot version"),
    ):
        answer = machine.run(argv)
        needed = name in wanted
        if answer.ok:
            yield good(name, answer.output.strip(), needed=needed)
        elif answer.found:
            yield bad(name, Condition.WARN, answer.complaint, fix)
        else:
            install = f"install {name}, or change container_runtime:" if needed else None
            yield bad(name, Condition.MISSING, "not on PATH", install, needed=needed)


def configuration(machine: Machine) -> Iterator[Item]:
    """Yield the files that are read, what is wrong with them, and odd variables."""
    settings = machine.settings
    yield from (good("config", str(file)) for file in settings.files)
    if machine.problems:
        first, *more = machine.problems
        only = first.hint if not more and first.position is None else None
        summary = first.message if only else f"{first.message} ({1 + len(more)} in all)"
        fix = only or "clusterkit config show (it prints them all)"
        yield bad("config", Condition.FAIL, summary, fix, needed=True)
    elif not settings.files:
        summary = "no file; only the cluster `local`"
        yield bad("config", Condition.WARN, summary, "clusterkit init")
    for problem in settings.warnings:
        yield bad("variable", Condition.WARN, problem.message, problem.hint)
    for name in settings.clusters:
        for problem in settings.warnings_of(name):
            summary = f"cluster {name}: {problem.message}"
            yield bad("hostfile", Condition.WARN, summary, problem.hint)


def ports(machine: Machine) -> Iterator[Item]:
    """Yield whether the ports of jobs keep clear of those that the kernel hands out."""
    try:
        low, high = map(int, machine.local_ports.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return  # no Linux, or a sandbox without /proc: nothing to compare with
    for first, last in dict.fromkeys(s.port_range for s in machine.settings.clusters.values()):
        if last < low or first > high:
            yield good("ports", f"{first}-{last} outside the kernel's {low}-{high}")
        else:
            summary = f"{first}-{last} overlaps the kernel's {low}-{high}"
            yield bad("ports", Condition.WARN, summary, _ports_fix(low, high))


def _ports_fix(low: int, high: int) -> str:
    if low - 1024 >= 1000:
        return f"port_range: {max(1024, low - 10000)}-{low - 1}"
    if 65535 - high >= 1000:
        return f"port_range: {high + 1}-65535"
    return "sysctl -w net.ipv4.ip_local_port_range='32768 60999'"


def run_dirs(machine: Machine) -> Iterator[Item]:
    """Yield whether the run folders can be written."""
    for text in dict.fromkeys(spec.run_dir for spec in machine.settings.clusters.values()):
        try:
            path = Path(text).expanduser()
        except RuntimeError:  # ~ without a home folder
            path = Path(text)
        existing = next((p for p in (path, *path.absolute().parents) if p.exists()), Path("/"))
        if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
            yield good("run_dir", text, needed=True)
        else:
            summary = f"{text}: you may not write in {existing}"
            fix = "set run_dir: to a folder of your own"
            yield bad("run_dir", Condition.FAIL, summary, fix, needed=True)


EXAMINATIONS: tuple[Examination, ...] = (
    configuration,
    python,
    packages,
    training_pythons,
    torch_stores,
    gpus,
    slurm,
    ssh,
    containers,
    ports,
    run_dirs,
)
"""In the order in which a person would ask."""


def examine(machine: Machine) -> Iterator[Item]:
    """Yield every item of every examination."""
    for examination in EXAMINATIONS:
        yield from examination(machine)
