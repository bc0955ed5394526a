"""The folders that have to be the same on all nodes: there, alive, writable, and from where."""

from __future__ import annotations

from dataclasses import dataclass

from clusterkit.core.data import read_snippet
from clusterkit.core.shell import quote
from clusterkit.core.untrusted import whole
from clusterkit.preflight.probes.host.disks import Volume, read_volume
from clusterkit.preflight.probes.snippets import read_lines
from clusterkit.transport.probe import PreflightJob, Probe, Unparsed

HANG_S = 5
"""How long a folder may take to answer one `stat`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder as one node sees it; all but `state` is only known where that is `ok`."""

    state: str
    """`ok`, `absent`, `denied` (no folder, or not for this user) or `hung`."""
    writable: bool = False
    inode: int | None = None
    volume: Volume | None = None
    kind: str = ""
    """Type of the file system (`nfs4`, `lustre`); empty where the mount table does not tell."""
    options: frozenset[str] = frozenset()
    marker: str | None = None
    """What the marker file says; None where it is not seen, or not looked for."""


def _command(job: PreflightJob) -> str | None:
    if not job.paths:
        return None
    return read_snippet("volume") + read_snippet(
        "shared_folders",
        paths=" ".join(map(quote, job.paths)),
        tenths=str(HANG_S * 10),
        marker=quote(job.marker or ""),
    )


def parse(text: str) -> tuple[Folder, ...]:
    """Return one folder for each of the job's paths."""
    found: list[dict[str, str]] = []
    for line in read_lines(text):
        key, equals, value = line.partition("=")
        if key == "folder" and value == str(len(found)):
            found.append({})
        elif not equals or not found or key in found[-1]:
            raise Unparsed(f"unexpected line {line[:60]!r}")
        else:
            found[-1][key] = value
    return tuple(_folder(pairs) for pairs in found)


def _folder(pairs: dict[str, str]) -> Folder:
    state = pairs.get("state")
    if state not in {"ok", "absent", "denied", "hung"}:
        raise Unparsed("a folder without state")
    if state != "ok":
        return Folder(state=state)
    if pairs.get("writable") not in {"0", "1"}:
        raise Unparsed("not said whether it is writable")
    kind, _, options = pairs.get("type", "").strip().partition(" ")
    return Folder(
        state=state,
        writable=pairs["writable"] == "1",
        inode=whole(pairs["inode"]) if pairs.get("inode") else None,
        volume=read_volume(pairs["kib"], pairs.get("inodes", "")) if pairs.get("kib") else None,
        kind=kind,
        options=frozenset(options.split(",")) if options else frozenset(),
        marker=pairs.get("marker"),
    )


PROBE = Probe(name="shared-folders", command=_command, parse=parse, timeout_s=HANG_S + 10.0)
