"""The limits that a process started this way inherits; the job's processes start the same way."""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterkit.core.untrusted import whole
from clusterkit.transport.probe import Probe, Unparsed

# Not `ulimit`: its options differ between shells, the kernel's table does not.
_SNIPPET = "cat /proc/self/limits"

_ROW = re.compile(
    r"^(Max [a-z]+(?: [a-z]+)*) {2,}(unlimited|\d{1,20}) +(?:unlimited|\d{1,20}) +[a-z]+ *$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Soft limits; None is unlimited."""

    locked_bytes: int | None
    """`ulimit -l`."""
    open_files: int | None
    """`ulimit -n`."""


def parse(text: str) -> Limits:
    """Read `/proc/PID/limits` (Linux, fs/proc/base.c)."""
    rows = dict(_ROW.findall(text))
    try:
        locked, files = rows["Max locked memory"], rows["Max open files"]
    except KeyError as error:
        raise Unparsed(f"no row {error}") from None
    return Limits(
        locked_bytes=None if locked == "unlimited" else whole(locked),
        open_files=None if files == "unlimited" else whole(files),
    )


PROBE = Probe(name="host-limits", command=_SNIPPET, parse=parse)
