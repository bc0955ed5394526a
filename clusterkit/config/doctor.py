"""What this machine can and cannot do: one examination for each item of `clusterkit doctor`.

An examination takes a `Machine` and yields items. It runs commands only through the machine's
runner, and imports none of the packages it looks for.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from clusterkit.config.init import NVIDIA_SMI, Run
from clusterkit.config.platforms import AUTO, types_with_needs
from clusterkit.config.settings import Settings
from clusterkit.core import shell
from clusterkit.core.commands import TIMED_OUT
from clusterkit.core.data import data_dir, read_program
from clusterkit.core.distribution import DISTRIBUTION, FOREIGN, foreign_distribution
from clusterkit.core.errors import Problem, RemoteError, UserError, choices_hint
from clusterkit.core.files import parse_json
from clusterkit.core.model import NO_PLATFORM, ClusterKind, ClusterSpec, HorovodController
from clusterkit.core.records import text_of, texts_of
from clusterkit.core.version import __version__

LOCAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
TESTED_SLURM = ("22.05", "24.11", "26.05")
"""The releases that the tests of the practice cluster run on (`make test`, `make test-slurm`)."""
_UNCONFIGURED = re.compile(r"resolve_ctls_from_dns_srv|configuration source")
"""What Slurm's tools say where they are installed and neither a file nor DNS leads to a cluster."""

_BUILT_WITH = {"mpi": "MPI", "gloo": "Gloo", "nccl": "NCCL"}
"""What starts Horovod's ranks (MPI, Gloo) and what moves tensors (all), by its own name of it."""


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
    node: str | None = None
    """The login node that was asked; None of this machine."""

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
    login: Callable[[str], Run] | None = None
    """What gives a runner of a login node; without it, none is asked."""
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


OK, WARN, MISSING, FAIL = Condition


def _item(
    name: str,
    summary: str,
    condition: Condition = OK,
    fix: str | None = None,
    *,
    needed: bool = False,
) -> Item:
    """Return an item; nothing is to be typed where nothing is wrong."""
    fix = None if condition is OK else fix
    return Item(name=name, condition=condition, summary=summary, fix=fix, needed=needed)


MIN_PYTHON = (3, 11)
FRAMEWORK_PACKAGES = ("torch", "deepspeed", "horovod", "accelerate")
_BUILD_WHEEL = data_dir("images") / "horovod" / "build-wheel.sh"
_HOROVOD_WHEEL = f'"$(bash {_BUILD_WHEEL} --python {sys.executable})"'
"""What pip installs of Horovod, whose source does not compile against today's torch."""


def python(_machine: Machine) -> Iterator[Item]:
    """Yield this Python and clusterkit itself."""
    condition = OK if sys.version_info[:2] >= MIN_PYTHON else FAIL
    summary = f"{platform.python_version()} ({sys.executable})"
    fix = f"install Python {'.'.join(map(str, MIN_PYTHON))} or newer"
    yield _item("python", summary, condition, fix, needed=True)
    yield _item("clusterkit", __version__)
    foreign = foreign_distribution()
    if foreign is not None:
        yield _foreign(f"this Python has {FOREIGN} {foreign.version}", sys.executable)


def packages(_machine: Machine) -> Iterator[Item]:
    """Yield the packages of this Python."""
    ours = ("submitit", "fabric")
    for name in (*ours, *FRAMEWORK_PACKAGES):
        version = _version(name)
        if name == "horovod" and version:
            continue  # `horovod_builds` tells of it
        summary, condition = (version, OK) if version else ("not in this Python", MISSING)
        what = _HOROVOD_WHEEL if name == "horovod" else name
        fix = f"{sys.executable} -m pip install {what}"
        yield _item(name, summary, condition, fix, needed=name in ours)


def training_pythons(machine: Machine) -> Iterator[Item]:
    """Yield what the interpreters that clusters name have, where they are on this machine."""
    program = read_program("programs/machine/versions.py")
    for python in machine.pythons():
        answer = machine.run((python, "-c", program, FOREIGN, *FRAMEWORK_PACKAGES))
        if not answer.found:
            summary = f"{python} is not on this machine; the nodes may have it"
            yield _item("job python", summary, WARN)
            continue
        versions = parse_json(answer.output.encode()) or {}
        foreign = versions.pop(FOREIGN, None)
        if foreign is not None and python != sys.executable:  # of this one, all is said above
            yield _foreign(f"{python} has {FOREIGN} {foreign}", python)
        there = ", ".join(f"{package} {v}" for package, v in versions.items() if v)
        complaint = "no training framework" if answer.ok else answer.complaint
        fix = f"{python} -m pip install torch"
        yield _item("job python", f"{python}: {there or complaint}", OK if there else WARN, fix)


def torch_stores(machine: Machine) -> Iterator[Item]:
    """Yield the interpreters whose torch cannot make the store by which its processes meet."""
    program = read_program("programs/machine/torch_store.py")
    for python in _pythons_with("torch", machine):
        answer = machine.run((python, "-c", program))
        if answer.ok and "libuv" in answer.output:
            summary = f"{python}: its torch was built without libuv: torchrun and accelerate cannot"
            fix = f"{python} -m pip install torch (a build with libuv); or --env USE_LIBUV=0 with"
            others = "--framework env, mpi, horovod or deepspeed"
            yield _item("torch", f"{summary} meet over several nodes", WARN, f"{fix} {others}")


def horovod_builds(machine: Machine) -> Iterator[Item]:
    """Yield what the Horovod of each interpreter was built with, as `horovodrun --check-build`."""
    program = read_program("programs/machine/horovod_build.py")
    mpi = HorovodController.MPI
    clusters = machine.settings.clusters.values()
    on_mpi = {spec.python or sys.executable for spec in clusters if spec.horovod_controller is mpi}
    for python in _pythons_with("horovod", machine):
        version = _version("horovod") if python == sys.executable else None
        which = version or python
        build = parse_json(machine.run((python, "-c", program)).output.encode()) or {}
        parts, frameworks = texts_of(build, "parts"), texts_of(build, "frameworks")
        fix = f"{python} -m pip install {_HOROVOD_WHEEL}"
        if parts:
            there = ", ".join(_BUILT_WITH.get(part, part) for part in parts)
            lacks = ", ".join(name for part, name in _BUILT_WITH.items() if part not in parts)
            summary = (
                f"{which}: for {' and '.join(frameworks)}, built with {there}, without {lacks}"
            )
            lacking = python in on_mpi and "mpi" not in parts
            fix = "horovod_controller: gloo, or a Horovod that was built with MPI"
            yield _item("horovod", summary, WARN if lacking else OK, fix)
        elif "frameworks" in build:
            reason = text_of(build, "error") or "it was built for neither torch nor TensorFlow"
            yield _item("horovod", f"{which}: cannot be loaded: {reason}", WARN, fix)
        elif version:
            yield _item("horovod", version)


def _pythons_with(package: str, machine: Machine) -> Iterable[str]:
    """Return this Python where it has the package, and those that clusters name, which may."""
    here = (sys.executable,) if _version(package) else ()
    return dict.fromkeys((*here, *machine.pythons()))


def _foreign(where: str, python: str) -> Item:
    summary = f"{where}, another project whose files lie over ours (or ours under its old name)"
    fix = f"{python} -m pip uninstall {FOREIGN}, then install {DISTRIBUTION} again"
    return _item("clusterkit", summary, FAIL, fix)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def gpus(machine: Machine) -> Iterator[Item]:
    """Yield the GPUs of this machine."""
    answer = machine.run(NVIDIA_SMI)
    names = [line.strip() for line in answer.output.splitlines() if line.strip()]
    if not answer.found:
        summary = "no NVIDIA driver here; jobs on this machine use CPUs"
        yield _item("nvidia-smi", summary, MISSING)
    elif answer.ok and names:
        kinds = (f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
        yield _item("nvidia-smi", ", ".join(kinds))
    else:
        summary = "lists no GPU" if answer.ok else answer.complaint
        fix = "nvidia-smi (its own words say what the driver lacks)"
        yield _item("nvidia-smi", summary, WARN, fix)


def slurm(machine: Machine) -> Iterator[Item]:
    """Yield the tools, the controller and the accounting of Slurm.

    Nothing where each Slurm cluster has a login node: theirs count, not those of this machine.
    """
    clusters = {
        name: spec
        for name, spec in machine.settings.clusters.items()
        if spec.kind is ClusterKind.SLURM
    }
    here = {name: spec for name, spec in clusters.items() if spec.login is None}
    if here or not clusters:
        yield from _slurm(machine.run, here)


def _slurm(
    run: Run, clusters: Mapping[str, ClusterSpec], *, login: str | None = None
) -> Iterator[Item]:
    needed = bool(clusters)
    tools = {name: run((name, "--version")) for name in ("sbatch", "srun", "squeue")}
    missing = [name for name, answer in tools.items() if not answer.found]
    answer = tools["sbatch"]
    if missing:
        summary = f"{', '.join(missing)} not on PATH"
        fix = "run on a login node, or: module load slurm" if needed else None
        if login is not None:
            fix = f"ssh {login} command -v sbatch (put Slurm on PATH there without a terminal)"
        yield _item("slurm", summary, MISSING, fix, needed=needed)
        return
    if not answer.ok and not needed and _UNCONFIGURED.search(answer.errors):
        yield _item("slurm", "no Slurm configured here", MISSING)
        return
    if not answer.ok:  # then no tool of Slurm finds its configuration, and none has more to say
        fix = "export SLURM_CONF=/path/to/slurm.conf" if needed else None
        if login is not None:
            fix = f"ssh {login} sbatch --version (it has to find its slurm.conf there)"
        yield _item("slurm", answer.complaint, FAIL if needed else WARN, fix, needed=needed)
        return
    found = re.search(r"\b\d\d\.\d\d\b", answer.output)
    tested = found is not None and found[0] in TESTED_SLURM
    remark = "tested" if tested else f"clusterkit's tests run on {', '.join(TESTED_SLURM)}"
    yield _item("slurm", f"{answer.output.strip()} ({remark})", needed=needed)
    ping = run(("scontrol", "ping"))
    up = ping.ok and " UP" in ping.output
    summary = ping.output.strip().splitlines()[0] if up else ping.complaint
    fix = "scontrol ping; check SLURM_CONF, munge (or sackd), and the controller itself"
    yield _item("slurmctld", summary, OK if up else MISSING, fix, needed=needed)
    if up:
        yield from _partitions(run, clusters)
    sacct = run(("sacct", "--noheader", "--allocations", "--starttime=now"))
    if sacct.ok:
        yield _item("sacct", "answers")
    elif up or sacct.complaint != ping.complaint:
        reason = sacct.complaint if sacct.found else "not on PATH"
        summary = f"{reason}; states come from squeue and from the jobs' own results"
        yield _item("sacct", summary, WARN)


def _partitions(run: Run, clusters: Mapping[str, ClusterSpec]) -> Iterator[Item]:
    """Yield the partitions that clusters name and Slurm does not list, if it lists any."""
    known = run(("sinfo", "--all", "--noheader", "--format=%R")).output.split()
    for name, spec in clusters.items():
        for partition in (spec.partition or "").split(","):
            if known and partition and partition not in known:
                summary = f"cluster {name}: Slurm lists no partition {partition!r}"
                fix = choices_hint(partition, known)
                yield _item("partition", summary, FAIL, fix, needed=True)


def login_nodes(machine: Machine) -> Iterator[Item]:
    """Yield whether ssh reaches each login node, and whether it has Slurm, Python and clusterkit.

    Only questions are asked there, of which none starts or wakes anything.
    """
    for name, spec in machine.settings.clusters.items():
        if spec.login is None or machine.login is None:
            continue
        try:
            for item in _login_node(name, spec, machine.login(spec.login)):
                yield replace(item, node=spec.login)
        except (RemoteError, UserError) as error:
            why, _, fix = str(error).partition("\nhint: ")
            why = why.removeprefix(f"{spec.login}: ")
            item = _item("login", f"cluster {name}: {why}", FAIL, fix or None, needed=True)
            yield replace(item, node=spec.login)


def _login_node(name: str, spec: ClusterSpec, run: Run) -> Iterator[Item]:
    """Yield what a login node answers.

    Raises:
        RemoteError, UserError: it cannot be logged in to.
    """
    answer = run(("python3", "--version"))
    if answer.code == TIMED_OUT:
        yield _item("login", answer.complaint, FAIL, f"ssh {spec.login}", needed=True)
        return
    yield _item("login", f"ssh reaches it, for cluster {name}")
    found = re.match(r"Python (\d{1,3})\.(\d{1,3})", answer.output)
    enough = found is not None and (int(found[1]), int(found[2])) >= MIN_PYTHON
    least = f"{MIN_PYTHON[0]}.{MIN_PYTHON[1]}"
    summary = answer.output.strip() if answer.ok else f"no python3 ({answer.complaint})"
    fix = f"clusterkit nodes prepare --cluster {name} --python python{least}"
    yield _item("python", summary, OK if enough else WARN, fix)
    program = f"{shell.quote_path(spec.venv)}/bin/clusterkit --version"
    there = run(("sh", "-c", f"{program} 2>/dev/null || clusterkit --version"))
    fix = f"clusterkit nodes prepare --cluster {name}"
    if there.ok:
        version = there.output.strip().removeprefix("clusterkit ")
        same = version == __version__
        summary = version if same else f"{version}, and {__version__} here"
        yield _item("clusterkit", summary, OK if same else WARN, fix)
    else:
        summary = f"not in {spec.venv}, nor on PATH"
        yield _item("clusterkit", summary, MISSING, fix, needed=True)
    yield from _slurm(run, {name: spec}, login=spec.login)


def ssh(machine: Machine) -> Iterator[Item]:
    """Yield the SSH client and the keys of its agent."""
    needed = machine.has(ClusterKind.SSH) or any(
        spec.login is not None for spec in machine.settings.clusters.values()
    )
    client = machine.run(("ssh", "-V"))
    if not client.found:
        yield _item("ssh", "no client", MISSING, "apt install openssh-client", needed=needed)
        return
    yield _item("ssh", (client.errors or client.output).strip(), needed=needed)
    agent = machine.run(("ssh-add", "-l"))
    keys = len(agent.output.splitlines()) if agent.ok else 0
    summary = f"{keys} key{'s' if keys != 1 else ''}" if keys else "no agent with a key"
    fix = 'eval "$(ssh-agent)" && ssh-add, or set identity_file:'
    yield _item("ssh-agent", summary, OK if keys else WARN, fix)


def containers(machine: Machine) -> Iterator[Item]:
    """Yield each container runtime."""
    runtimes = {spec.container_runtime for spec in machine.settings.clusters.values()}
    for name, argv, fix in (
        ("docker", ("docker", "version", "--format={{.Server.Version}}"), None),
        ("apptainer", ("apptainer", "--version"), "apptainer --version"),
        ("enroot", ("enroot", "version"), "enroot version"),
    ):
        answer = machine.run(argv)
        needed = name in runtimes
        if answer.ok:
            yield _item(name, answer.output.strip(), needed=needed)
        elif answer.found:
            yield _item(name, answer.complaint, WARN, fix or _docker_fix(machine, answer.complaint))
        else:
            install = f"install {name}, or change container_runtime:" if needed else None
            yield _item(name, "not on PATH", MISSING, install, needed=needed)


def _docker_fix(machine: Machine, complaint: str) -> str:
    """Return the command that lets this user reach the Docker daemon."""
    if "permission denied" in complaint.lower():
        return "sudo usermod -aG docker $USER && newgrp docker"
    if not re.search("connect|daemon", complaint):
        return "docker info"
    systemd = machine.run(("test", "-d", "/run/systemd/system")).ok  # as sd_booted(3) has it
    return "sudo systemctl start docker" if systemd else "sudo service docker start"


def configuration(machine: Machine) -> Iterator[Item]:
    """Yield the files that are read, what is wrong with them, and odd variables."""
    settings = machine.settings
    yield from (_item("config", str(file)) for file in settings.files)
    if machine.problems:
        first, *more = machine.problems
        only = first.hint if not more and first.position is None else None
        summary = first.message if only else f"{first.message} ({1 + len(more)} in all)"
        fix = only or "clusterkit config show (it prints them all)"
        yield _item("config", summary, FAIL, fix, needed=True)
    elif not settings.files:
        yield _item("config", "no file; only the cluster `local`", WARN, "clusterkit init")
    for problem in settings.warnings:
        yield _item("variable", problem.message, WARN, problem.hint)
    for name in settings.clusters:
        for problem in settings.warnings_of(name):
            summary = f"cluster {name}: {problem.message}"
            yield _item("hostfile", summary, WARN, problem.hint)


def fabrics(machine: Machine) -> Iterator[Item]:
    """Yield the platforms of clusters, and where what an instance type alone needs is not set."""
    for name, spec in machine.settings.clusters.items():
        if spec.platform in {AUTO, NO_PLATFORM}:
            continue
        known = types_with_needs(spec) if spec.instance_type is None else ()
        summary = f"cluster {name}: {spec.platform}, {spec.instance_type or 'no instance_type'}"
        more = f", and {', '.join(known)} need more" if known else ""
        fix = "instance_type: NAME, that of its nodes"
        yield _item("platform", summary + more, WARN if known else OK, fix)


def ports(machine: Machine) -> Iterator[Item]:
    """Yield whether the ports of jobs keep clear of those that the kernel hands out."""
    try:
        low, high = map(int, machine.local_ports.read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return  # no Linux, or a sandbox without /proc: nothing to compare with
    for first, last in dict.fromkeys(s.port_range for s in machine.settings.clusters.values()):
        clear = last < low or first > high
        summary = f"{first}-{last} {'outside' if clear else 'overlaps'} the kernel's {low}-{high}"
        yield _item("ports", summary, OK if clear else WARN, _ports_fix(low, high))


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
            yield _item("run_dir", text, needed=True)
        else:
            summary = f"{text}: you may not write in {existing}"
            fix = "set run_dir: to a folder of your own"
            yield _item("run_dir", summary, FAIL, fix, needed=True)


def examine(machine: Machine) -> Iterator[Item]:
    """Yield every item, in the order in which a person would ask."""
    examinations: tuple[Callable[[Machine], Iterator[Item]], ...] = (
        *(configuration, python, packages, training_pythons, torch_stores, horovod_builds),
        *(gpus, slurm, ssh, login_nodes, containers, fabrics, ports, run_dirs),
    )
    for examination in examinations:
        yield from examination(machine)
