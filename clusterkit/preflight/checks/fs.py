"""FS: whether the job's folders are there, shared, writable, mounted soundly and have room."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from clusterkit.preflight.checks.base import (
    each,
    each_machine,
    known,
    machine_check,
    majority,
    single_machine,
)
from clusterkit.preflight.checks.results import Result, Results, advice, ok, skip, unknown
from clusterkit.preflight.checks.types import Evidence, NodeFacts, Tier, check
from clusterkit.preflight.probes.host import job_python
from clusterkit.preflight.probes.host.shared_folders import PROBE, Folder
from clusterkit.transport.probe import Missing, PreflightJob

V = TypeVar("V", int, str)
Folders = tuple[Folder, ...]
"""One for each path of the job, the run folder first."""


def _no_folder(job: PreflightJob) -> str | None:
    return None if job.paths else "no folder of the job is known"


def _usual(evidence: Evidence, key: Callable[[Folder], V | None]) -> Sequence[V | None]:
    """Return, for each path of the job, the `key` that most nodes have, None without a majority."""
    found: list[dict[str, V]] = [{} for _ in evidence.job.paths]
    for node, facts in known(evidence, PROBE)[0].items():
        for values, folder in zip(found, facts, strict=False):
            if (value := key(folder)) is not None:
                values[node] = value
    return tuple(majority(values) for values in found)


_STATES = {"hung": "hangs", "absent": "not found", "denied": "is not a folder that you may enter"}


@machine_check("FS001", "fs-alive", PROBE, skip_if=_no_folder)
def _alive(node: NodeFacts, job: PreflightJob) -> Result:
    for folder, path in zip(node.need(PROBE), job.paths, strict=False):
        if folder.state in _STATES:
            what = f"{path} {_STATES[folder.state]}"
            return advice("FS001", folder.state, path=path).fail(what)
    return ok("the job's folders are there")


_NETWORK = ("nfs", "lustre", "gpfs", "ceph", "beegfs", "wekafs")
"""File systems that number a file the same on all their clients; FUSE ones make numbers up."""

_LOCAL = ("ext", "xfs", "btrfs", "overlay", "tmpfs", "zfs")
"""Here another number shows another folder, and the same number shows nothing."""


def _nothing_shared(job: PreflightJob) -> str | None:
    return _no_folder(job) or single_machine(job)


@check("FS002", "fs-shared", PROBE, tier=Tier.ROUND_TRIP, skip_if=_nothing_shared)
def _shared(evidence: Evidence) -> Results:
    inodes = _usual(evidence, _inode)
    return each(evidence, PROBE, lambda folders: _same(folders, evidence.job, inodes))


def _same(folders: Folders, job: PreflightJob, inodes: Sequence[int | None]) -> Result:
    if any(folder.state != "ok" for folder in folders):
        return unknown("not all folders could be looked into")
    if job.marker and folders and folders[0].marker != job.marker:
        seen = "does not see" if folders[0].marker is None else "sees another content of"
        path = job.paths[0]
        summary = f"{path} is not shared: {seen} the file that was written there"
        return advice("FS002", path=path).fail(summary)
    for folder, path, most in zip(folders, job.paths, inodes, strict=False):
        if most is not None and _inode(folder) not in {None, most}:
            summary = f"{path} is not the folder that most nodes have"
            return advice("FS002", path=path).warn(summary)
    numbered = all(folder.kind.startswith(_NETWORK) and folder.inode for folder in folders)
    if not job.marker and not (numbered and None not in inodes):
        # This machine may not have the folder; local disks then leave nothing to go by.
        return unknown("no marker could be written to look for")
    return ok("the job's folders are the same")


def _inode(folder: Folder) -> int | None:
    return folder.inode if folder.kind.startswith(_NETWORK + _LOCAL) else None


@machine_check("FS003", "fs-writable", PROBE, skip_if=_no_folder)
def _writable(node: NodeFacts, job: PreflightJob) -> Result:
    path, run = job.paths[0], next(iter(node.need(PROBE)), None)
    if run is None or run.state != "ok":
        return unknown(f"{path} could not be looked into")
    if run.writable:
        return ok("the run folder can be written")
    read_only = "ro" in run.options
    return advice("FS003", "read-only" if read_only else "", path=path).fail(
        f"{path} is mounted read-only" if read_only else f"{path} may not be written",
        " ".join((run.kind, ",".join(sorted(run.options)))).strip(),
    )


_RISKY = {
    "soft": "a slow server then ends in write errors and lost data",
    "nolock": "locks then hold on one node only, and two writers damage a file",
    "noac": "every look at a file then asks the server, which is slow",
    "sync": "every write then waits for the server, which is slow",
}


@check("FS004", "fs-mounts", PROBE, job_python.PROBE, tier=Tier.ROUND_TRIP)
def _mounts(evidence: Evidence) -> Results:
    paths = evidence.job.paths
    sources = _usual(evidence, _source)

    def rule(node: NodeFacts) -> Result | None:
        python = node.of(job_python.PROBE)
        if python is not None and not isinstance(python, Missing) and python.noexec:
            return advice("FS004").fail("the Python environment is mounted noexec")
        return _mounted(node.need(PROBE), paths, sources) if paths else None

    yield from each_machine(rule)(evidence)
    if not paths:
        yield None, skip("no folder of the job is known")


def _mounted(folders: Folders, paths: tuple[str, ...], sources: Sequence[str | None]) -> Result:
    if all(folder.volume is None for folder in folders):
        return unknown("the mounts could not be looked at")
    for folder, path, most in zip(folders, paths, sources, strict=False):
        for option in sorted(folder.options & _RISKY.keys()):
            if folder.kind.startswith("nfs"):
                return advice("FS004").warn(f"{path} is mounted {option}: {_RISKY[option]}")
        source = _source(folder)
        if most is not None and source not in {None, most}:
            differs = f"{source}; most nodes: {most}"
            return advice("FS004").warn(f"{path} comes from another source", differs)
    return ok("the job's folders are mounted soundly")


def _source(folder: Folder) -> str | None:
    return folder.volume.source if folder.volume else None


_FAIL_KIB = 1 << 20
_WARN_KIB = 50 << 20
_WARN_PERCENT = 95
_FAIL_INODES = 1000


@machine_check("FS005", "fs-space", PROBE, skip_if=_no_folder)
def _space(node: NodeFacts, job: PreflightJob) -> Result:
    path, run = job.paths[0], next(iter(node.need(PROBE)), None)
    if run is None or run.volume is None:
        return unknown(f"space of {path} is not known")
    volume, full = run.volume, advice("FS005", path=path)
    inodes = volume.inodes_available
    free = f"{volume.available_kib >> 20} GiB free, {volume.used_percent:.0f} % used"
    if volume.available_kib < _FAIL_KIB:
        return full.fail(f"{path} is full", free)
    if inodes is not None and inodes < _FAIL_INODES:
        return full.fail(f"{path} has no inodes left", f"{inodes} inodes")
    if volume.used_percent >= _WARN_PERCENT and volume.available_kib < _WARN_KIB:
        return full.warn(f"{path} is nearly full", free)
    return ok("the run folder has room")
