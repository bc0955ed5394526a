"""The folders that have to be the same on all nodes: there, alive, writable, and from where."""

from __future__ import annotations

from dataclasses import dataclass

from clusterkit.core.shell import quote
from clusterkit.preflight.probes.host.disks import VOLUME, Volume, read_volume
from clusterkit.preflight.probes.net.pairs import read_lines, whole_number
from clusterkit.transport.probe import PreflightJob, Probe, Unparsed

HANG_S = 5
"""How long a folder may take to answer one `stat`."""

# The children that touch a folder first hold no pipe of ours and are not waited for: on a dead
# network file system they cannot even be killed, and must not hang whoever listens to us.
_LOOK = r"""
set -- @PATHS@
children=
for folder; do
( exec >/dev/null 2>&1
[ -d "$folder/." ] && exit 0; [ -e "$folder" ] && exit 3; exit 2 ) &
children="$children $!"
done
alive() { for child in $children; do kill -0 "$child" 2>/dev/null && return 0; done; return 1; }
tenths=0
while [ $tenths -lt @TENTHS@ ] && alive; do
if sleep 0.1 2>/dev/null; then tenths=$((tenths + 1)); else sleep 1; tenths=$((tenths + 10)); fi
done
number=0
for child in $children; do
eval "folder=\${$((number + 1))}"
echo "folder=$number"
number=$((number + 1))
if kill -0 "$child" 2>/dev/null; then kill -9 "$child"; echo "state=hung"; continue; fi
wait "$child"
case $? in
0) echo "state=ok"; describe "$folder" ;;
2) echo "state=absent" ;;
*) echo "state=denied" ;;
esac
done
echo end
"""

_DESCRIBE = r"""
describe() {
if [ -w "$1/." ]; then echo "writable=1"; else echo "writable=0"; fi
echo "inode=$(ls -di "$1/." | awk '{ print $1 }')"
volume "$1" || return
echo "type=$(MOUNT="${row##*% }" awk '$2 == ENVIRON["MOUNT"] { t = $3; o = $4 }
END { print t, o }' /proc/self/mounts)"
[ $number -gt 1 ] || [ -z @MARKER@ ] || {
if [ -e "$1"/@MARKER@ ]; then read -r seen <"$1"/@MARKER@; echo "marker=$seen"; fi; }
}
"""


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
    describe = _DESCRIBE.replace("@MARKER@", quote(job.marker or ""))
    look = _LOOK.replace("@TENTHS@", str(HANG_S * 10))
    return VOLUME + describe + look.replace("@PATHS@", " ".join(map(quote, job.paths)))


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
        inode=whole_number(pairs["inode"]) if pairs.get("inode") else None,
        volume=read_volume(pairs["kib"], pairs.get("inodes", "")) if pairs.get("kib") else None,
        kind=kind,
        options=frozenset(options.split(",")) if options else frozenset(),
        marker=pairs.get("marker"),
    )


PROBE = Probe(name="shared-folders", command=_command, parse=parse, timeout_s=HANG_S + 10.0)
