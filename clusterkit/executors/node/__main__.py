"""What an executor starts on each node: `python -m clusterkit.executors.node RUN_FOLDER`.

It leaves submitit's own result file as well, and exits with the exit code of the command (128 + N
for a command ended by signal N), whatever else happens. The command comes first: submitit takes
longer to import than everything else here, and is only told of the result. The pickled task is
never read: it says no more than the name of the run folder, and a pickle runs what it holds.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from contextlib import suppress
from pathlib import Path

from clusterkit.core import files, ownership, permissions
from clusterkit.core.commands import require_utf8
from clusterkit.core.errors import ClusterkitError, UserError
from clusterkit.core.model import NodeResult
from clusterkit.executors.node.identity import Identity, of_this_step
from clusterkit.executors.node.supervisor import BLOCKED
from clusterkit.executors.node.task import run_node
from clusterkit.executors.node.watch import Timeouts, say
from clusterkit.executors.run import runfolder
from clusterkit.executors.run.runfolder import RunFolder


def main(arguments: list[str]) -> int:
    """Run the command of this node, tell submitit, and return the command's exit code."""
    # From the first line on, and to the last: what is sent before the command starts waits for
    # it, and what is sent after its end must not spoil the exit code.
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    require_utf8()
    run = RunFolder(Path(arguments[0]).absolute())
    try:
        permissions.close_output()
        _require_own(run)
        os.environ.update(of_this_step(run, os.environ))
        me = Identity.from_environment(os.environ)
        _adopt_job_id(run, me.job_id)
        result = run_node(run, me, Timeouts())
    except ClusterkitError as error:
        say(f"clusterkit: error: {error}")
        return 2
    except OSError as error:
        say(f"clusterkit: {error}")
        return 1
    try:
        _tell_submitit(run, result)
    except OSError as error:
        say(f"clusterkit: {error}")  # our own result is written and counts
    return result.exit_code


def _require_own(run: RunFolder) -> None:
    """Refuse a run folder in which somebody else can have written what is about to run.

    Raises:
        UserError: that is so; says what it is, and whose.
    """
    pickles = sorted(run.submitit.glob("*.pkl"))
    paths = (
        run.path,
        run.plan,
        run.script,
        run.submission,
        run.secrets,
        run.node_checks,
        run.submitit,
    )
    for path in (*paths, *pickles):
        ownership.require_own(path, use="run this job", hint="submit it again")


def _tell_submitit(run: RunFolder, result: NodeResult) -> None:
    """Leave what the task has come to where submitit looks for it."""
    if not any(run.submitit.glob("*.pkl")):
        return  # the task has stayed with a client that shares no folder with this node
    from submitit.core.job_environment import JobEnvironment  # noqa: PLC0415 - after the command

    os.environ["SUBMITIT_FOLDER"] = str(run.submitit)
    paths = JobEnvironment().paths
    _adopt_pickle(run, paths.submitted_pickle)
    pickled = pickle.dumps(("success", result), pickle.HIGHEST_PROTOCOL)
    files.write_bytes(paths.result_pickle, pickled, mode=files.PRIVATE)


def _adopt_pickle(run: RunFolder, target: Path) -> None:
    """Give the submitted task the name that submitit looks for.

    The client does that when it learns the job id; it may have died before, or be slower than
    this node. There is one job in the folder, so the task under a temporary name is ours.
    """
    for candidate in run.submitit.glob("*.pkl"):
        if target.exists():
            return
        if not candidate.name.endswith(("_submitted.pkl", "_result.pkl")):
            files.create_link(target, candidate.name)


def _adopt_job_id(run: RunFolder, job_id: str) -> None:
    submission = runfolder.read_submission(run)
    if submission is not None and submission.job_id is None:
        document = files.read_json(run.submission) or {}
        with suppress(UserError):  # a full disk is for what follows to tell
            files.write_json(run.submission, {**document, "job_id": job_id})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
