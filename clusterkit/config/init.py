"""A first `clusterkit.yaml`: what this machine can tell about the clusters around it, as its text.

Everything takes the runner as an argument, so that recorded answers can stand in for the tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterkit.config.document import read_text
from clusterkit.core import commands
from clusterkit.core.commands import Answer
from clusterkit.core.errors import UserError
from clusterkit.core.hosts import hostfile
from clusterkit.core.hosts.hostlist import fold_set
from clusterkit.core.model import GpuRequest, Host
from clusterkit.core.ownership import find_foreign

TIMEOUT_S = 10
"""A controller that does not answer lets Slurm's commands wait for much longer."""

SINFO = ("sinfo", "--noheader", "--format=%P|%D|%l|%G|%c|%m")
PARTITIONS = ("scontrol", "show", "partition", "--oneliner")
"""Where sinfo is refused: `PrivateData=nodes` shows nodes to operators alone, partitions to all."""
SCONTROL_CONFIG = ("scontrol", "show", "config")
NVIDIA_SMI = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")

SYSTEM_HOSTFILES = (Path("/job/hostfile"), Path("/etc/mpi/hostfile"), Path("/etc/hostfile"))
"""Where DeepSpeed looks, where Kubeflow's MPI operator writes, and where people put one."""

_TRES_GPU = re.compile(r"\bgres/gpu(?::([^=,]+))?=(\d+)")
_GPU = re.compile(r"gpu:(?:(?P<type>[^:,()]+):)?(?P<count>\d+)(?:\([^()]*\))?(?=,|$)")


Run = Callable[[Sequence[str]], Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A Slurm partition; of nodes that differ, what the best-equipped have."""

    name: str
    default: bool
    nodes: int
    time: str
    """Its time limit as Slurm writes it."""
    gpus: int = 0
    gpu_types: tuple[str, ...] = ()
    cpus: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Hostfile:
    """A hostfile that was found and can be read."""

    path: Path
    hosts: tuple[Host, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Everything that was found."""

    cluster_name: str = "cluster"
    partitions: tuple[Partition, ...] = ()
    gpu_request: GpuRequest = GpuRequest.GPUS_PER_NODE
    gpus: tuple[str, ...] = ()
    """Names of the GPUs of this machine."""
    hostfiles: tuple[Hostfile, ...] = ()
    no_sinfo: str | None = None
    """What sinfo said where it is there and lists nothing; then GPUs may not be known."""
    left_out: tuple[str, ...] = ()
    """Hostfiles that others can write, and why they do not count."""


def run_command(argv: Sequence[str]) -> Answer:
    """Run a command of this machine, in the C locale, for at most `TIMEOUT_S`."""
    return commands.run_command(argv, timeout_s=TIMEOUT_S)


def discover(run: Run, *, cwd: Path, system: Sequence[Path] = SYSTEM_HOSTFILES) -> Found:
    """Return what the tools and files of this machine tell; nothing is an answer too."""
    sinfo = run(SINFO)
    partitions = parse_sinfo(sinfo.output) if sinfo.ok else ()
    if sinfo.found and not partitions:
        partitions = parse_partitions(_output(run, PARTITIONS))
    config = parse_config(_output(run, SCONTROL_CONFIG)) if partitions else {}
    name = re.sub(r"[^A-Za-z0-9_.-]", "", config.get("ClusterName", "")).lstrip("_.-")
    hostfiles, left_out = _hostfiles(cwd, system)
    modern = config.get("SelectType", "").endswith("cons_tres")
    return Found(
        cluster_name=name if name and name != "local" else "cluster",
        partitions=partitions,
        no_sinfo=None if sinfo.ok or not sinfo.found else sinfo.complaint,
        gpu_request=GpuRequest.GPUS_PER_NODE if modern else GpuRequest.GRES,
        gpus=tuple(line.strip() for line in _output(run, NVIDIA_SMI).splitlines() if line.strip()),
        hostfiles=hostfiles,
        left_out=left_out,
    )


def parse_sinfo(text: str) -> tuple[Partition, ...]:
    """Return the partitions that `SINFO` lists; lines of one partition are taken together."""
    partitions: dict[str, Partition] = {}
    for line in text.splitlines():
        fields = line.strip().split("|") if line.isprintable() else []
        if len(fields) != 6 or not fields[0] or not fields[1].isdigit():
            continue
        name = fields[0].removesuffix("*")
        types, gpus = parse_gres(fields[3])
        known = partitions.get(name)
        partitions[name] = Partition(
            name=name,
            default=fields[0].endswith("*"),
            nodes=int(fields[1]) + (known.nodes if known else 0),
            time=fields[2],
            gpus=max(gpus, known.gpus if known else 0),
            gpu_types=tuple(dict.fromkeys((*(known.gpu_types if known else ()), *types))),
            cpus=max(_leading_number(fields[4]), known.cpus if known else 0),
        )
    return tuple(partitions.values())


def parse_partitions(text: str) -> tuple[Partition, ...]:
    """Return the partitions that `PARTITIONS` lists; GPUs as far as Slurm counts them (TRES)."""
    found = []
    for line in text.splitlines():
        known = dict(word.partition("=")[::2] for word in line.split())
        nodes, cpus = (known.get(key, "") for key in ("TotalNodes", "TotalCPUs"))
        if not known.get("PartitionName") or not (nodes.isdigit() and cpus.isdigit()):
            continue
        gpus = dict(_TRES_GPU.findall(known.get("TRES", "")))
        there = max(int(nodes), 1)
        limit = known.get("MaxTime", "")
        found.append(
            Partition(
                name=known["PartitionName"],
                default=known.get("Default") == "YES",
                nodes=int(nodes),
                time="infinite" if limit == "UNLIMITED" else limit,
                gpus=int(gpus.get("", 0)) // there,
                gpu_types=tuple(name for name in gpus if name),
                cpus=int(cpus) // there,
            )
        )
    return tuple(found)


def parse_gres(text: str) -> tuple[tuple[str, ...], int]:
    """Return the types and the number of GPUs in a node's Gres.

    >>> parse_gres("gpu:a100:8(S:0-1),nvme:1")
    (('a100',), 8)
    """
    found = [*_GPU.finditer(text)]
    types = tuple(dict.fromkeys(match["type"] for match in found if match["type"]))
    return types, sum(int(match["count"]) for match in found)


def parse_config(text: str) -> dict[str, str]:
    """Return the `Name = value` lines of `scontrol show config`."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}


def _output(run: Run, argv: Sequence[str]) -> str:
    answer = run(argv)
    return answer.output if answer.ok else ""


def _leading_number(text: str) -> int:
    match = re.match(r"\d+", text)
    return int(match[0]) if match else 0


def _hostfiles(cwd: Path, system: Sequence[Path]) -> tuple[tuple[Hostfile, ...], tuple[str, ...]]:
    found: list[Hostfile] = []
    left_out: list[str] = []
    folder = cwd / "hostfiles"
    listed = sorted(folder.iterdir()) if folder.is_dir() else []
    for path in (cwd / "hostfile", *listed, *system):
        if not path.is_file():
            continue
        try:
            foreign = find_foreign(path)
            if foreign is not None:
                left_out.append(str(foreign))
                continue
            hosts = hostfile.parse(read_text(path), source=str(path)).hosts
        except (UserError, OSError):
            continue  # `clusterkit hostfile FILE` says what is wrong; here it is no find
        found.append(Hostfile(path=path, hosts=hosts))
    return tuple(found), tuple(left_out)


_COMMENT_COLUMN = 34
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./~-]*", re.ASCII)
_WORDS_OF_YAML = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})

_HEAD = """\
# clusterkit.yaml: the machines that jobs can run on. Written by `clusterkit init`.
#   every key:        clusterkit explain config
#   one key:          clusterkit explain gpu_request
#   what holds now:   clusterkit config show --origin
"""


def starter_text(found: Found, *, folder: Path) -> str:
    """Return a commented configuration that is to lie in `folder`; it loads without errors."""
    racks = _named(found)
    names = [found.cluster_name] if found.partitions else []
    default = [*names, *(racks), "local"][0]
    lines = [
        *_HEAD.splitlines(),
        "",
        _line(f"default_cluster: {_text(default)}", "what commands use without --cluster"),
        "",
        "clusters:",
    ]
    if found.partitions:
        lines += [*_slurm(found), ""]
    for name, rack in racks.items():
        lines += [*_ssh(name, rack, folder), ""]
    lines += _local(found)
    # YAML refuses control characters even in comments, and names come from elsewhere.
    return "".join(f"{''.join(c if c.isprintable() else '?' for c in line)}\n" for line in lines)


def chosen_partition(partitions: Sequence[Partition]) -> Partition:
    """Return the partition for training: with GPUs before without, the default one first."""
    return max(partitions, key=lambda p: (p.gpus > 0, p.default, p.nodes))


def _slurm(found: Found) -> Iterator[str]:
    partition = chosen_partition(found.partitions)
    others = [p for p in found.partitions if p is not partition]
    has = _size(partition, found)
    yield f"  # Slurm, as it shows itself: partition {partition.name} has {has}."
    for other in others:
        yield f"  # There is also {other.name} with {_size(other, found)}."
    yield f"  {_text(found.cluster_name)}:"
    yield _line("    kind: slurm", "jobs go to sbatch")
    yield _line(f"    partition: {_text(partition.name)}", "sbatch --partition")
    if partition.gpus:
        yield _line(f"    gpus_per_node: {partition.gpus}", "slots a job gets on each node")
        why = (
            "cons_tres: --gpus-per-node works"
            if found.gpu_request is GpuRequest.GPUS_PER_NODE
            else "gres works everywhere"
        )
        yield _line(f"    gpu_request: {found.gpu_request}", why)
    elif found.no_sinfo:
        yield _line("    # gpus_per_node: 8", "sinfo does not tell of nodes; ask your site")
    else:
        yield _line("    gpus_per_node: 1", "CPU processes a job gets on each node")
        yield _line("    gpu_request: none", "the partition has no GPUs to ask for")
    if len(partition.gpu_types) > 1:
        types = ", ".join(partition.gpu_types)
        yield _line(f"    # gpu_type: {partition.gpu_types[0]}", f"there are {types}")
    yield _line("    # account: ml-research", "sacctmgr show associations user=$USER")
    limit = "no limit" if partition.time == "infinite" else f"the partition's: {partition.time}"
    yield _line("    # time: 4:00:00", f"limit of a job that sets none; {limit}")
    yield _line("    # network_interface: ib0", "traffic between nodes; `ip -brief link` there")
    yield _line("    # modules: [cuda]", "loaded on every node before the job")
    yield _line("    # python: /path/to/python", "interpreter of the training environment")
    yield _line("    # run_dir: /scratch/me/runs", "every node must see it; ~/.clusterkit/runs")


def _ssh(name: str, rack: Hostfile, folder: Path) -> Iterator[str]:
    path = rack.path
    shown = path.relative_to(folder) if path.is_relative_to(folder) else path
    slots = sorted({host.slots for host in rack.hosts if host.slots})
    yield f"  # Hosts reached by SSH: {fold_set(host.name for host in rack.hosts)}"
    yield f"  {_text(name)}:"
    yield _line("    kind: ssh", "bare metal, no scheduler")
    yield _line(f"    hostfile: {_text(str(shown))}", "or hosts: n[1-4]")
    if slots:
        listed = ", ".join(map(str, slots))
        yield _line(f"    gpus_per_node: {slots[0]}", f"slots in the hostfile: {listed}")
    else:
        yield _line("    # gpus_per_node: 8", "slots a job gets on each host")
    yield _line("    # user: train", "else ssh's own configuration decides")


def _local(found: Found) -> Iterator[str]:
    kinds = ", ".join(f"{found.gpus.count(name)} x {name}" for name in dict.fromkeys(found.gpus))
    yield f"  # This machine: {kinds or 'no GPU found by nvidia-smi'}."
    yield "  local:"
    yield _line("    kind: local", "always there, also without this entry")
    if found.gpus:
        yield _line(f"    gpus_per_node: {len(found.gpus)}", "slots a job gets by default")
    else:
        yield _line("    # gpus_per_node: 2", "CPU processes a job gets by default; else 1")


def _named(found: Found) -> dict[str, Hostfile]:
    racks: dict[str, Hostfile] = {}
    for rack in found.hostfiles:
        stem = re.sub(r"[^A-Za-z0-9_-]", "-", rack.path.stem).strip("-_") or "rack"
        taken = {*racks, "local", *([found.cluster_name] if found.partitions else [])}
        name = next(
            candidate
            for candidate in (stem, *(f"{stem}-{number}" for number in range(2, 1000)))
            if candidate not in taken
        )
        racks[name] = rack
    return racks


def _size(partition: Partition, found: Found) -> str:
    nodes = f"{partition.nodes} node{'s' if partition.nodes != 1 else ''}"
    none = "GPUs unknown" if found.no_sinfo else "no GPUs"
    gpus = f"{partition.gpus} GPUs each" if partition.gpus else none
    return f"{nodes}, {gpus}, {partition.cpus} CPUs"


def _line(setting: str, comment: str) -> str:
    return f"{setting:<{_COMMENT_COLUMN}}# {comment}"


def _text(value: str) -> str:
    plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS_OF_YAML
    return value if plain else json.dumps(value)
