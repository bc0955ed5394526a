"""Jobs, their cost, preflight reports and nodes as metrics, for Prometheus' node exporter.

`metrics.tsv` has a row per metric: its name, its labels and what it means; of a figure of nodes or
of an account, also of what it is, the attribute that holds it, and by what that is multiplied. What
they are for: docs/how-to/metrics.md. A file is replaced at once, so that the exporter never reads
half of one, and everybody may read it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterkit.core import files
from clusterkit.core.data import read_table
from clusterkit.core.errors import UserError
from clusterkit.core.findings import Verdict
from clusterkit.core.model import JobState
from clusterkit.core.text import cut

if TYPE_CHECKING:
    from clusterkit.jobs.state.load import Job
    from clusterkit.observe.account import Total
    from clusterkit.observe.top.snapshot import NodeNow, Snapshot
    from clusterkit.preflight.report import Report

_TABLE = Path(__file__).with_name("metrics.tsv")
_TOLD = frozenset({Verdict.WARN, Verdict.FAIL, Verdict.UNKNOWN})
"""Findings that get a line of their own; those that passed are counted only."""

_LONGEST = 200
"""Characters of the value of a label; a server may refuse all of a file for one that is longer."""

Values = Mapping[tuple[str, ...], float]
"""A figure for each set of labels."""


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
    try:
        import prometheus_client  # noqa: F401, PLC0415 - an extra
    except ImportError as error:
        raise UserError(
            "--prometheus needs prometheus-client", hint="pip install prometheus-client"
        ) from error
    files.require_place(path)


def write_jobs(path: Path, jobs: Iterable[Job], *, now: float) -> None:
    """Write how many jobs are in which state, and what is known of each that has not ended.

    Args:
        path: A file named `*.prom`.
        jobs: The jobs to tell of.
        now: When they were looked at, in seconds since the epoch.
    """
    known = tuple(jobs)
    clusters = sorted({job.submission.cluster for job in known})
    counted = Counter((job.submission.cluster, job.status.state) for job in known)
    # All states of a cluster, so that a series falls to 0 instead of ending.
    pairs = [(cluster, state) for cluster in clusters for state in JobState]
    living = {_labels(job): job.submission for job in known if not job.status.state.final}
    submitted = {labels: job.submitted_at for labels, job in living.items()}
    figures: dict[str, Values] = {
        "clusterkit_jobs": {(pair[0], pair[1].value): counted[pair] for pair in pairs},
        "clusterkit_job_nodes": {labels: job.nodes for labels, job in living.items()},
        "clusterkit_job_submitted_timestamp_seconds": submitted,
        "clusterkit_job_hanging": {
            _labels(job): float(_hangs(job)) for job in known if not job.status.state.final
        },
        "clusterkit_status_timestamp_seconds": {(): now},
    }
    _write(path, figures)


def _hangs(job: Job) -> bool:
    from clusterkit.executors.run import hangs, node_results  # noqa: PLC0415 - of `status` alone

    return hangs.open_hang(job.run, node_results.latest_attempt(job.run)) is not None


def write_account(path: Path, totals: Sequence[Total], *, since: float, now: float) -> None:
    """Write what the jobs of each cluster have cost.

    Args:
        path: A file named `*.prom`.
        totals: Of each cluster.
        since: When its time begins, in seconds since the epoch.
        now: When they were looked at.
    """
    each = [((total.name,), total) for total in totals]
    parts = ("training", "queue", "restart", "recomputed")
    seconds: Values = {
        (*name, part): getattr(total, f"{part}_s") for name, total in each for part in parts
    }
    figures: dict[str, Values] = {
        **_read("account", each),
        "clusterkit_account_seconds": seconds,
        "clusterkit_account_since_timestamp_seconds": {(): since},
        "clusterkit_account_timestamp_seconds": {(): now},
    }
    _write(path, figures)


def _read(of: str, each: Iterable[tuple[tuple[str, ...], Any]]) -> dict[str, Values]:
    """Return the figures of the rows of `metrics.tsv` that are of this, where they are known."""
    labelled = tuple(each)
    found: dict[str, Values] = {}
    for row in read_table(_TABLE):
        if row["of"] == of:
            read, times = attrgetter(row["attribute"]), float(row["times"])
            values = ((labels, read(one)) for labels, one in labelled)
            found[row["name"]] = {at: value * times for at, value in values if value is not None}
    return found


def write_preflight(path: Path, report: Report, *, now: float) -> None:
    """Write which nodes are usable, and what was found.

    Args:
        path: A file named `*.prom`.
        report: What preflight concluded.
        now: When the nodes were asked, in seconds since the epoch.
    """
    usable, unasked = set(report.usable), set(report.unasked)
    found: Values = {
        (finding.id, finding.check, node, finding.verdict.value): 1.0
        for finding in report.findings
        if finding.verdict in _TOLD
        for node in finding.nodes or ("",)
    }
    usable_nodes: Values = {
        (node,): float(node in usable) for node in report.nodes if node not in unasked
    }
    figures: dict[str, Values] = {
        "clusterkit_preflight_node_usable": usable_nodes,
        "clusterkit_preflight_finding": found,
        "clusterkit_preflight_findings": {(v,): n for v, n in report.counts().items()},
        "clusterkit_preflight_duration_seconds": {(): report.seconds},
        "clusterkit_preflight_timestamp_seconds": {(): now},
    }
    _write(path, figures)


def write_nodes(path: Path, snapshot: Snapshot) -> None:
    """Write what nodes and their GPUs do, and how fast the job trains.

    Args:
        path: A file named `*.prom`.
        snapshot: What `clusterkit top` has seen.
    """
    from clusterkit.observe.vitals.sample import slowdowns  # noqa: PLC0415 - only `top` needs it

    figures: dict[str, Values] = {
        "clusterkit_node_up": {(n.name,): float(n.sample is not None) for n in snapshot.nodes},
        "clusterkit_gpu_slowdown": {
            (*labels, str(one.index), one.why): 1
            for labels, sample in _all("node", snapshot.nodes)
            for one in slowdowns(sample.gpus)
        },
        "clusterkit_top_timestamp_seconds": {(): snapshot.at},
    }
    for what in ("node", "rates", "gpu", "interfaces", "ports"):
        figures |= _read(what, _all(what, snapshot.nodes))
    job = snapshot.job
    if job is not None and job.speed is not None:
        # Of the whole job; of a slot, as such, where its slots are not known.
        rate, unit = job.speed.rate, str(job.speed.unit)
        if job.speed.per_slot:
            rate, unit = (rate * job.slots, unit) if job.slots else (rate, f"{unit}_per_slot")
        labels = (job.job_id, job.name, snapshot.cluster, unit)
        figures["clusterkit_job_throughput"] = {labels: rate}
    _write(path, figures)


def _all(what: str, nodes: Sequence[NodeNow]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield all nodes, rates of nodes, links or GPUs, each with its labels."""
    for node in nodes:
        if what == "node" and node.sample is not None:
            yield (node.name,), node.sample
        elif what == "rates" and node.rates is not None:
            yield (node.name,), node.rates
        elif what == "gpu" and node.sample is not None:
            yield from (((node.name, str(gpu.index)), gpu) for gpu in node.sample.gpus)
        elif what in {"interfaces", "ports"} and node.rates is not None:
            yield from (((node.name, one.name), one) for one in getattr(node.rates, what))


def _labels(job: Job) -> tuple[str, ...]:
    of_job = job.submission
    name = of_job.job_id or job.run.key
    return (name, of_job.name, of_job.cluster, of_job.framework, job.status.state.value)


def _write(path: Path, figures: Mapping[str, Values]) -> None:
    """Write gauges by their names in `metrics.tsv`, in its order.

    Raises:
        UserError: the file cannot be written.
    """
    from prometheus_client import CollectorRegistry, Gauge, generate_latest  # noqa: PLC0415

    registry = CollectorRegistry(auto_describe=False)
    for row in read_table(_TABLE):
        if row["name"] in figures:
            labels = row["labels"].split(",") if row["labels"] else ()
            gauge = Gauge(row["name"], row["about"], labels, registry=registry)
            for values, figure in figures[row["name"]].items():
                short = [cut(value, _LONGEST) for value in values]
                (gauge.labels(*short) if labels else gauge).set(figure)
    files.write_text(path, generate_latest(registry).decode(), mode=files.PUBLIC)
