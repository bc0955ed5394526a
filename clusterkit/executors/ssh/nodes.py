"""Run one command on each node of a job over ssh, and say in words why a node did not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clusterkit.core.model import ClusterSpec
from clusterkit.transport.probe import Output, PreflightJob, Probe
from clusterkit.transport.script import compose, new_token
from clusterkit.transport.ssh.config import SshOptions
from clusterkit.transport.ssh.transport import SshTransport

_NAME = "command"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnswer:
    """What a command said on one node, or why there is no answer."""

    output: Output | None
    problem: str = ""
    """Why there is no output, in the words of whoever could not reach the node."""


def ask_nodes(
    cluster: ClusterSpec, snippets: Mapping[str, str], *, timeout_s: float
) -> dict[str, NodeAnswer]:
    """Run each node's own POSIX-sh snippet, all nodes at once; nobody is waited for beyond it.

    Raises:
        UserError: ssh's configuration cannot be read.
    """
    job = PreflightJob(hosts=tuple(snippets))
    token = new_token()
    compounds = {
        node: compose(
            [Probe(name=_NAME, command=snippet, parse=str, timeout_s=timeout_s)], job, token=token
        )
        for node, snippet in snippets.items()
    }
    transport = SshTransport(SshOptions.of(cluster))
    answers = {}
    for reply in transport.ask_each(compounds, heard=lambda _: None):
        output = reply.outputs.get(_NAME)
        problem = reply.reach.detail or (str(reply.reach.problem) if reply.reach.problem else "")
        if output is not None and output.exit_code is None:
            output, problem = None, f"no answer within {timeout_s:g} s"
        answers[reply.node] = NodeAnswer(output=output, problem=problem)
    return answers
