"""Hostfiles of every launcher: a strict writer, an explaining reader, and what follows from them.

Four tools read nearly the same file and disagree in silence (docs/hostfile.md has the table).
So `parse` reads leniently and warns wherever the tool itself would misread, and `write` gives
either a text that the tool reads back as exactly the same hosts, or a `UserError`. Pure functions
throughout: nothing here opens a file or runs a command.
"""

from clusterkit.core.hosts.hostfile.entries import Format, HostFile, to_format
from clusterkit.core.hosts.hostfile.reader import parse
from clusterkit.core.hosts.hostfile.slots import (
    Rank,
    assign_ranks,
    filter_hosts,
    filter_slots,
    hosts_of_allocation,
    pool_of_unnamed,
    slot_pool,
)
from clusterkit.core.hosts.hostfile.writer import write

__all__ = [
    "Format",
    "HostFile",
    "Rank",
    "assign_ranks",
    "filter_hosts",
    "filter_slots",
    "hosts_of_allocation",
    "parse",
    "pool_of_unnamed",
    "slot_pool",
    "to_format",
    "write",
]
