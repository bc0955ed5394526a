"""The controller of a local job: one process, detached, that starts the nodes and ends them.

Run as `python -m clusterkit.executors.local.controller RUN_FOLDER`. It gives each node what an
allocation would give it and leaves nothing behind. It ends by writing `ended.json`; a job without
that and without a controller is unknown.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterkit.core import files, processes
from clusterkit.core.encoding import require_utf8
from clusterkit.core.errors import UserError
from clusterkit.core.model import JobState
from clusterkit.executors.base import scrubbed_environment
from clusterkit.executors.local.nodes import LocalLayout
from clusterkit.executors.local.runs import job_id_of
from clusterkit.executors.node.supervisor import BLOCKED, Start, Supervisor
from clusterkit.executors.run import node_results, runfolder
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.executors.run.submit_journal import ProcessId


def main(arguments: list[str]) -> int:
    """Control the job in the run folder that is the only argument."""
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    run = RunFolder(Path(arguments[0]))
    processes.adopt_orphans()
    submission = _submission(run)
    layout = LocalLayout.from_plan(job_id_of(run), _plan(run), tasks=submission.tasks)
    files.write_json(
        run.controller,
        {
            "schema": runfolder.SCHEMA,
            **files.plain(ProcessId.own()),
            "port": layout.allocation.port,
        },
    )
    while True:
        attempt = layout.allocation.attempt
        supervisor = Supervisor(
            run, marker=run.marker(), time_limit_s=layout.time_limit_s, attempt=attempt
        )
        codes = supervisor.run_to_end(tuple(_starts(run, layout)))
        end = _end_of(run, codes, supervisor.state, attempt)
        again = node_results.starts_again(run, submission, end["state"], attempt)
        if not again or runfolder.is_cancelled(run):
            break
        layout = layout.again()
    files.write_json(run.ended, end)
    return 0


def _starts(run: RunFolder, layout: LocalLayout) -> Iterator[Start]:
    inherited = scrubbed_environment()
    for rank in range(layout.allocation.tasks):
        yield Start(
            argv=(sys.executable, "-P", "-u", "-m", "clusterkit.executors.node", str(run.path)),
            environment={**inherited, **layout.environment(rank)},
            log=run.submitit / f"{layout.allocation.job_id}_{rank}_log.out",
        )


def _end_of(
    run: RunFolder, codes: Sequence[int], ended_as: JobState | None, attempt: int
) -> Mapping[str, Any]:
    """Return how an attempt has ended, as it stands in `ended.json`."""
    reported = [node_results.read_result(run, rank, attempt) for rank in range(len(codes))]
    first = node_results.first_failure(run, attempt)
    exit_code = first.exit_code if first else next((c for c in codes if c), None)
    if exit_code is None:
        exit_code = 0 if codes else None
    elif exit_code < 0:
        exit_code = 128 - exit_code
    state = JobState.SUCCEEDED if codes and not any(codes) else ended_as or JobState.FAILED
    if {result.reason for result in reported if result and result.exit_code} == {"timeout"}:
        state = JobState.TIMEOUT
    if first is not None:
        # A node failed by itself before anybody ended the job.
        state = JobState.FAILED
    reason = node_results.blame(first) if first else None
    if not all(reported) and state is JobState.FAILED and reason is None:
        reason = f"a worker ended without a result, see {run.submitit}"
    return {
        "schema": runfolder.SCHEMA,
        "state": state,
        "exit_code": exit_code,
        "reason": reason,
        "attempt": attempt,
        "ended_at": time.time(),
    }


def _plan(run: RunFolder) -> dict[str, Any]:
    plan = files.read_json(run.plan)
    if plan is None:
        raise UserError(f"no plan in {run.plan}", hint="the folder was made by `clusterkit submit`")
    return plan


def _submission(run: RunFolder) -> Submission:
    submission = runfolder.read_submission(run)
    if submission is None:
        raise UserError(f"no submission in {run.submission}")
    return submission


if __name__ == "__main__":
    require_utf8()
    sys.exit(main(sys.argv[1:]))
