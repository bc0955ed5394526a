"""`clusterkit wait` and `supervise`: see a job to its end."""

from __future__ import annotations

import typer

from clusterkit.cli.diagnose.report import why_failed
from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import JsonFlag
from clusterkit.cli.frame.job_args import (
    JobArgument,
    exit_code_of,
    is_array,
    note_owner,
    run_named,
    said,
)
from clusterkit.cli.frame.main import EXIT_INTERRUPTED
from clusterkit.executors.run import runfolder
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.jobs.document import full_document_of, name_of
from clusterkit.jobs.start_queued import may_need_client
from clusterkit.jobs.state.load import Job
from clusterkit.jobs.watch import wait as wait_for


def wait(
    job: JobArgument,
    json: JsonFlag = False,
) -> None:
    """Wait until a job is over: exit 0 if it succeeded, 1 if not, 2 if nobody can tell."""
    raise typer.Exit(wait_for_named(job, as_json=json))


def supervise(
    job: JobArgument,
    json: JsonFlag = False,
) -> None:
    """Start a job over ssh, or one held on this machine, when it may start; see it to its end.

    Over ssh it is started again as often as --requeue allows.

    `wait` and `logs -f` do the same; this is for a terminal multiplexer, or a unit of systemd.
    """
    raise typer.Exit(wait_for_named(job, as_json=json, verb="supervise"))


def wait_for_named(word: str, *, as_json: bool, verb: str = "wait") -> int:
    """Wait for the job, or for all jobs of the array, that the user means.

    `verb` is what the user has typed, and would type to come back.
    """
    if is_array(word):
        from clusterkit.cli.jobs.arrays import runs_of, wait_for_array

        return wait_for_array(word, runs_of(word), as_json=as_json, verb=verb)
    run = run_named(word)
    if verb != "wait":
        run.require_own(f"{verb} its job")
    note_owner(run)
    return wait_for_run(run, as_json=as_json, verb=verb)


def wait_for_run(run: RunFolder, *, as_json: bool = False, verb: str = "wait") -> int:
    """Wait for a job, say how it ended, and return the exit code of the verb."""

    def changed(job: Job) -> None:
        console.note(f"{name_of(job)} {said(job)}")

    try:
        job = wait_for(run, changed=changed, on_trouble=console.warn)
    except KeyboardInterrupt:
        # Nobody is asked for news: whoever types Ctrl-C may do so because no node answers.
        submission = runfolder.read_submission(run)
        name = (submission and submission.job_id) or run.key
        console.note(f"\n{name} goes on; come back: clusterkit {verb} {name}")
        if may_need_client(run):
            console.note("until then nobody starts it when its time comes, or starts it again")
        return EXIT_INTERRUPTED
    for line in why_failed(job):
        console.note(line)
    if as_json:
        console.json_document(full_document_of(job))
    return exit_code_of(job)
