"""`--snapshot`: the job runs from a copy of the working tree as it is now, in its run folder.

What is copied is what `--sync` would send (`read_manifest`): every file that git would not ignore,
also one that is not committed, with what submodules hold. Files share their blocks with those of
the tree where the file system can do that, and are never the same file (a hard link): an editor
that writes in place would change what a job that waits is going to run.

What a laptop has sent for a job is a snapshot already, and moves into the run folder; of an array,
all jobs but the last are given a copy. Of another array, the first job keeps a copy for the others,
which the last one takes.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clusterkit.core import files
from clusterkit.core.errors import UserError
from clusterkit.core.model import LaunchPlan
from clusterkit.core.text import size_in_words, some_of
from clusterkit.executors.run import runfolder
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.jobs.submit import provenance
from clusterkit.jobs.submit.provenance import CODE
from clusterkit.transport.sync.manifest import Entry, Manifest, read_manifest

_SHOWN = 3
_NO_LIMIT_MIB = 1 << 40
"""A copy is not larger than its laptop allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What is to be copied, and where in it the job starts."""

    manifest: Manifest
    inside: str
    several: bool = False
    """Whether more jobs are to get the same of a tree that may be edited meanwhile."""
    moves: bool = False
    """Whether nobody needs it after the job."""

    def for_next(self, first: RunFolder, *, last: bool) -> Snapshot:
        """Return what the next, or the `last`, of an array gets: the same as its first job."""
        manifest = self.manifest
        if self.several:
            manifest = dataclasses.replace(manifest, folder=first.for_others)
        return dataclasses.replace(self, manifest=manifest, several=False, moves=last)


def read_snapshot(plan: LaunchPlan, limit_mib: int, *, several: bool) -> Snapshot:
    """Return what a job, or `several` of an array, get of the tree that it is submitted from.

    Raises:
        UserError: the script is not in that tree, a file cannot be read, or they are too large.
    """
    cluster, here = plan.cluster, Path(plan.workdir).resolve()
    if not _is_seen_by_nodes(plan):
        raise UserError(
            f"--snapshot: nodes of cluster {cluster.name} do not see run folders of this machine",
            hint="--sync DIR gives each job a copy of its own",
            key="snapshot",
        )
    root = root_of(here)
    script = Path(os.path.normpath(here / plan.script))
    if plan.script_kind.is_file and not script.is_relative_to(root):
        raise UserError(
            f"--snapshot: {script} is not in {root}, which is what is copied",
            hint="submit it from its own folder, or leave --snapshot out",
            key="snapshot",
        )
    runs = runfolder.place_of(cluster).resolve()
    manifest = read_manifest(root, limit_mib=limit_mib, leave_out={runs})
    entries = tuple(_placed(root, entry) for entry in manifest.entries)
    manifest = dataclasses.replace(manifest, entries=entries)
    return Snapshot(manifest=manifest, inside=os.path.relpath(here, root), several=several)


def sent_snapshot(plan: LaunchPlan, *, several: bool) -> Snapshot | None:
    """Return the snapshot that a laptop has sent for the job at hand, or for `several` of an array.

    None where it has not, or nodes do not see it: then it stays where `sync` finds it.

    Raises:
        UserError: a file cannot be read.
    """
    here = Path(plan.workdir).resolve()
    copy = provenance.copy_for_one_job(here) if _is_seen_by_nodes(plan) else None
    if copy is None:
        return None
    # To be moved, it needs no list.
    manifest = _manifest_of(copy) if several else Manifest(folder=copy, entries=())
    inside = os.path.relpath(here, copy)
    return Snapshot(manifest=manifest, inside=inside, moves=not several)


def _manifest_of(copy: Path) -> Manifest:
    return read_manifest(copy, limit_mib=_NO_LIMIT_MIB, like_git=False)


def _is_seen_by_nodes(plan: LaunchPlan) -> bool:
    """Tell whether the nodes run from folders of this machine, and not from what they are sent."""
    cluster = plan.cluster
    return plan.sync is None and (cluster.shared_filesystem or not cluster.kind.lists_hosts)


def name_in_copy(script: str, *, asked: bool) -> str:
    """Return how a job that runs from a copy of the tree at hand calls an absolute script in it.

    One elsewhere keeps its name, and every one where no copy was sent or `asked` for.
    """
    here, path = Path.cwd(), Path(script)
    root = provenance.copy_for_one_job(here) or (root_of(here) if asked else None)
    place = path.parent.resolve() / path.name
    inside = root is not None and place.is_relative_to(root)
    return os.path.relpath(place, here) if inside else script


def take(snapshot: Snapshot, plan: LaunchPlan, run: RunFolder) -> LaunchPlan:
    """Copy or move the files into the run folder; return the plan of a job that runs from there.

    What would move to another file system is copied, and stays: this process is in that folder.

    Raises:
        UserError: one cannot be read or written; the run folder is gone then.
    """
    code = run.path / CODE
    workdir = code / snapshot.inside
    source = snapshot.manifest.folder
    try:
        if snapshot.moves and files.move(source, code):
            files.remove(provenance.beside(source))
        else:
            _copy(_manifest_of(source) if snapshot.moves else snapshot.manifest, code)
        files.create_folder(workdir)  # what is ignored there is all that it may hold
        if snapshot.several:
            files.create_folder(run.for_others)
            _copy(dataclasses.replace(snapshot.manifest, folder=code), run.for_others)
    except BaseException:
        files.remove_tree(run.path)  # nothing was started; half a run would only confuse
        raise
    return dataclasses.replace(plan, workdir=os.path.normpath(workdir))


def _copy(manifest: Manifest, code: Path) -> None:
    for entry in manifest.entries:
        if entry.link is None:
            files.copy(manifest.folder / entry.path, code / entry.path)
        else:
            files.create_folder((code / entry.path).parent)
            files.create_link(code / entry.path, entry.link)


def in_words(snapshot: Snapshot) -> Iterator[str]:
    """Yield what is copied, and which links lead out of it."""
    manifest = snapshot.manifest
    size = size_in_words(manifest.size)
    yield f"snapshot of {manifest.folder}: {len(manifest.entries)} files, {size}"
    out = [
        f"{entry.path} -> {entry.link}"
        for entry in manifest.entries
        if entry.link is not None and Path(entry.link).is_absolute()
    ]
    if out:
        yield f"links that lead out of it go where they went: {some_of(out, _SHOWN)}"


def _placed(root: Path, entry: Entry) -> Entry:
    """Return an entry whose link points into the copy, or to the same place as before."""
    if entry.link is None:
        return entry
    place = (root / entry.path).parent
    target = os.path.normpath(place / entry.link)
    inside = Path(target).is_relative_to(root)
    return dataclasses.replace(entry, link=os.path.relpath(target, place) if inside else target)


def root_of(here: Path) -> Path:
    """Return the top of the tree that a folder is in: of its repository, or of another snapshot.

    A submodule is a part of the repository around it. A folder that is in none is its own.
    """
    for folder in (here, *here.parents):
        if provenance.is_snapshot(folder):
            return folder
        git = folder / ".git"
        if git.is_dir() or (git.is_file() and "/modules/" not in git.read_text(errors="replace")):
            return folder
    return here
