"""The text of a first `clusterkit.yaml`, made from what was found."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from clusterkit.config.init.discover import Found, Hostfile, Partition
from clusterkit.core.hosts.hostlist import fold_set
from clusterkit.core.model import GpuRequest

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
