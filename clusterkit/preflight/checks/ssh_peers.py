"""SSH004: whether nodes can log in to each other, for launchers that need it."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.core.shell import quote
from clusterkit.preflight.checks.base import (
    About,
    Check,
    Evidence,
    Judgement,
    Ruling,
    Tier,
    each,
    passed,
)
from clusterkit.preflight.probes.net.ssh_peer import PROBE, PeerLogin, wanted

_CAUSES = (
    (
        "Host key verification failed",
        "does not know the host key of",
        "add the keys of all nodes to /etc/ssh/ssh_known_hosts: ssh-keyscan NODES",
    ),
    (
        "Permission denied",
        "is not let in by",
        "nodes have to accept one key of yours without passphrase: ~/.ssh/authorized_keys",
    ),
    (
        "Could not resolve",
        "cannot resolve the name of",
        "mend the name in DNS or /etc/hosts of that node",
    ),
    ("No route to host", "has no route to", "look at routes and interfaces on both nodes"),
    ("timed out", "gets no answer from", "look for a firewall between the nodes"),
    ("refused", "is refused by", "start sshd there, or correct the port in ~/.ssh/config"),
)

ABOUT = About(
    what="Each node can log in to the next one by SSH, without a question.",
    why="By hand, mpirun, horovodrun and deepspeed start the other nodes that way from the first"
    " node; that your own machine gets in proves nothing about it. Jobs that clusterkit starts,"
    " MPI's too, need no such login, so it is looked at only with --select SSH004.",
    how="ssh -o BatchMode=yes -o StrictHostKeyChecking=yes NEXT true, in a ring over all nodes.",
    fix="Give the nodes a common key and a common list of host keys.",
    source="Open MPI, FAQ on rsh/ssh; Horovod and DeepSpeed documentation on several nodes",
)


def judge(evidence: Evidence) -> Judgement:
    """Fail the nodes that cannot log in to the next."""
    if not wanted(evidence.job):
        reason = "jobs start without logins from node to node; --select SSH004 tries them"
        yield None, Ruling(verdict=Verdict.SKIP, summary=reason)
    elif len(evidence.job.hosts) < 2:
        yield None, Ruling(verdict=Verdict.SKIP, summary="a single node")
    else:
        yield from each(evidence, PROBE, _rule)


def _rule(login: PeerLogin) -> Ruling:
    if login.exit_code == 0:
        return passed("logs in to the next node")
    does, hint = next(
        ((does, hint) for words, does, hint in _CAUSES if words in login.said),
        ("cannot log in to", "run the command on that node"),
    )
    return Ruling(
        verdict=Verdict.FAIL,
        summary=f"{does} {login.peer}",
        evidence=login.said,
        hint=hint,
        command=f"ssh -v -o BatchMode=yes {quote(login.peer)} true",
    )


CHECK = Check(
    id="SSH004",
    name="ssh-peers",
    about=ABOUT,
    probes=(PROBE,),
    judge=judge,
    tier=Tier.ROUND_TRIP,
)
