"""The process that an executor starts on each node: `python -m clusterkit.worker RUN_FOLDER`.

It is a submitit task, so that submitit's own result files are there as well, and it exits with
the exit code of the command (128 + N for a command ended by signal N), whatever else happens.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from clusterkit import files, runfolder
from clusterkit.errors import ClusterkitError
from clusterkit.runfolder import RunFolder
from clusterkit.worker.identity import Identity
from clusterkit.worker.watch import WATCHED


def main(arguments: list[str]) -> int:
    """Run the task of this node inside submitit; return the exit code of its command."""
    # From the first line on: a signal that comes while submitit is still being imported waits.
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    run = RunFolder(Path(arguments[0]).absolute())
    try:
        me = Identity.from_environment(os.environ)
        _run_in_submitit(run)
    except ClusterkitError as error:
        print(f"clusterkit: error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        # submitit could not write its own result; ours, where it is there, still counts.
        print(f"clusterkit: {error}", file=sys.stderr)
    results = runfolder.read_results(run)
    codes = [result.exit_code for result in results.nodes if result.node_rank == me.rank]
    return codes[0] if codes and results.attempt == me.attempt else 1


def _run_in_submitit(run: RunFolder) -> None:
    # submitit loads numpy where there is one, for the sake of pickles that hold arrays. Ours
    # holds a path, and on a shared disk with many nodes that import costs seconds.
    sys.modules.setdefault("numpy", None)  # type: ignore[arg-type]
    from submitit.core import submission  # noqa: PLC0415 - after the line above
    from submitit.core.job_environment import JobEnvironment  # noqa: PLC0415

    os.environ["SUBMITIT_FOLDER"] = str(run.submitit)
    environment = JobEnvironment()
    paths = environment.paths
    _adopt_pickle(run, paths.submitted_pickle)
    _adopt_job_id(run, environment.job_id)
    for leftover in (paths.result_pickle, paths.result_pickle.with_suffix(".pkl.save_tmp")):
        files.remove(leftover)  # of an attempt before a restart
    submission.process_job(run.submitit)


def _adopt_pickle(run: RunFolder, wanted: Path) -> None:
    """Give the submitted task the name that submitit looks for.

    The client does that when it learns the job id; it may have died before, or be slower than
    this node. There is one job in the folder, so the task under a temporary name is ours.
    """
    for candidate in run.submitit.glob("*.pkl"):
        if wanted.exists():
            return
        if not candidate.name.endswith(("_submitted.pkl", "_result.pkl")):
            files.create_link(wanted, candidate.name)


def _adopt_job_id(run: RunFolder, job_id: str) -> None:
    submission = runfolder.read_submission(run)
    if submission is not None and submission.job_id is None:
        document = files.read_json(run.submission) or {}
        files.write_json(run.submission, {**document, "job_id": job_id})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
