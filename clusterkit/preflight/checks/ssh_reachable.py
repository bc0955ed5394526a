"""SSH001: whether every node could be asked at all."""

from __future__ import annotations

import shlex

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import (
    About,
    Check,
    Evidence,
    Judgement,
    NodeFacts,
    Ruling,
    passed,
)
from clusterkit.transport.probe import LATER, ReachProblem, first_line

_SAYS: dict[ReachProblem, tuple[str, str, str]] = {
    ReachProblem.NAME: (
        "its name does not resolve",
        "mend the name in DNS or /etc/hosts, or give the node's address in the hosts of the job",
        "getent ahosts {host}",
    ),
    ReachProblem.TIMEOUT: (
        "no answer before the time-out",
        "the node is down, hangs, or a firewall drops packets: try its console",
        "ping -c 3 {host}",
    ),
    ReachProblem.REFUSED: (
        "connection refused: it is up, and no SSH server listens there",
        "start sshd on the node, or correct the port in ~/.ssh/config",
        "ssh -v {host} true",
    ),
    ReachProblem.UNREACHABLE: (
        "no route to it, or the connection breaks",
        "look at the route, the interface and the node's SSH log",
        "ssh -v {host} true",
    ),
    ReachProblem.AUTH: (
        "login refused",
        "put your public key into ~/.ssh/authorized_keys there, or load it into the agent",
        "ssh-copy-id {host}",
    ),
    ReachProblem.HOST_KEY_UNKNOWN: (
        "its host key is not known here",
        "compare its fingerprint with the node's own, then add the key to ~/.ssh/known_hosts",
        "ssh-keyscan {host} | ssh-keygen -lf -",
    ),
    ReachProblem.HOST_KEY_CHANGED: (
        "its host key has changed: a reinstalled node, or someone in between",
        "ask who runs the node whether it was reinstalled; only then forget the old key",
        "ssh-keygen -R {host}",
    ),
    ReachProblem.SHELL: (
        "it lets us in, and its shell runs nothing",
        "look for a login file or shell that exits, a full disk or process limit",
        "ssh {host} 'echo ok'",
    ),
    ReachProblem.EXCESS: (
        "it answered with more than any node has to say, and nothing of it was kept",
        "look at what its login prints, and whether the node is what it seems to be",
        "ssh {host} true | head -c 1000 | cat -v",
    ),
    ReachProblem.NONSENSE: (
        "it answered, and its answers make no sense",
        "look at what a shell does there, and whether the node is what it seems to be",
        "ssh {host} 'uname -a; cat /proc/uptime' | cat -v",
    ),
    ReachProblem.SCHEDULER: (
        "srun did not start a task there",
        "look at the state of the node and at slurmd's log there",
        "scontrol show node {host}",
    ),
    ReachProblem.BUSY: (
        "not asked: it runs other jobs now",
        "ask again once it is free, or by ssh: --via ssh",
        "squeue --nodelist {host}",
    ),
}

ABOUT = About(
    what="Every node of the job answers: SSH or srun gets in and runs the probes.",
    why="A job waits for its last node: one that cannot be reached keeps all others idle.",
    how="One connection a node, with a time-out; what ssh or srun says tells the causes apart.",
    fix="Follow the hint of the cause. A changed host key is never accepted for you.",
    source="OpenSSH, ssh(1) on VERIFYING HOST KEYS; srun(1)",
)


def judge(evidence: Evidence) -> Judgement:
    """Fail the nodes that were not reached."""
    for node in evidence.nodes:
        if node.reach.via == "local":
            yield node.name, Ruling(verdict=Verdict.SKIP, summary="asked on this machine")
        else:
            yield node.name, passed(f"reached by {node.reach.via}")
    first: dict[ReachProblem, str] = {}
    for node in evidence.unreached:
        problem = node.reach.problem or ReachProblem.UNREACHABLE
        yield node.name, _unreached(node, problem, first.setdefault(problem, node.name))


def _unreached(node: NodeFacts, problem: ReachProblem, example: str) -> Ruling:
    if problem is ReachProblem.DEFERRED:
        return Ruling(verdict=Verdict.SKIP, summary=f"{first_line(node.reach.detail)}: {LATER}")
    # The command names one node, so that a thousand with one problem are one finding.
    summary, hint, command = _SAYS[problem]
    return Ruling(
        verdict=Verdict.UNKNOWN if problem is ReachProblem.BUSY else Verdict.FAIL,
        summary=summary,
        evidence=first_line(node.reach.detail),
        hint=hint,
        command=command.format(host=shlex.quote(example)),
    )


CHECK = Check(id="SSH001", name="ssh-reachable", about=ABOUT, probes=(), judge=judge)
