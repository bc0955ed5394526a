"""What Slurm says of nodes before they are asked, and what it says of no node at all."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set

from clusterkit.commands import MISSING, TIMED_OUT, run_command
from clusterkit.errors import RemoteError
from clusterkit.hostlist import fold
from clusterkit.probes.base import first_line

DEAD = frozenset({"down", "unknown", "powered_down", "powering_down", "power_down", "future"})
NOT_GIVEN = frozenset({"drained", "draining", "drain", "fail", "failing", "maint", "reserved"})
"""States (sinfo(1), NODE STATE CODES) in which running jobs go on, and new ones do not start."""

_NO_SLURM = re.compile(
    r"unable to contact slurm controller|establish a configuration source|DNS SRV lookup failed"
    r"|authentication (error|failure)|munge|zero bytes were transmitted",
    re.IGNORECASE,
)
"""Words of a Slurm that does not answer: they say nothing of any node."""
_REQUEST_REFUSED = re.compile(
    r"invalid (partition|account|qos|wckey)|unable to confirm allocation|unrecognized option"
    r"|violates accounting/QOS policy",
    re.IGNORECASE,
)
"""Words of a Slurm that would refuse the request whatever the nodes."""


def kept_out(nodes: Sequence[str], states: Set[str]) -> dict[str, str]:
    """Return those of the nodes that are in one of these states or do not respond, and why.

    One on which Slurm starts nothing in the list, and srun starts nothing anywhere. Where there
    is no sinfo there are none, and all are tried.
    """
    unfit = {}
    for line in _sinfo(nodes, "--format=%N|%T|%E").splitlines():
        node, _, said = line.strip().partition("|")
        state, _, reason = said.partition("|")
        if state.rstrip("*~#!%$@^-+") in states or state.endswith("*"):
            silent = "not responding" if state.endswith("*") else ""
            why = silent if reason in {"", "none"} else reason
            unfit[node] = f"{state}: {why}" if why else state
    return {node: unfit[node] for node in nodes if node in unfit}


def out_of_service(nodes: Sequence[str]) -> dict[str, str]:
    """Return those of the nodes that Slurm gives to no new job, busy or not, and why."""
    return kept_out(nodes, DEAD | NOT_GIVEN)


def strangers(nodes: Sequence[str]) -> dict[str, str]:
    """Return the nodes that Slurm does not know: one in the list, and srun starts nothing."""
    known = set(_sinfo(nodes, "--all", "--format=%N").split())
    unknown = [node for node in nodes if node not in known] if known else []
    return dict.fromkeys(unknown, "Slurm knows no node of this name")


def raise_if_no_node_is_to_blame(program: str, errors: str) -> None:
    """Raise what `program` failed of, where that says nothing of any node.

    Raises:
        RemoteError: Slurm does not answer, or refuses the request whatever the nodes.
    """
    # "Task launch failed on node n2: Protocol authentication error" is a fault of n2.
    lines = [line for line in errors.splitlines() if " on node" not in line]
    said = [re.sub(r"^\w+: ((error|fatal): )?", "", line) for line in lines]
    silent = next((line for line in said if _NO_SLURM.search(line)), None)
    if silent is not None:
        raise RemoteError(
            f"Slurm does not answer {program}: {first_line(silent)}",
            hint="see whether `scontrol ping` is answered here, or ask by ssh: --via ssh",
        )
    refused = next((line for line in said if _REQUEST_REFUSED.search(line)), None)
    if refused is not None:
        raise RemoteError(
            f"Slurm refuses the request of {program}: {first_line(refused)}",
            hint="correct the cluster in clusterkit.yaml, or ask by ssh: --via ssh",
        )


def _sinfo(nodes: Sequence[str], *words: str) -> str:
    """Return what sinfo says of nodes; nothing, where there is no sinfo.

    Raises:
        RemoteError: Slurm does not answer it.
    """
    answer = run_command(("sinfo", "--noheader", "--Node", f"--nodes={fold(nodes)}", *words))
    if answer.code == TIMED_OUT:
        raise RemoteError(f"Slurm does not answer: {answer.errors}", hint="ask by ssh: --via ssh")
    if answer.code not in {0, MISSING}:
        raise_if_no_node_is_to_blame("sinfo", answer.errors)
    return answer.output
