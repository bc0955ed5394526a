"""The table of `sinfo`: less than `scontrol show node`, for machines that have no scontrol.

Wrappers around Slurm, in containers and notebooks, often hand on sbatch, squeue and sinfo alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from clusterkit.core.data import read_table
from clusterkit.core.errors import UserError
from clusterkit.core.hosts import hostlist
from clusterkit.transport.probe import Output, Unparsed

_HEADER = ["PARTITION", "AVAIL", "TIMELIMIT", "NODES", "STATE", "NODELIST"]

_LONG = {row["compact"]: row["long"] for row in read_table(__file__, "sinfo.tsv")}
_STATE = re.compile(r"([a-z_]+)([*~#!%$@^-]*)\+?")


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


def parse(text: str) -> dict[str, str]:
    """Return the state of each node in the default table of `sinfo`, such as `idle` or `down*`.

    Raises:
        Unparsed: it is another table, or a row does not hold as many nodes as it says.
    """
    lines = [line.split() for line in text.splitlines() if line.strip()]
    if not lines or lines[0] != _HEADER:
        raise Unparsed("not the default table of sinfo")
    found: dict[str, str] = {}
    for fields in lines[1:]:
        if len(fields) != len(_HEADER):
            raise Unparsed(f"a row of {len(fields)} words")
        count, state, listed = fields[3:]
        try:
            nodes = hostlist.expand(listed, source="sinfo") if listed != "n/a" else ()
        except UserError as error:
            raise Unparsed(f"nodes {listed[:40]!r}: {error}") from None
        if count != str(len(nodes)):
            raise Unparsed(f"{count} nodes announced, {len(nodes)} named")
        found |= dict.fromkeys(nodes, state)
    return found


def records(states: Mapping[str, str]) -> Mapping[str, str]:
    """Return the record of each node that the parser of `slurm-node` reads; the states alone."""
    found = {node: _STATE.fullmatch(state) for node, state in states.items()}
    return {
        node: f"NodeName={node} State={_LONG[state[1]]}{state[2]}\n"
        for node, state in found.items()
        if state is not None and state[1] in _LONG
    }
