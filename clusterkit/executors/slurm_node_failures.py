"""What Slurm's records say of the nodes of a job that it ended because it had lost one."""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterkit import hostlist
from clusterkit.commands import run_command
from clusterkit.errors import UserError

LOST = "a node failed"
NOT_BOOTED = "a node did not boot"
OF_NODES = frozenset({LOST, NOT_BOOTED})
_FIELD = re.compile(r"(?<!\S)(FailedNode|NodeList|Reason)=(\S+)")
_NODE = re.compile(r"NodeName=(?P<name>\S+).*?(?<!\S)State=(?P<state>\S+)")
_REASON = re.compile(r"(?<!\S)Reason=(?P<text>.*?)\s*(?:\[[^\[\]\s]*@[^\[\]]*\]|$)")
_BAD = re.compile(r"DOWN|FAIL|NOT_RESPONDING|NO_RESPOND|INVALID|\*")
_NOTHING = frozenset({"", "(null)", "None", "none"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    name: str
    state: str
    reason: str


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
    bad = [node for node in nodes if _BAD.search(node.state)]
    own_link = ", all at once: perhaps the controller's own link was cut"
    if bad:
        all_at_once = own_link if len(bad) == len(nodes) > 1 else ""
        return "; ".join(_told(bad)) + all_at_once + because
    of = failed or f"one of {listed}"
    again = "in good order again by now" if nodes else "of which Slurm says no more"
    return f"{of}, {again}{because}"


def parse_nodes(text: str) -> list[_Node]:
    """Read the lines of `scontrol show node -o`."""
    found = []
    for line in text.splitlines():
        node, reason = _NODE.search(line), _REASON.search(line)
        if node is not None:
            why = reason["text"] if reason is not None else ""
            why = "" if why in _NOTHING else why
            found.append(_Node(name=node["name"], state=node["state"], reason=why))
    return found


def _nodes(listed: str) -> list[_Node]:
    answer = run_command(["scontrol", "show", "node", "-o", listed])
    return parse_nodes(answer.output) if answer.code == 0 else []


def _accounted(job_id: str) -> str:
    answer = run_command(["sacct", "-n", "-X", "-P", "-j", job_id, "-o", "NodeList"])
    found = answer.output.strip() if answer.code == 0 else ""
    return "" if found in _NOTHING or "\n" in found or found == "None assigned" else found


def _told(bad: list[_Node]) -> list[str]:
    """Return which nodes are in which state and why, those alike together."""
    alike: dict[tuple[str, str], list[str]] = {}
    for node in bad:
        alike.setdefault((node.state.lower(), node.reason), []).append(node.name)
    told = []
    for (state, reason), names in alike.items():
        try:
            who = hostlist.fold_set(names)
        except UserError:
            who = ", ".join(names)
        told.append(f"{who} is {state}" + (f", {reason}" if reason else ""))
    return told
