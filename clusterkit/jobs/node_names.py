"""Which node of a job `--node` means."""

from __future__ import annotations

from collections.abc import Mapping

from clusterkit.core.errors import UserError, choices_hint
from clusterkit.core.hosts import hostlist
from clusterkit.core.model import JobState
from clusterkit.executors.run.node_results import read_results
from clusterkit.executors.slurm.states import nodes_of
from clusterkit.executors.ssh.agent_files import read_agents
from clusterkit.jobs.state.load import Job


def known_names(job: Job) -> dict[int, str]:
    """Return the nodes of a job by number, as far as they are known: also of one that has ended.

    Raises:
        RemoteError: Slurm does not say which nodes a running job has.
    """
    run, kind = job.run, job.submission.kind
    names = {result.node_rank: result.node for result in read_results(run).nodes}
    if run.foreign is not None or kind.shares_machine:
        return names
    if kind.lists_hosts:
        return {**names, **{agent.rank: agent.node for agent in read_agents(run)}}
    if job.status.state is JobState.RUNNING:
        names |= enumerate(nodes_of(job.submission.job_id or ""))
    return names


def choose_node(node: str, names: Mapping[int, str]) -> tuple[int | None, str]:
    """Return number and name of the node that `--node` means: a number, `node-K`, or a name.

    The number is None where it was named, so that nothing depends on the order of the nodes.

    Raises:
        UserError: the job has no such node, or several are meant.
    """
    named = hostlist.expand(node, source="--node") if "[" in node else (node,)
    if len(named) > 1:
        raise UserError(f"--node {node}: {len(named)} nodes, and one is taken", hint="name one")
    if named and named[0] in names.values():
        return None, named[0]
    number = node_number(node)
    if number is not None and number in names:
        return number, names[number]
    if number is not None:
        hint = f"they are counted from 0 to {max(names, default=0)}"
    else:
        hint = choices_hint(node, set(names.values())) if names else "by its number: --node 0"
    raise UserError(f"--node {node}: no such node of this job", hint=hint)


def node_number(node: str) -> int | None:
    """Return the number of a node as it is typed (`0`) or as its lines begin (`node-0`)."""
    digits = node.removeprefix("node-")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 8 else None
