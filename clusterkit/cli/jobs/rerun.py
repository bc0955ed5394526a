"""`clusterkit rerun`: submit a job again as it was, with what is to be other."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from clusterkit.cli.frame import console
from clusterkit.cli.frame.job_args import JobArgument, runs_named
from clusterkit.cli.frame.main import command_of
from clusterkit.cli.frame.usage import own_words, usage_error
from clusterkit.config.sources import expand_home, nearest_file
from clusterkit.core import files
from clusterkit.core.errors import UserError
from clusterkit.core.model import ScriptKind
from clusterkit.core.records import text_of
from clusterkit.executors.run import runfolder
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.jobs.submit import provenance

CONTEXT_SETTINGS = {"allow_interspersed_args": False, "ignore_unknown_options": True}
"""What follows JOB is for `submit`."""
_CONFIG_FLAG = "--config-file"
_OF_ONE_TIME = ("--wait", "--follow")
"""Flags that say what the terminal of then was to do, and nothing of the job."""
_AFTER = "after"
"""The jobs that it waited for are over: others take their place."""


def rerun(
    context: typer.Context,
    job: JobArgument,
    flags: Annotated[
        list[str] | None,
        typer.Argument(
            help="Flags of submit to change; behind `--`, more arguments for the script, or "
            "its name and other ones instead.",
            metavar="[FLAGS] [-- [SCRIPT] ARGS]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Submit a job or an array again from the same folder, and say what has changed since.

    Of a flag that may be given once, and of --after, the new one counts.
    --wait and --follow are not taken over. ARRAY/INDEX is that one job
    again. The exit code is that of submit.
    """
    if job.startswith("-"):
        raise UserError(f"{job} stands before JOB", hint="clusterkit rerun JOB [FLAGS] [-- ARGS]")
    named = runs_named(job)
    run = named.runs[0]
    run.require_own("submit its job again")
    submission, before, words = _typed(run, job)
    (folder, inside), command = _folder(run), command_of("submit")
    config = _config_file(context, before, folder)
    new, arguments = _split(flags or ())
    _check(command, context, new, job)
    if submission.array is not None and named.array is None:
        new = ["--elements", str(submission.index), *new]
    own, script = _parted(command, words, submission.cluster)
    if inside and not script:
        script = _absolute_script(command, own, new, folder)
    if script and arguments[:1] == script[:1]:
        arguments = arguments[1:]
        then_now = (shlex.join(words) or "none" for words in (script[1:], arguments))
        console.note("arguments of {}: {} then, {} now".format(script[0], *then_now))
        script = script[:1]
    elif script:
        _check_values(submission, script, arguments)
    if script and inside and Path(script[0]).is_absolute():
        script[0] = inside
    if arguments and not script:
        raise UserError(
            f"the script of {job} and its arguments stand in its job file",
            hint="change `args` there, or submit with the script on the command line",
        )
    watched = any(word in new for word in _OF_ONE_TIME)
    for flag in (word for word in _OF_ONE_TIME if word in own and not watched):
        console.note(
            f"{flag} is not taken over; to {flag[2:]} again: clusterkit rerun {job} {flag}"
        )
    own = [word for word in _without_repeated(command, own, new) if word not in _OF_ONE_TIME]
    argv = [*own, *new, *(["--", *script, *arguments] if script else ())]
    os.chdir(folder)
    console.note(f"in {folder}: {shlex.join(['clusterkit', *config, 'submit', *argv])}")
    then = files.read_json(run.path / provenance.FILE)
    if then is not None:
        now = provenance.provenance_of(folder, text_of(then, "packages_of"))
        console.note(*provenance.changes(then, now))
    sys.argv = [sys.argv[0], *config, "submit", *argv]  # what the new job remembers
    with command.make_context("submit", argv, parent=context.parent) as submitting:
        command.invoke(submitting)


def _check_values(submission: Submission, script: Sequence[str], more: Sequence[str]) -> None:
    """Refuse a flag of the script that has its value from the array, which would be told still."""
    flags = {word.partition("=")[0] for word in more}
    for before, word in pairwise(script):
        flag, _, value = word.partition("=") if "=" in word else (before, "", word)
        name = next((n for n in submission.values if f"{{{n}}}" in value), None)
        if name is not None and flag in flags:
            values = {**submission.values, name: "VALUE"}
            spec = ";".join(f"{key}={one}" for key, one in values.items())
            raise UserError(
                f"{flag} has its value from the array: {name}={submission.values[name]}",
                hint=f"clusterkit rerun {submission.array} --array {shlex.quote(spec)}",
            )


def _typed(run: RunFolder, job: str) -> tuple[Submission, list[str], list[str]]:
    """Return how a job was submitted, and what was typed before and behind that verb.

    Raises:
        UserError: the job was not submitted by that verb.
    """
    submission = runfolder.read_submission(run)
    before: list[str] = []
    words = list(submission.command_line[1:]) if submission is not None else []
    while words and words[0].startswith("-"):
        count = 2 if words[0] == _CONFIG_FLAG else 1
        before, words = before + words[:count], words[count:]
    if submission is None or words[:1] != ["submit"]:
        raise UserError(
            f"{job} was not started by `clusterkit submit`",
            hint="start it again as it was: by `clusterkit bench`, or by its own program",
        )
    return submission, before, words[1:]


def _config_file(context: typer.Context, before: list[str], folder: Path) -> tuple[str, ...]:
    """Have the file read that a flag names, now or else then; return that flag.

    Its path is the same wherever the new job is started again.
    """
    root = context.find_root()
    given, source = root.params.get("config_file"), root.get_parameter_source("config_file")
    typed = source is not None and source.name == "COMMANDLINE"
    then = [
        flag.partition("=")[2] or value
        for flag, value in pairwise([*before, ""])
        if flag.partition("=")[0] == _CONFIG_FLAG
    ]
    if typed or not then:
        place, file = Path.cwd(), given and str(given)
    else:
        place, file = folder, then[-1]
    if not file:
        return ()
    path = str(place / expand_home(file))
    os.environ["CLUSTERKIT_CONFIG_FILE"] = path
    return (_CONFIG_FLAG, path) if typed or then else ()


def _folder(run: RunFolder) -> tuple[Path, str | None]:
    """Return the folder to submit from: where that was done, or else the job's own snapshot.

    Of a snapshot also what its script is called there, however that was typed.

    Raises:
        UserError: the folder is gone, and there is no snapshot.
    """
    document, plan = (
        files.read_json(path) or {} for path in (run.path / provenance.FILE, run.plan)
    )
    workdir, script = text_of(plan, "workdir"), text_of(plan, "script") or ""
    folder = text_of(document, "folder") or workdir
    snapshot = Path(workdir or "")
    of_file = text_of(plan, "script_kind") not in {ScriptKind.MODULE, ScriptKind.COMMAND}
    gone = not folder or not Path(folder).is_dir()
    if snapshot.is_relative_to(run.path) and snapshot.is_dir():
        lost = of_file and not Path(folder or "", script).exists()
        if gone or lost:
            what = f"{folder} is gone" if gone else f"{script} is gone from {folder}"
            what += f": its copy in the run folder is run, {snapshot}"
            if provenance.SENT in Path(folder or "").parts:
                what = f"the files that were sent then are run, {snapshot}; to send those of now: "
                what += "clusterkit submit"
            console.note(what)
            if config := nearest_file(Path(folder or ".")):
                os.environ.setdefault("CLUSTERKIT_CONFIG_FILE", str(config))
            return snapshot, script if of_file else None
    if gone:
        raise UserError(
            f"the folder that it was submitted from is gone: {folder or 'nobody noted it'}",
            hint=f"its files are in {run.path}; submit it from another folder",
        )
    return Path(folder or ""), None


def _split(more: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the flags of submit, and what stands behind `--`."""
    at = more.index("--") if "--" in more else len(more)
    return list(more[:at]), list(more[at + 1 :])


def _check(command: Any, context: typer.Context, new: list[str], job: str) -> None:
    """Refuse what is no flag of submit, before it is taken for the script."""
    submitting = command.make_context("submit", [], parent=context.parent, resilient_parsing=True)
    submitting.resilient_parsing = False
    behind = f"arguments of the script: clusterkit rerun {shlex.quote(job)} -- ARGS"
    try:
        _, count = _parsed(command, submitting, new)
    except TyperException as error:
        (problem,) = usage_error(error, ["submit", *new]).problems
        first = f"{behind}\n  " if hasattr(error, "possibilities") else ""
        raise UserError(problem.message, hint=f"{first}{problem.hint}") from error
    if count:
        raise UserError(f"{new[-count]} is not a flag of submit", hint=behind)


def _parsed(command: Any, context: Any, words: list[str]) -> tuple[Any, int]:
    """Return the flags of submit, and how many words at the end are script and arguments."""
    given, left, _ = command.make_parser(context).parse_args(list(words))
    taken = [given.get(p.name) for p in command.params if p.param_type_name == "argument"]
    return given, sum(1 if isinstance(one, str) else len(one or ()) for one in taken) + len(left)


def _without_repeated(command: Any, own: list[str], new: list[str]) -> list[str]:
    """Return the flags of then without those that are given anew, unless each of several counts."""
    options = {word: one for one in command.params for word in one.opts}
    again = [options.get(word) for word, _ in own_words(new, command)]
    anew = {
        one.name
        for one in again
        if one is not None and (one.name == _AFTER or not getattr(one, "multiple", False))
    }
    kept, at = [], 0
    for word, _ in own_words(own, command):
        one = options.get(word)
        alone = one is None or own[at] != word or one.is_flag  # as --nodes=2, -N2, --wait
        end = at + (1 if alone else 2)
        kept += [] if one is not None and one.name in anew else own[at:end]
        at = end
    return [*kept, *own[at:]]


def _absolute_script(command: Any, own: list[str], new: list[str], folder: Path) -> list[str]:
    """Return the script and its arguments where the job's file names it by an absolute path.

    Nothing where `new` flags name another file.

    Raises:
        UserError: the file has errors.
    """
    from clusterkit.launch.jobfile import load_job_file

    context = command.make_context("submit", [], resilient_parsing=True)
    then, now = (_parsed(command, context, words)[0].get("job") for words in (own, new))
    values = load_job_file(folder / then).values if then and not now else {}
    script = str(values.get("script") or "")
    return [script, *map(str, values.get("args", ()))] if Path(script).is_absolute() else []


def _parted(command: Any, words: list[str], cluster: str) -> tuple[list[str], list[str]]:
    """Return the flags of submit, which name the cluster, and from the script on what is not."""
    context = command.make_context("submit", list(words), resilient_parsing=True)
    given, count = _parsed(command, context, words)
    own, script = words[: len(words) - count], words[len(words) - count :]
    named = () if given.get("cluster") else ("--cluster", cluster)
    return [*named, *(own[:-1] if own and own[-1] == "--" else own)], script
