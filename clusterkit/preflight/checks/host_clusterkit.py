"""HOST016: whether the nodes have the clusterkit that asks them."""

from __future__ import annotations

from clusterkit.core.distribution import DISTRIBUTION, FOREIGN, wheel_name
from clusterkit.core.findings import Verdict
from clusterkit.core.shell import quote, quote_path
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling, each, passed
from clusterkit.preflight.probes.host.job_python import PROBE, JobPython
from clusterkit.transport.probe import PreflightJob

ABOUT = About(
    what="clusterkit on the nodes has the version of the one that submits, and is not another"
    " project of that name.",
    why="Tasks are handed over as files and pickles that another version may read wrongly, or not.",
    how="Metadata of the package in the job's interpreter on each node. A node without it is passed"
    " over: with a shared file system the interpreter of the client runs there.",
    fix="`clusterkit nodes prepare` brings the nodes the very clusterkit that submits; or put the"
    " environment on a shared file system. No index has it: `clusterkit` there is another project.",
    source="Python documentation, pickle: what can be pickled and unpickled",
)


def judge(evidence: Evidence) -> Judgement:
    """Warn of another version."""
    job = evidence.job
    if job.asked_by is None or job.container_runtime is not None:
        why = "its version is not known" if job.asked_by is None else "clusterkit is the image's"
        yield None, Ruling(verdict=Verdict.SKIP, summary=why)
        return
    yield from each(evidence, PROBE, lambda python: _rule(python, job, job.asked_by or ""))


def _rule(python: JobPython | None, job: PreflightJob, asks: str) -> Ruling:
    packages = python.packages if python else {}
    there = packages.get(DISTRIBUTION)
    if FOREIGN in packages:
        return Ruling(
            verdict=Verdict.WARN,
            summary=f"another project named {FOREIGN} ({packages[FOREIGN]}) is installed over ours",
            hint=f"remove it, then install {DISTRIBUTION} again; ours had that name before",
            command=f"{quote_path(job.python)} -m pip uninstall {FOREIGN}",
        )
    if there is None:
        return Ruling(verdict=Verdict.SKIP, summary="not installed for the job's Python")
    if there == asks:
        return passed(f"clusterkit {there} on both sides")
    return Ruling(
        verdict=Verdict.WARN,
        summary=f"clusterkit {there} is there, {asks} is what asks",
        hint="install the clusterkit that submits: clusterkit nodes prepare (machines by ssh), or "
        "its wheel (docs/how-to/air-gapped.md)",
        command=f"{quote_path(job.python)} -m pip install --no-index --no-deps "
        f"{quote(wheel_name(asks))}",
    )


CHECK = Check(id="HOST016", name="host-clusterkit", about=ABOUT, probes=(PROBE,), judge=judge)
