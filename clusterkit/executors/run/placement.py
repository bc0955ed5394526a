"""On which hosts the nodes of a job run, as the first node of each attempt has written it down."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress

from clusterkit.core import files, reading
from clusterkit.core.errors import UserError
from clusterkit.core.hosts import hostlist
from clusterkit.executors.run.node_results import read_attempts
from clusterkit.executors.run.runfolder import RunFolder, listed

_NAMES = re.compile(r"hosts-[0-9]{1,7}")
_NAME = re.compile(r"[!-~]{1,255}")
_MOST_NODES = 100_000


def note(run: RunFolder, attempt: int, names: Sequence[str]) -> None:
    """Write down the hosts of an attempt in rank order, where the folder takes that."""
    with suppress(UserError):
        files.create_text(run.path / f"hosts-{attempt}", hostlist.fold(names))


def hosts(run: RunFolder) -> Mapping[int, str]:
    """Return the hosts of nodes by number: those that were on one host in all attempts."""
    found: dict[int, set[str]] = {}
    for attempt in read_attempts(run):
        for result in attempt.nodes:
            found.setdefault(result.node_rank, set()).add(result.node)
    if run.foreign is None:
        for file in filter(_NAMES.fullmatch, listed(run.path)):
            for rank, name in enumerate(_written(run, file)):
                found.setdefault(rank, set()).add(name)
    return {rank: names.pop() for rank, names in found.items() if len(names) == 1}


def _written(run: RunFolder, file: str) -> tuple[str, ...]:
    try:
        names = hostlist.expand(reading.read_bytes(run.path / file).decode())
    except (OSError, UnicodeDecodeError, UserError):
        return ()
    return names if len(names) <= _MOST_NODES and all(map(_NAME.fullmatch, names)) else ()
