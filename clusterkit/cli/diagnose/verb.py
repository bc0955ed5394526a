"""`clusterkit diagnose`: why a job failed, from the logs of all its ranks."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import JsonFlag, explained
from clusterkit.cli.frame.main import EXIT_COULD_NOT, EXIT_FINDINGS
from clusterkit.core.errors import UserError, did_you_mean
from clusterkit.core.hosts.hostlist import fold_set
from clusterkit.core.records import picked
from clusterkit.launch.array.spec import ranks_in_words

if TYPE_CHECKING:
    from clusterkit.executors.run.runfolder import RunFolder
    from clusterkit.jobs.find import Named
    from clusterkit.observe.diagnose.job import Advice, JobDiagnosis
    from clusterkit.observe.diagnose.rules import Rule
    from clusterkit.observe.diagnose.stacks import Stacks, Trouble
    from clusterkit.observe.diagnose.verdict import Diagnosis, Finding


@explained
def diagnose(
    words: list[str] | None = None,
    stacks: bool = False,
    rules: list[Path] | None = None,
    list_rules: bool = False,
    verbose: bool = False,
    json: JsonFlag = False,
) -> None:
    """Say why a job failed: what happened, on which node and rank, and what to do.

    Tells the first failure over all ranks from what followed from it.

    Exit code 1 if there is a failure, 0 if there is none.
    """
    from clusterkit.observe.diagnose.rules import load_rules

    known = load_rules(rules or ())
    if list_rules:
        _list(known, as_json=json)
        return
    if not words:
        raise UserError("diagnose what?", hint="clusterkit diagnose latest, or name log files")
    named = _jobs_of(words)
    if stacks:
        if named is None:
            raise UserError("--stacks looks at a running job", hint="clusterkit status lists them")
        from clusterkit.cli.frame.job_args import run_named

        run = run_named(words[0]) if named.array else named.runs[0]
        raise typer.Exit(show_stacks(run, as_json=json))
    if named is not None and named.array:
        raise typer.Exit(_diagnose_array(named.array, named.runs, known, as_json=json))
    if named is not None:
        raise typer.Exit(_diagnose_job(named.runs[0], known, as_json=json, verbose=verbose))
    raise typer.Exit(_diagnose_files(words, known, as_json=json, verbose=verbose))


def _jobs_of(arguments: Sequence[str]) -> Named | None:
    """Return the job, or the array, that is meant; None where it is files."""
    if "" in arguments:
        raise UserError(
            "an empty word names no job and no file",
            hint="clusterkit diagnose latest; was a variable of the shell not set?",
        )
    jobs = [argument for argument in arguments if _is_job(argument)]
    if not jobs:
        return None
    # Nodes read their output as a file after each failure: these load the configuration.
    from clusterkit.cli.frame.job_args import runs_named
    from clusterkit.executors.run.runfolder import RunFolder
    from clusterkit.jobs.find import Named, NoSuchJobError

    if len(arguments) > 1:
        also = "" if len(jobs) > 1 else f", and {jobs[0]} is not a file"
        raise UserError(f"one job at a time, or files{also}", hint=f"clusterkit diagnose {jobs[0]}")
    path = Path(jobs[0])
    if path.is_dir():
        return Named(runs=(RunFolder(path.resolve()),))
    try:
        return runs_named(jobs[0])
    except NoSuchJobError as error:
        here = (other.name for other in Path().iterdir() if other.is_file())
        problem = error.problems[0]
        raise UserError(
            f"{problem.message}, and no file of that name",
            hint=did_you_mean(jobs[0], here) or problem.hint,
        ) from error


def _is_job(argument: str) -> bool:
    from clusterkit.observe.diagnose.job import named_as_log

    path = Path(argument)
    try:
        if path.is_dir():
            return (path / "submission.json").exists()
        element = path.name.isdecimal() and not path.parent.exists()  # ARRAY/INDEX
        named = ("/" in argument and not element) or named_as_log(path.name)
        return argument != "-" and not path.exists() and not named
    except (OSError, ValueError):  # a name that no file can have
        return False


def _diagnose_job(run: RunFolder, rules: Sequence[Rule], *, as_json: bool, verbose: bool) -> int:
    from clusterkit.cli.frame.job_args import note_owner
    from clusterkit.observe.diagnose.document import advice_for, job_document
    from clusterkit.observe.diagnose.job import diagnose_run

    note_owner(run)
    found = diagnose_run(run, rules)
    advice = advice_for(found)
    if as_json:
        console.json_document(job_document(found, advice))
    else:
        _say_job(found, advice, verbose=verbose)
    return _exit_code(found)


def _diagnose_array(
    array: str, runs: Sequence[RunFolder], rules: Sequence[Rule], *, as_json: bool
) -> int:
    from clusterkit.cli.diagnose.array import blocks, cause_documents, causes_of
    from clusterkit.core.model import JobState
    from clusterkit.jobs.document import array_document, counted
    from clusterkit.jobs.state.load import load_jobs

    jobs = load_jobs(runs)
    causes = causes_of(jobs, rules)
    if as_json:
        documents = cause_documents(causes)
        console.json_document({**array_document(array, jobs), "causes": documents})
    else:
        console.note(f"{array} {counted(jobs)}")
        console.say(*(blocks(array, jobs, causes) if causes else ["none of its jobs has failed"]))
    unknown = any(job.status.state is JobState.UNKNOWN for job in jobs)
    return EXIT_FINDINGS if causes else EXIT_COULD_NOT if unknown else 0


def _exit_code(found: JobDiagnosis) -> int:
    from clusterkit.core.model import JobState

    state = found.job.status.state
    cause = found.diagnosis.cause
    if state is JobState.CANCELLED and cause is not None and cause.rule == "cancelled":
        return 0  # as was asked for
    if cause is not None:
        return EXIT_FINDINGS
    if state is JobState.UNKNOWN:
        return EXIT_COULD_NOT
    healthy = {JobState.SUCCEEDED, JobState.CANCELLED}
    return EXIT_FINDINGS if state.final and state not in healthy else 0


def _say_job(found: JobDiagnosis, advice: Advice | None, *, verbose: bool) -> None:
    from clusterkit.cli.diagnose.report import last_words
    from clusterkit.cli.frame.job_args import state_text
    from clusterkit.core.model import JobState
    from clusterkit.jobs.document import name_of
    from clusterkit.observe.diagnose.rules import Role

    job = found.job
    console.note(f"{name_of(job)} {state_text(job)}")
    cause = found.diagnosis.cause
    if cause is None:
        console.say(_nothing(found.diagnosis))
    _say(found.diagnosis, advice, verbose=verbose)
    if cause is None or not cause.evidence.line:
        console.say(*last_words(job))
    if job.status.state is JobState.RUNNING and (cause is None or cause.role is not Role.CAUSE):
        console.note(f"where its ranks stand now: clusterkit diagnose --stacks {name_of(job)}")


def _diagnose_files(
    arguments: Sequence[str], rules: Sequence[Rule], *, as_json: bool, verbose: bool
) -> int:
    from clusterkit.observe.diagnose.job import sources_of
    from clusterkit.observe.diagnose.verdict import Known
    from clusterkit.observe.diagnose.verdict import diagnose as look

    with tempfile.TemporaryDirectory(prefix="clusterkit-") as folder:
        spools: dict[Path, str] = {}
        paths = [_readable(argument, Path(folder), spools) for argument in dict.fromkeys(arguments)]
        sources, told = sources_of(paths)
        found = _as_typed(look(rules, sources, Known(facts=told.facts)), spools)
    found = replace(
        found,
        notes=(*told.notes, *found.notes),
        files=found.files + told.files,
        bytes=found.bytes + told.bytes,
    )
    if as_json:
        from clusterkit.observe.diagnose.document import document

        console.json_document({"job": None, **document(found, None)})
    else:
        if found.cause is None:
            console.say(_nothing(found) if found.files else "there is nothing to read")
        _say(found, None, verbose=verbose)
    if found.cause is None and not found.files:
        return EXIT_COULD_NOT
    return EXIT_FINDINGS if found.cause is not None else 0


def _readable(argument: str, folder: Path, spools: dict[Path, str]) -> Path:
    """Return a file that can be read twice, and by another process.

    Of stdin and pipes that is one in `folder` with their text; `spools` keeps what was typed.
    """
    path = Path("/dev/stdin" if argument == "-" else argument)
    spool = folder / f"{len(spools)}.log"
    try:
        if argument == "-" and path.is_file() and os.access(real := path.resolve(), os.R_OK):
            return real
        if path.exists() and (argument == "-" or not (path.is_file() or path.is_dir())):
            with path.open("rb") as source, spool.open("wb") as stream:
                shutil.copyfileobj(source, stream)
            spools[spool] = argument
            return spool
    except (OSError, ValueError) as error:
        raise UserError(f"{argument[:200]} cannot be read: {error}") from error
    return path


def _as_typed(found: Diagnosis, spools: Mapping[Path, str]) -> Diagnosis:
    """Name what was piped in as the user did: the spools are gone when the answer is read."""

    def named(one: Finding) -> Finding:
        file = one.evidence.file
        return replace(one, evidence=replace(one.evidence, file=Path(spools.get(file, file))))

    def renamed(note: str) -> str:
        for spool, word in spools.items():
            note = note.replace(str(spool), word)
        return note

    cause = None if found.cause is None else named(found.cause)
    others, notes = tuple(map(named, found.others)), tuple(map(renamed, found.notes))
    return replace(found, cause=cause, others=others, notes=notes)


def _nothing(found: Diagnosis) -> str:
    if not found.files:
        return "there is nothing to read: no output yet"
    size = found.bytes / (1 << 20)
    amount = f"{size:.1f} MiB" if size >= 0.1 else f"{found.bytes} bytes"
    logs = "1 log" if found.files == 1 else f"{found.files} logs"
    return f"no failure known to clusterkit in {logs} ({amount})"


def _say(found: Diagnosis, advice: Advice | None, *, verbose: bool) -> None:
    from clusterkit.cli.diagnose import report

    if found.cause is not None:
        console.say(*report.answer(found.cause, advice))
        console.say("")
        shown: tuple[Finding, ...] = (found.cause, *(found.others if verbose else ()))
        for one in shown:
            console.say(*report.evidence(one))
        console.say(*report.others(found.others, found.cause))
    for note in found.notes:
        console.warn(note)


def _list(rules: Sequence[Rule], *, as_json: bool) -> None:
    if as_json:
        keys = ("id", "title", "role", "priority", "says", "do", "source")
        listed: list[dict[str, Any]] = [picked(rule, *keys) for rule in rules]
        console.json_document({"rules": listed})
        return
    from clusterkit.cli.explain.topic import table

    console.say(table((rule.id, f"{rule.general_title} ({rule.role})") for rule in rules))


_PID = re.compile(r"(?<=process )\d+|(?<=--pid )\d+")


def show_stacks(run: RunFolder, *, as_json: bool) -> int:
    """Print the stacks of all ranks, folded; return the exit code of the verb.

    Raises:
        UserError: the job does not run.
        RemoteError: its nodes cannot be asked at all.
    """
    from clusterkit.jobs.document import name_of
    from clusterkit.jobs.state.load import load_job
    from clusterkit.observe.diagnose.stacks import take_stacks

    job = load_job(run)
    found = take_stacks(job)
    if as_json:
        document = {"job_id": name_of(job), "stacks": found.groups, "troubles": found.troubles}
        console.json_document(document)
    else:
        _say_stacks(found)
    return 0 if found.groups else EXIT_COULD_NOT


def _say_stacks(found: Stacks) -> None:
    for group in found.groups:
        ranks = ranks_in_words(group.ranks)
        console.say(f"{console.bold(ranks)}  {fold_set(group.nodes)}")
        console.say(*(f"  {frame}" for frame in group.frames))
        if group.children:
            console.say(f"  below it: {', '.join(group.children)}")
    alike: dict[tuple[str, str], list[Trouble]] = {}
    for problem in found.troubles:
        key = (_PID.sub("", problem.message), _PID.sub("", problem.hint or ""))
        alike.setdefault(key, []).append(problem)
    for same in alike.values():
        first = same[0]
        nodes = fold_set(tuple(dict.fromkeys(problem.node for problem in same)))
        console.warn(f"{nodes}: {first.message}")
        if first.hint:
            console.note(f"hint: {first.hint}")
