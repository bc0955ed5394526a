"""A first `clusterkit.yaml`: what this machine can tell about the clusters around it, as its text.

Everything takes the runner as an argument, so that recorded answers can stand in for the tools.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jinja2

from clusterkit.config import platforms
from clusterkit.config.document import read_text
from clusterkit.config.sources import variable
from clusterkit.core import commands
from clusterkit.core.commands import Answer
from clusterkit.core.data import read_template
from clusterkit.core.errors import UserError
from clusterkit.core.hosts import hostfile_reader
from clusterkit.core.hosts.hostlist import fold, fold_set
from clusterkit.core.metadata import machine_root
from clusterkit.core.model import NO_PLATFORM, GpuRequest, Host
from clusterkit.core.ownership import find_foreign
from clusterkit.transport.slurm_nodes import SCONTROL_CONFIG, parse_settings

TIMEOUT_S = 10
"""A controller that does not answer lets Slurm's commands wait for much longer."""

SINFO = ("sinfo", "--noheader", "--format=%P|%D|%l|%G|%c|%m|%L")
PARTITIONS = ("scontrol", "show", "partition", "--oneliner")
"""Where sinfo is refused: `PrivateData=nodes` shows nodes to operators alone, partitions to all."""
NVIDIA_SMI = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")

SYSTEM_HOSTFILES = (Path("/job/hostfile"), Path("/etc/mpi/hostfile"), Path("/etc/hostfile"))
"""Where DeepSpeed looks, where Kubeflow's MPI operator writes, and where people put one."""

HOSTS_NAME = "machines"
"""What the cluster of hosts is called that the user has named."""

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
    """The most time of a job (MaxTime) as Slurm writes it, `infinite` for no limit."""
    default_time: str
    """What a job gets that sets no limit (DefaultTime): that of the partition, else all of it."""
    gpus: int = 0
    gpu_types: tuple[str, ...] = ()
    cpus: int = 0

    @property
    def limits(self) -> str:
        """What a job gets that sets no time limit, and the most that it may set."""
        most, default = self.time, self.default_time
        if default == "infinite":
            return "no limit"
        above = "more by --time" if most == "infinite" else f"at most {most}"
        return f"the partition's: {default}" + (f", {above}" if most != default else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Everything that was found."""

    cluster_name: str = "cluster"
    partitions: tuple[Partition, ...] = ()
    gpu_request: GpuRequest = GpuRequest.GPUS_PER_NODE
    gpus: tuple[str, ...] = ()
    """Names of the GPUs of this machine."""
    hostfiles: Mapping[Path, tuple[Host, ...]] = field(default_factory=dict)
    """The hosts of each hostfile that was found and can be read."""
    no_sinfo: str | None = None
    """What sinfo said where it is there and lists nothing; then GPUs may not be known."""
    platform: platforms.Recognised | None = None
    instance_type: str | None = None
    """Of this machine, where the platform lists it."""
    platforms: tuple[str, ...] = ()
    """Those that the cloud of this machine has."""
    login: str | None = None
    """The login node that was asked, where that is not this machine."""
    hosts: tuple[str, ...] = ()
    """Machines without a scheduler that the user has named."""
    left_out: tuple[str, ...] = ()
    """Hostfiles that others can write, and why they do not count."""


def run_command(argv: Sequence[str]) -> Answer:
    """Run a command of this machine, in the C locale, for at most `TIMEOUT_S`."""
    return commands.run_command(argv, timeout_s=TIMEOUT_S)


def discover(run: Run, *, cwd: Path, system: Sequence[Path] = SYSTEM_HOSTFILES) -> Found:
    """Return what the tools and files of this machine tell; nothing is an answer too.

    In a cloud, its metadata service is asked for the instance type, which no file tells.
    """
    hostfiles, left_out = _hostfiles(cwd, system)
    return replace(
        discover_slurm(run),
        gpus=tuple(line.strip() for line in _output(run, NVIDIA_SMI).splitlines() if line.strip()),
        hostfiles=hostfiles,
        left_out=left_out,
        **_platform(),
    )


def discover_slurm(run: Run) -> Found:
    """Return what Slurm's tools tell."""
    sinfo = run(SINFO)
    partitions = parse_sinfo(sinfo.output) if sinfo.ok else ()
    if sinfo.found and not partitions:
        partitions = parse_partitions(_output(run, PARTITIONS))
    config = parse_settings(_output(run, SCONTROL_CONFIG)) if partitions else {}
    name = re.sub(r"[^A-Za-z0-9_.-]", "", config.get("ClusterName", "")).lstrip("_.-")
    modern = config.get("SelectType", "").endswith("cons_tres")
    return Found(
        cluster_name=name if name and name != "local" else "cluster",
        partitions=partitions,
        no_sinfo=None if sinfo.ok or not sinfo.found else sinfo.complaint,
        gpu_request=GpuRequest.GPUS_PER_NODE if modern else GpuRequest.GRES,
    )


def _platform() -> dict[str, Any]:
    """Return what is known of the cloud of this machine, unless a variable says to leave it."""
    if os.environ.get(variable("platform")) == NO_PLATFORM:
        return {}
    root = machine_root()
    found = platforms.recognise(root)
    told = platforms.instance_type_of(root) if found is not None else None
    listed = platforms.load_platform(found.name).instances if found is not None else {}
    return {
        "platform": found,
        "instance_type": told if told in listed else None,
        "platforms": platforms.platforms_of_cloud(root),
    }


def parse_sinfo(text: str) -> tuple[Partition, ...]:
    """Return the partitions that `SINFO` lists; lines of one partition are taken together."""
    partitions: dict[str, Partition] = {}
    for line in text.splitlines():
        fields = line.strip().split("|") if line.isprintable() else []
        if len(fields) != 7 or not fields[0] or not fields[1].isdigit():
            continue
        name = fields[0].removesuffix("*")
        types, gpus = parse_gres(fields[3])
        known = partitions.get(name)
        partitions[name] = Partition(
            name=name,
            default=fields[0].endswith("*"),
            nodes=int(fields[1]) + (known.nodes if known else 0),
            time=fields[2],
            default_time=_default_time(fields[6], fields[2]),
            gpus=max(gpus, known.gpus if known else 0),
            gpu_types=tuple(dict.fromkeys((*(known.gpu_types if known else ()), *types))),
            cpus=max(int(re.split(r"\D", fields[4])[0] or 0), known.cpus if known else 0),
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
        limit = known.get("MaxTime", "").replace("UNLIMITED", "infinite")
        found.append(
            Partition(
                name=known["PartitionName"],
                default=known.get("Default") == "YES",
                nodes=int(nodes),
                time=limit,
                default_time=_default_time(known.get("DefaultTime", ""), limit),
                gpus=int(gpus.get("", 0)) // there,
                gpu_types=tuple(name for name in gpus if name),
                cpus=int(cpus) // there,
            )
        )
    return tuple(found)


def _default_time(text: str, most: str) -> str:
    """Return the limit of a job that sets none: sinfo writes `n/a` where that is the most."""
    default = text.strip().replace("UNLIMITED", "infinite")
    return most if default in {"", "n/a", "NONE"} else default


def parse_gres(text: str) -> tuple[tuple[str, ...], int]:
    """Return the types and the number of GPUs in a node's Gres.

    >>> parse_gres("gpu:a100:8(S:0-1),nvme:1")
    (('a100',), 8)
    """
    found = [*_GPU.finditer(text)]
    types = tuple(dict.fromkeys(match["type"] for match in found if match["type"]))
    return types, sum(int(match["count"]) for match in found)


def _output(run: Run, argv: Sequence[str]) -> str:
    answer = run(argv)
    return answer.output if answer.ok else ""


def _hostfiles(
    cwd: Path, system: Sequence[Path]
) -> tuple[Mapping[Path, tuple[Host, ...]], tuple[str, ...]]:
    found: dict[Path, tuple[Host, ...]] = {}
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
            found[path] = hostfile_reader.parse(read_text(path), source=str(path)).hosts
        except (UserError, OSError):
            continue  # `clusterkit hostfile FILE` says what is wrong; here it is no find
    return found, tuple(left_out)


_COMMENT_COLUMN = 34
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./~-]*", re.ASCII)
_WORDS_OF_YAML = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


def starter_text(found: Found, *, folder: Path) -> str:
    """Return a commented configuration that is to lie in `folder`; it loads without errors."""
    environment = jinja2.Environment(  # noqa: S701 - it is YAML, and `finalize` keeps values in line
        undefined=jinja2.StrictUndefined, trim_blocks=True, finalize=_printable
    )
    environment.filters |= {
        "fold": fold_set,
        "fold_in_order": fold,
        "shown": lambda path: path.relative_to(folder) if path.is_relative_to(folder) else path,
        "size": lambda partition: _size(partition, found),
        "yaml": _yaml,
    }
    racks = _named(found)
    names = [HOSTS_NAME] if found.hosts else []
    names += [found.cluster_name] if found.partitions else []
    text = environment.from_string(read_template("pages/clusterkit.yaml.j2")).render(
        found=found,
        hosts_name=HOSTS_NAME,
        racks=racks,
        default=[*names, *racks, "local"][0],
        # For training: with GPUs before without, then the default one.
        chosen=max(found.partitions, key=lambda p: (p.gpus > 0, p.default, p.nodes), default=None),
        gpus=", ".join(f"{found.gpus.count(n)} x {n}" for n in dict.fromkeys(found.gpus)),
    )
    # A tab of the template stands before a comment; values have none.
    pairs = (line.partition("\t") for line in text.splitlines())
    return "".join(
        f"{setting + '  ':<{_COMMENT_COLUMN}}{comment}\n" if tab else f"{setting}\n"
        for setting, tab, comment in pairs
    )


def _named(found: Found) -> dict[str, Path]:
    racks: dict[str, Path] = {}
    for rack in found.hostfiles:
        stem = re.sub(r"[^A-Za-z0-9_-]", "-", rack.stem).strip("-_")
        stem = "rack" if stem in {"", "hostfile"} else stem  # a file, and no name of machines
        taken = {*racks, "local", *([found.cluster_name] if found.partitions else [])}
        taken |= {HOSTS_NAME} if found.hosts else set()
        names = (stem, *(f"{stem}-{number}" for number in range(2, 1000)))
        racks[next(name for name in names if name not in taken)] = rack
    return racks


def _size(partition: Partition, found: Found) -> str:
    nodes = f"{partition.nodes} node{'s' if partition.nodes != 1 else ''}"
    none = "GPUs unknown" if found.no_sinfo else "no GPUs"
    gpus = f"{partition.gpus} GPUs each" if partition.gpus else none
    return f"{nodes}, {gpus}, {partition.cpus} CPUs"


def _printable(value: object) -> str:
    """Return what YAML can hold: it refuses control characters even in comments."""
    return "".join(c if c.isprintable() else "?" for c in str(value))


def _yaml(value: object) -> str:
    text = str(value)
    plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS_OF_YAML
    return text if plain else json.dumps(text)
