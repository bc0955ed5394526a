"""SSH: whether every node answers, how quickly, and whether nodes log in to each other."""

from __future__ import annotations

from statistics import median

from clusterkit.core.data import read_table
from clusterkit.core.findings import Verdict
from clusterkit.core.shell import quote
from clusterkit.core.text import some_of
from clusterkit.preflight.checks.base import node_check
from clusterkit.preflight.checks.results import Advice, Result, Results, advice, ok, skip, unknown
from clusterkit.preflight.checks.types import Evidence, NodeFacts, Tier, check
from clusterkit.preflight.probes.net import links
from clusterkit.preflight.probes.net.links import PeerLogin
from clusterkit.transport.probe import LATER, PreflightJob, ReachProblem, first_line
from clusterkit.transport.slurm_nodes import STRANGER

_ROWS = tuple(read_table(__file__, "ssh.tsv"))
_UNREACHED = {row["case"]: row for row in _ROWS if row["check"] == "SSH001"}
_LOGIN_FAILURES = tuple(row for row in _ROWS if row["check"] == "SSH004")


@check("SSH001", "ssh-reachable")
def reachable(evidence: Evidence) -> Results:
    """Fail the nodes that were not reached."""
    for node in evidence.nodes:
        local = node.reach.via == "local"
        yield (
            node.name,
            skip("asked on this machine") if local else ok(f"reached by {node.reach.via}"),
        )
    first: dict[ReachProblem, str] = {}
    for node in evidence.unreached:
        problem = node.reach.problem or ReachProblem.UNREACHABLE
        yield node.name, _unreached(node, problem, first.setdefault(problem, node.name))


def _unreached(node: NodeFacts, problem: ReachProblem, example: str) -> Result:
    if problem is ReachProblem.DEFERRED:
        return skip(f"{first_line(node.reach.detail)}: {LATER}")
    # The command names one node, so that a thousand with one problem are one finding.
    detail = first_line(node.reach.detail)
    row = _UNREACHED["stranger" if STRANGER in detail else problem]
    command = row["command"].format(host=quote(example))
    verdict = Verdict.UNKNOWN if problem is ReachProblem.BUSY else Verdict.FAIL
    cause = Advice(hint=row["hint"], command=command)
    return cause.result(verdict, row["summary"], detail if STRANGER not in detail else "")


_SLOW_S = 0.050
_TIMES_MEDIAN = 10
_NEVER_BELOW_S = 0.002
"""Ten times a median of microseconds is still quick; below this no factor counts."""


@check("SSH002", "ssh-latency", tier=Tier.ROUND_TRIP)
def _latency(evidence: Evidence) -> Results:
    timed = {n.name: n.reach.latency_s for n in evidence.nodes if n.reach.latency_s is not None}
    typical = median(timed.values()) if timed else 0.0
    for node in evidence.nodes:
        latency_s = timed.get(node.name)
        if node.reach.via != "ssh":
            yield node.name, skip("not asked by ssh")
        elif latency_s is None:
            yield node.name, unknown("latency was not measured")
        elif latency_s > _SLOW_S or latency_s > max(_NEVER_BELOW_S, _TIMES_MEDIAN * typical):
            times = f"{latency_s * 1000:.1f} ms, median {typical * 1000:.1f} ms"
            yield node.name, advice("SSH002").warn("slow to answer over ssh", times)
        else:
            yield node.name, ok("latency as low as that of the others")


@check("SSH003", "ssh-complete")
def _complete(evidence: Evidence) -> Results:
    probes = dict.fromkeys(name for node in evidence.nodes for name in node.outputs)
    for node in evidence.nodes:
        if node.reach.complete:
            yield node.name, ok("all probes ended in time")
            continue
        ended = {name for name, out in node.outputs.items() if out.exit_code is not None}
        running = [name for name in probes if name not in ended]
        what = f"out of time: {some_of(running, 6)}" if running else "the connection ended early"
        after = f"given up after {node.reach.seconds:.0f} s"
        yield node.name, advice("SSH003").result(Verdict.UNKNOWN, what, after)


def _no_peers(job: PreflightJob) -> str | None:
    if not links.wanted(job):
        return "jobs start without logins from node to node; --select SSH004 tries them"
    return "a single node" if len(job.hosts) < 2 else None


@node_check("SSH004", "ssh-peers", links.PEER_LOGIN, tier=Tier.ROUND_TRIP, skip_if=_no_peers)
def peers(login: PeerLogin) -> Result:
    """Fail the nodes that cannot log in to the next."""
    if login.exit_code == 0:
        return ok("logs in to the next node")
    known = (row for row in _LOGIN_FAILURES if row["case"] in login.message)
    row = next(known, {"summary": "cannot log in to", "hint": "run the command on that node"})
    command = f"ssh -v -o BatchMode=yes {quote(login.peer)} true"
    cause = Advice(hint=row["hint"], command=command)
    return cause.fail(f"{row['summary']} {login.peer}", login.message)
