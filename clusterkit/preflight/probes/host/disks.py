"""How full file systems are, by `df`, and /dev/shm and /tmp of each node."""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterkit.core.data import read_snippet
from clusterkit.preflight.probes.snippets import read_lines
from clusterkit.transport.probe import Probe, Unparsed

_ROW = re.compile(
    r"(?>(\S++(?: ++\S++)*?) ++(\d{1,20}|-) +(\d{1,20}|-) +(-?\d{1,20}|-) +(?:-?\d+%|-) +)(/.*)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Disks:
    """Folders that every job writes to; None where there is no such folder."""

    shm: Volume | None
    tmp: Volume | None


def parse(text: str) -> Disks:
    """Read two rows of `df` a folder."""
    lines = [line.partition("=") for line in read_lines(text)]
    if [key for key, _, _ in lines] != ["kib", "inodes"] * 2:
        raise Unparsed("not the rows of two folders")
    shm, shm_inodes, tmp, tmp_inodes = (value for _, _, value in lines)
    return Disks(
        shm=read_volume(shm, shm_inodes) if shm else None,
        tmp=read_volume(tmp, tmp_inodes) if tmp else None,
    )


PROBE = Probe(
    name="host-disks", command=read_snippet("volume") + read_snippet("host_disks"), parse=parse
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A file system as `df` sees it from one folder."""

    source: str
    """Device, or `server:/export`."""
    mount: str
    size_kib: int
    available_kib: int
    """What an unprivileged user can still write; never negative."""
    inodes: int | None = None
    """None where the file system does not count them (btrfs, many network file systems)."""
    inodes_available: int | None = None

    @property
    def used_percent(self) -> float:
        """Share that is not available any more."""
        return 100.0 - 100.0 * self.available_kib / self.size_kib if self.size_kib else 0.0


def read_volume(kib: str, inodes: str) -> Volume:
    """Return the file system of two rows of `df -P`.

    Raises:
        Unparsed: they are none.
    """
    row = _ROW.fullmatch(kib.strip())
    if row is None or "-" in (row[2], row[4]):
        raise Unparsed(f"df: {kib[:60]!r}")
    counted = _ROW.fullmatch(inodes.strip())
    total = int(counted[2]) if counted and counted[2] != "-" else 0
    free = int(counted[4]) if counted and counted[4] != "-" else 0
    return Volume(
        source=row[1],
        mount=row[5],
        size_kib=int(row[2]),
        available_kib=max(0, int(row[4])),
        inodes=total or None,
        inodes_available=max(0, free) if total else None,
    )
