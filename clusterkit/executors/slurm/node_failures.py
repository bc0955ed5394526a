"""What Slurm's records say of the nodes of a job that it ended because it had lost one."""

from __future__ import annotations

import re
from contextlib import suppress

from clusterkit.core.commands import run_command
from clusterkit.core.errors import UserError
from clusterkit.core.hosts import hostlist
from clusterkit.transport import slurm_nodes
from clusterkit.transport.probe import Unparsed
from clusterkit.transport.slurm_nodes import SlurmNode

LOST = "a node failed"
NOT_BOOTED = "a node did not boot"
OF_NODES = frozenset({LOST, NOT_BOOTED})
_FIELD = re.compile(r"(?<!\S)(FailedNode|NodeList|Reason)=(\S+)")
_BAD = frozenset(
    {"DOWN", "FAIL", "FAILING", "NOT_RESPONDING", "NO_RESPOND", "INVAL", "INVALID_REG", "ERROR"}
)
_NOTHING = frozenset({"", "(null)", "None", "none"})


def explain(job_id: str) -> str:
    """Return which node it was and why, as far as Slurm's records have it.

    The controller may have lost its own link: then all nodes answer again, and no record names one.
    """
    answer = run_command(["scontrol", "show", "job", "-o", job_id])
    job = {key: text for key, text in _FIELD.findall(answer.output) if text not in _NOTHING}
    listed = job.get("NodeList") or _accounted(job_id)
    failed = job.get("FailedNode")
    because = f" (Slurm's reason: {job['Reason']})" if "Reason" in job else ""
    if not failed and not listed:
        return f"Slurm's record names no node{because}"
    nodes = _nodes(failed or listed)
    bad = [node for node in nodes if _BAD & {*node.states}]
    own_link = ", all at once: perhaps the controller's own link was cut"
    if bad:
        all_at_once = own_link if len(bad) == len(nodes) > 1 else ""
        return "; ".join(_told(bad)) + all_at_once + because
    of = failed or f"one of {listed}"
    again = "in good order again by now" if nodes else "of which Slurm says no more"
    return f"{of}, {again}{because}"


def _nodes(listed: str) -> list[SlurmNode]:
    answer = run_command(["scontrol", "show", "node", "-o", listed])
    found = []
    for record in slurm_nodes.split_records(answer.output if answer.code == 0 else "").values():
        with suppress(Unparsed):
            found.append(slurm_nodes.parse(record))
    return found


def _accounted(job_id: str) -> str:
    answer = run_command(["sacct", "-n", "-X", "-P", "-j", job_id, "-o", "NodeList"])
    found = answer.output.strip() if answer.code == 0 else ""
    return "" if found in _NOTHING or "\n" in found or found == "None assigned" else found


def _told(bad: list[SlurmNode]) -> list[str]:
    """Return which nodes are in which state and why, those alike together."""
    alike: dict[tuple[str, str], list[str]] = {}
    for node in bad:
        alike.setdefault(("+".join(node.states).lower(), node.reason), []).append(node.name)
    told = []
    for (state, reason), names in alike.items():
        try:
            who = hostlist.fold_set(names)
        except UserError:
            who = ", ".join(names)
        told.append(f"{who} is {state}" + (f", {reason}" if reason else ""))
    return told
