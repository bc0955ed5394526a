"""The report as lines for a terminal: folded over nodes, worst last, then what to do next."""

from __future__ import annotations

import shlex
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator

from clusterkit.core.errors import UserError
from clusterkit.core.findings import Finding, Verdict
from clusterkit.core.hosts import hostlist
from clusterkit.core.shell import quote
from clusterkit.core.text import wrapped
from clusterkit.preflight.bundle import Bundle
from clusterkit.preflight.checks.host_python import NO_TORCH
from clusterkit.preflight.report import Report
from clusterkit.transport.probe import PreflightJob

Line = tuple[Verdict | None, str]
"""A line, and the verdict that its first word states (None: it states none)."""

_QUIET = frozenset({Verdict.PASS, Verdict.SKIP})
_INDENT = " " * 9
_EVIDENCE_LINES = 6


def report_lines(
    report: Report, *, width: int = 80, verbose: bool = False, concluded: bool = True
) -> Iterator[Line]:
    """Yield the lines of `report`; `verbose` shows what passed or was skipped as well.

    How many nodes are usable is left out where another message says what comes of it.
    """
    shown = [f for f in report.findings if verbose or f.verdict not in _QUIET]
    for finding in sorted(shown, key=lambda finding: finding.verdict.severity):
        yield from _finding_lines(finding, width, verbose=verbose)
    if shown:
        yield None, ""
    yield from _node_lines(report)
    yield None, ""
    counts = (f"{number} {name}" for name, number in report.counts().items() if number)
    yield None, f"findings: {', '.join(counts) or 'none'}; {report.seconds:.1f} s"
    yield from _mostly_skipped(report, width)
    yield from _not_judged(report, width)
    if concluded:
        yield from _conclusion(report)


def _mostly_skipped(report: Report, width: int) -> Iterator[Line]:
    """Yield the reason for which most checks were skipped, where it is that of more than one."""
    reasons = Counter(f.summary for f in report.findings if f.verdict is Verdict.SKIP)
    for reason, count in reasons.most_common(1):
        if count > 1:
            text = f"skipped, {count} of {reasons.total()}: {reason}"
            yield from ((None, line) for line in wrapped(text, rest="  ", width=width))


def _finding_lines(finding: Finding, width: int, *, verbose: bool) -> Iterator[Line]:
    where = hostlist.fold_set(finding.nodes) if finding.nodes else "the job"
    yield finding.verdict, f"{finding.verdict:<8} {finding.id} {finding.check}  {where}"
    yield from _wrapped(finding.summary, width)
    if finding.verdict in _QUIET and not verbose:
        return
    evidence = finding.evidence.splitlines()
    for line in evidence[:_EVIDENCE_LINES]:
        yield from _wrapped(line, width, first="| ", rest="|   ")
    if len(evidence) > _EVIDENCE_LINES:
        yield None, f"{_INDENT}| ... {len(evidence) - _EVIDENCE_LINES} more lines in --json"
    if finding.hint:
        yield from _wrapped(finding.hint, width, first="hint: ", rest="      ")
    if finding.command:
        yield None, f"{_INDENT}$ {finding.command}"  # never wrapped: it is to be copied


def _wrapped(text: str, width: int, *, first: str = "", rest: str = "") -> Iterator[Line]:
    lines = wrapped(text, _INDENT + first, _INDENT + rest, width=width)
    yield from ((None, line) for line in lines)


def _node_lines(report: Report) -> Iterator[Line]:
    groups: dict[Verdict, list[str]] = {}
    for node, verdict in report.verdicts().items():
        groups.setdefault(verdict, []).append(node)
    rows = [(hostlist.fold_set(groups[v]), v) for v in sorted(groups, key=lambda v: v.severity)]
    longest = max((len(nodes) for nodes, _ in rows), default=0)
    for nodes, verdict in rows:
        yield verdict, f"{nodes:<{longest}}  {verdict}"


def _not_judged(report: Report, width: int) -> Iterator[Line]:
    if report.unasked:
        yield None, f"not asked: {hostlist.fold_set(report.unasked)}"
    for finding in report.findings:
        deferred = finding.id == "SSH001" and finding.verdict is Verdict.SKIP
        if deferred and {*finding.nodes} <= {*report.unasked}:
            yield None, f"  {hostlist.fold_set(finding.nodes)}  {finding.summary}"
        if finding.summary == NO_TORCH:
            text = (
                f"{NO_TORCH} on {hostlist.fold_set(finding.nodes)}: jobs with torchrun, "
                "the default, need it (--framework NAME checks for others)"
            )
            yield from ((None, line) for line in wrapped(text, rest="  ", width=width))
    if _has_no_driver(report):
        yield None, "no node has an NVIDIA driver: what GPUs need was not checked"


def _conclusion(report: Report) -> Iterator[Line]:
    usable, unhealthy = len(report.usable), len(report.exclude)
    if not unhealthy and not report.job_cannot_run:
        yield None, f"{_nodes(usable)} usable"
        return
    if report.job_cannot_run:
        yield None, "the job cannot run as it is: see the findings about the job above"
    if unhealthy and not usable and not report.unasked:
        text = f"no node {report.of_asked}is usable: fix the findings above; the worst stands last"
        yield None, text
    elif unhealthy:
        excluded = hostlist.fold_set(report.exclude)
        yield None, f"{usable} of {_nodes(len(report.nodes))} usable; leave out the others:"
        yield None, f"  --exclude {quote(excluded)}"


def _has_no_driver(report: Report) -> bool:
    """Tell whether checks of GPUs were skipped on all nodes; they are known by these two."""
    seen = {f.id: f.verdict for f in report.findings if f.check in _OF_DRIVERS}
    skipped = seen.get("GPU001") is Verdict.SKIP and seen.get("GPU023", Verdict.SKIP)
    return skipped is Verdict.SKIP


def _nodes(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"


_REASON = 200
"""Characters of a reason that stay readable in sinfo."""


def require_slurm(job: PreflightJob) -> None:
    """Refuse nodes that Slurm does not know.

    Raises:
        UserError: their cluster is none of Slurm.
    """
    from clusterkit.core.model import ClusterKind  # noqa: PLC0415 - loads slowly

    if job.kind != ClusterKind.SLURM:
        raise UserError(
            f"--drain-command: Slurm does not know the nodes of a cluster of kind {job.kind}",
            hint="leave it out; --write-hostfile FILE writes those that are usable",
        )


def in_words(findings: Iterable[Finding]) -> str:
    """Return findings one after the other, each with its id."""
    return "; ".join(f"{finding.id} {finding.summary}" for finding in findings)


def drain_reason(findings: Iterable[Finding]) -> str:
    """Return what is wrong with a node in one line, as Slurm keeps it with a drained node."""
    why = in_words(findings)
    short = textwrap.shorten(why, _REASON, placeholder=" ...", break_on_hyphens=False)
    return f"clusterkit: {short}"


def drain_commands(report: Report, bundle: Bundle) -> Iterator[str]:
    """Yield one scontrol line for each set of nodes that is unhealthy for the same reasons.

    A node that is drained already keeps its reason: scontrol would replace it, so leave it out.
    So are nodes that could not be asked: that may be the fault of whoever asks, and Slurm itself
    finds those that are down.
    """
    left_out = {node for f in report.bad if f.check == _STATE for node in f.nodes}
    left_out.update(reply.node for reply in bundle.replies if reply.reach.problem is not None)
    found: dict[str, list[Finding]] = {}
    for finding in report.bad:
        for node in finding.nodes:
            found.setdefault(node, []).append(finding)
    groups: dict[str, list[str]] = {}
    for node, findings in found.items():
        if node not in left_out:
            groups.setdefault(drain_reason(findings), []).append(node)
    for reason, nodes in groups.items():
        reason_word = shlex.quote(f"Reason={reason}")
        names = shlex.quote(f"NodeName={hostlist.fold_set(nodes)}")
        yield f"scontrol update {names} State=DRAIN {reason_word}"


_STATE = "slurm-state"
_OF_DRIVERS = frozenset({"gpu-driver", "gpu-amd"})
