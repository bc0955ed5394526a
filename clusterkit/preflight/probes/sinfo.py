"""The table of `sinfo`: less than `scontrol show node`, for machines that have no scontrol.

Wrappers around Slurm, in containers and notebooks, often hand on sbatch, squeue and sinfo alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from clusterkit.core.data import read_table
from clusterkit.core.errors import UserError
from clusterkit.core.hosts import hostlist
from clusterkit.transport.probe import Output, Unparsed

_HEADER = ["PARTITION", "AVAIL", "TIMELIMIT", "NODES", "STATE", "NODELIST"]

_LONG = {row["compact"]: row["long"] for row in read_table(__file__, "sinfo.tsv")}
_STATE = re.compile(r"([a-z_]+)([*~#!%$@^-]*)\+?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Nodes of one partition in one state."""

    state: str
    """Compact, such as `idle` or `down*`."""
    nodes: tuple[str, ...]


def query(hosts: Sequence[str]) -> tuple[str, ...]:
    """Return the command that prints the table of `hosts`, whatever SINFO_FORMAT says."""
    return ("sinfo", f"--nodes={hostlist.fold(dict.fromkeys(hosts))}", "-o", "%P %a %l %D %t %N")


def as_records(output: Output) -> Output:
    """Return the output of `query` as if scontrol had printed it; unchanged if it is not a table.

    Raises nothing: what is not a table has no records either, and is unknown to who reads it.
    """
    try:
        return replace(output, stdout="".join(records(parse(output.stdout)).values()))
    except Unparsed:
        return output


def parse(text: str) -> tuple[Row, ...]:
    """Read the default table of `sinfo`.

    Raises:
        Unparsed: it is another table, or a row does not hold as many nodes as it says.
    """
    lines = [line.split() for line in text.splitlines() if line.strip()]
    if not lines or lines[0] != _HEADER:
        raise Unparsed("not the default table of sinfo")
    return tuple(_row(fields) for fields in lines[1:])


def records(rows: tuple[Row, ...]) -> Mapping[str, str]:
    """Return the record of each node that the parser of `slurm-node` reads; the states alone."""
    states = [(row.nodes, _STATE.fullmatch(row.state)) for row in rows]
    return {
        node: f"NodeName={node} State={_LONG[state[1]]}{state[2]}\n"
        for nodes, state in states
        if state is not None and state[1] in _LONG
        for node in nodes
    }


def _row(fields: list[str]) -> Row:
    if len(fields) != len(_HEADER):
        raise Unparsed(f"a row of {len(fields)} words")
    count, state, listed = fields[3:]
    try:
        nodes = hostlist.expand(listed, source="sinfo") if listed != "n/a" else ()
    except UserError as error:
        raise Unparsed(f"nodes {listed[:40]!r}: {error}") from None
    if count != str(len(nodes)):
        raise Unparsed(f"{count} nodes announced, {len(nodes)} named")
    return Row(state=state, nodes=nodes)
