"""What `--json` tells of a job, and `clusterkit.submit` as well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from clusterkit.core import files
from clusterkit.core.model import JobState, NodeResult
from clusterkit.core.records import picked, texts_of
from clusterkit.executors.run import hangs, node_results
from clusterkit.executors.run.runfolder import RunFolder, listed
from clusterkit.jobs import nccl_network
from clusterkit.jobs.logs import Keep, LogReader, ranks_of, read_logs
from clusterkit.jobs.state.load import Job, load_job


def document_of(job: Job) -> dict[str, Any]:
    """Return the document of a job, also of one among others."""
    of_array = picked(job.submission, "array", "index")
    of_array["values"] = job.submission.values or None  # of older runs they are not known
    return {
        **picked(job.submission, "job_id", "cluster"),
        "run_dir": str(job.run.path),
        **picked(job.status, "state", "exit_code", "reason"),
        "name": job.submission.name,
        "nodes": job.results,
        "gpus": job.submission.slots or None,
        "submitted_at": job.submission.submitted_at,
        "time_limit_s": job.submission.time_limit_s or job.status.time_limit_s,
        **picked(job.status, "started_at", "ended_at", "expected_at"),
        **(of_array if job.submission.array else {}),
    }


def array_document(array: str | None, jobs: Sequence[Job]) -> dict[str, Any]:
    """Return what `--json` prints of an array, or of several jobs that are none."""
    counts = Counter(job.status.state.value for job in jobs)
    of_array = {"array": array} if array else {}
    return {**of_array, "jobs": [document_of(job) for job in jobs], "counts": counts}


def counted(jobs: Sequence[Job]) -> str:
    """Return how many jobs are in which state: `3 succeeded, 1 failed`."""
    counts = Counter(job.status.state for job in jobs)
    return ", ".join(f"{counts[state]} {state.value}" for state in JobState if counts[state])


def full_document_of(job: Job) -> dict[str, Any]:
    """Return the document of a single job, with its failure, attempts, and network."""
    failure = failure_of(job)
    keys = ("node", "rank", "exit_code", "message", "tail")
    document = picked(failure, *keys) if failure is not None else None
    if document is not None and failure is not None and failure.among:
        document["node"] = failure.among
    if batch := batch_output(job):
        document = {**dict.fromkeys(keys), "exit_code": job.status.exit_code, "tail": batch}
    attempts = node_results.read_attempts(job.run)
    network = nccl_network.document_of(nccl_network.network_of(job.run))
    hang = hangs.document_of(hangs.read_hang(job.run, node_results.latest_attempt(job.run)))
    told: dict[str, Any] = {"failure": document, "attempts": attempts, "hang": hang}
    told |= {"nccl_network": network, "notified": notified(job.run)}
    return {**document_of(job), **_owner(job.run), **told}


def notified(run: RunFolder) -> tuple[str, ...] | None:
    """Return in lines who was told that the job has ended; None where nobody was to be."""
    document = files.read_json(run.notified)
    return texts_of(document, "told")[:_MOST_TOLD] if document is not None else None


def _owner(run: RunFolder) -> dict[str, Any]:
    """Return why a run is somebody else's, where it is: then only its files were read."""
    foreign = run.foreign
    return {"foreign": str(foreign)} if foreign is not None else {}


def logs_document(
    run: RunFolder, node: int | None, tail: int | None, keep: Keep | None = None
) -> dict[str, Any]:
    """Return what the nodes of a job have printed, or one of them; its last lines, or all.

    With `keep`, only lines for which it is true.
    """
    job = load_job(run)
    batch = batch_output(job)
    return {
        "job_id": name_of(job),
        "run_dir": str(run.path),
        **_owner(run),
        **({"batch": batch} if batch else {}),
        "nodes": [
            {
                "node_rank": rank,
                "path": str(run.log(rank)),
                "text": "".join(read_logs(run, rank, tail=tail, keep=keep)),
            }
            for rank in ranks_of(run, node)
        ],
    }


def name_of(job: Job) -> str:
    """Return what to type to mean this job."""
    return job.submission.job_id or job.run.key


def label_of(job: Job) -> str:
    """Return what to type to mean this job, and its name: `4711 (train)`."""
    return f"{name_of(job)} ({job.submission.name})"


_MOST_TOLD = 100
_BATCH = "_batch.out"
_TASK = "_log.out"
_LINES = 15


def failure_of(job: Job) -> NodeResult | None:
    """Return how the first node to fail has failed; None where the job has not, or none tells.

    Reads the results again: a kept state, as listings need it, does not hold them.
    """
    if job.status.state is not JobState.FAILED:
        return None
    results = node_results.read_results(job.run)
    attempt = node_results.latest_attempt(job.run)
    own = (result for result in results.nodes if result.exit_code and result.reason is None)
    return node_results.first_failure(job.run, attempt) or next(own, None)


def batch_output(job: Job) -> tuple[str, ...]:
    """Return the last lines of the batch script of a job that failed before any node could tell.

    There srun says why it started nothing, and bash why the script ended; before them stand those
    of the first task that printed anything, as a shell whose Python is not found. Empty where a
    node tells.
    """
    if job.status.state is not JobState.FAILED or failure_of(job) is not None:
        return ()
    names = listed(job.run.submitit)
    batch = max((name for name in names if name.endswith(_BATCH)), default=None)
    if batch is None:
        return ()
    tasks = sorted(name for name in names if name.startswith(batch.removesuffix("batch.out")))
    output = (_end_of(job, name) for name in tasks if name.endswith(_TASK))
    return (*next(filter(None, output), ()), *_end_of(job, batch))


def _end_of(job: Job, name: str) -> tuple[str, ...]:
    reader = LogReader(job.run.submitit / name, tail=_LINES)
    text = "".join((*reader.pieces(), *reader.rest()))
    return tuple(line for line in text.splitlines() if line.strip())[-_LINES:]
