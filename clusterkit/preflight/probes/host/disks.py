"""How full /dev/shm and /tmp are."""

from __future__ import annotations

from dataclasses import dataclass

from clusterkit.preflight.probes.host.volumes import VOLUME, Volume, read_volume
from clusterkit.preflight.probes.net.pairs import read_lines
from clusterkit.transport.probe import Probe, Unparsed

_SNIPPET = (
    VOLUME
    + """
for folder in /dev/shm /tmp; do
if [ -d "$folder" ]; then volume "$folder" || exit 1; else echo kib=; echo inodes=; fi
done
echo end
"""
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


PROBE = Probe(name="host-disks", command=_SNIPPET, parse=parse)
