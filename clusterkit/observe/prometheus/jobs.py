"""Jobs and preflight reports as metrics, for the textfile collector of Prometheus' node exporter.

The names, and what they mean: docs/how-to/metrics.md. A file is replaced at once, so that the
exporter never reads half of one, and everybody may read it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from clusterkit.core import files
from clusterkit.core.errors import UserError
from clusterkit.core.findings import Verdict
from clusterkit.core.model import JobState

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from clusterkit.jobs.state.load import Job
    from clusterkit.preflight.report import Report

_TOLD = frozenset({Verdict.WARN, Verdict.FAIL, Verdict.UNKNOWN})
"""Findings that get a line of their own; those that passed are counted only."""


def require_metrics(path: Path) -> None:
    """Check, before anything is asked, that metrics can be written to `path`.

    Raises:
        UserError: prometheus-client is not installed, the name would be overlooked, or the place
            takes no file.
    """
    if path.suffix != ".prom":
        named = path / "clusterkit.prom" if path.is_dir() else path.with_suffix(".prom")
        raise UserError(
            f"--prometheus {path}: the textfile collector reads files named *.prom, and no others",
            hint=f"--prometheus {named}",
        )
    new_registry()
    files.require_place(path)


def write_jobs(path: Path, jobs: Iterable[Job], *, now: float) -> None:
    """Write how many jobs are in which state, and what is known of each that has not ended.

    Args:
        path: A file named `*.prom`.
        jobs: The jobs to tell of.
        now: When they were looked at, in seconds since the epoch.
    """
    registry = new_registry()
    known = tuple(jobs)
    clusters = sorted({job.submission.cluster for job in known})
    counted = Counter((job.submission.cluster, job.status.state) for job in known)
    # All states of a cluster, so that a series falls to 0 instead of ending.
    pairs = [(cluster, state) for cluster in clusters for state in JobState]
    add_gauge(
        registry,
        "clusterkit_jobs",
        "Jobs by state.",
        ("cluster", "state"),
        {(cluster, state.value): counted[cluster, state] for cluster, state in pairs},
    )
    living = {_labels(job): job for job in known if not job.status.state.final}
    # `job` and `instance` are labels of Prometheus itself.
    names = ("job_id", "job_name", "cluster", "framework", "state")
    add_gauge(
        registry,
        "clusterkit_job_nodes",
        "Nodes of a job that has not ended.",
        names,
        {labels: job.submission.nodes for labels, job in living.items()},
    )
    add_gauge(
        registry,
        "clusterkit_job_submitted_timestamp_seconds",
        "When a job that has not ended was submitted.",
        names,
        {labels: job.submission.submitted_at for labels, job in living.items()},
    )
    stamp = "When `clusterkit status` last looked."
    add_gauge(registry, "clusterkit_status_timestamp_seconds", stamp, (), {(): now})
    write_registry(path, registry)


def write_preflight(path: Path, report: Report, *, now: float) -> None:
    """Write which nodes are usable, and what was found.

    Args:
        path: A file named `*.prom`.
        report: What preflight concluded.
        now: When the nodes were asked, in seconds since the epoch.
    """
    registry = new_registry()
    usable, unasked = set(report.usable), set(report.unasked)
    add_gauge(
        registry,
        "clusterkit_preflight_node_usable",
        "1 where a node is fit, 0 where it is to be left out; absent where it was not asked.",
        ("node",),
        {(node,): float(node in usable) for node in report.nodes if node not in unasked},
    )
    add_gauge(
        registry,
        "clusterkit_preflight_finding",
        "1 for each check that warned, failed or was undetermined on a node (empty: of the job).",
        ("id", "check", "node", "verdict"),
        {
            (finding.id, finding.check, node, finding.verdict.value): 1
            for finding in report.findings
            if finding.verdict in _TOLD
            for node in finding.nodes or ("",)
        },
    )
    add_gauge(
        registry,
        "clusterkit_preflight_findings",
        "Findings by verdict.",
        ("verdict",),
        {(verdict,): count for verdict, count in report.counts().items()},
    )
    add_gauge(
        registry,
        "clusterkit_preflight_duration_seconds",
        "How long the nodes took to answer.",
        (),
        {(): report.seconds},
    )
    stamp = "When `clusterkit preflight` last ran."
    add_gauge(registry, "clusterkit_preflight_timestamp_seconds", stamp, (), {(): now})
    write_registry(path, registry)


def _labels(job: Job) -> tuple[str, ...]:
    told = job.submission
    name = told.job_id or job.run.key
    return (name, told.name, told.cluster, told.framework, job.status.state.value)


def new_registry() -> CollectorRegistry:
    """Return a registry to be filled.

    Raises:
        UserError: prometheus-client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UserError(
            "--prometheus needs prometheus-client",
            hint="pip install prometheus-client",
        ) from error
    return CollectorRegistry(auto_describe=False)


def add_gauge(
    registry: CollectorRegistry,
    name: str,
    about: str,
    labels: tuple[str, ...],
    values: Mapping[tuple[str, ...], float],
) -> None:
    """Add a gauge with a value for each set of labels."""
    from prometheus_client import Gauge  # noqa: PLC0415 - an extra

    gauge = Gauge(name, about, labels, registry=registry)
    for words, value in values.items():
        (gauge.labels(*words) if labels else gauge).set(value)


def write_registry(path: Path, registry: CollectorRegistry) -> None:
    """Write all that a registry holds.

    Raises:
        UserError: the file cannot be written.
    """
    from prometheus_client import generate_latest  # noqa: PLC0415 - an extra

    files.write_text(path, generate_latest(registry).decode(), mode=files.PUBLIC)
