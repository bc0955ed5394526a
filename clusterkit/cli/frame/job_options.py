"""The flags that describe a job, the same for every verb that takes one."""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import Verb, option, with_flags
from clusterkit.core.errors import UserError
from clusterkit.core.text import limit_in_words

if TYPE_CHECKING:
    from clusterkit.core.model import LaunchPlan
    from clusterkit.jobs.submit.request import JobRequest
    from clusterkit.launch.option_rows import Row

CONTEXT_SETTINGS = {"allow_interspersed_args": False}
"""Everything after SCRIPT belongs to the script."""

DryRunFlag = Annotated[bool, option("--dry-run", "Show what would be submitted; submit nothing.")]
_SCRIPTS_HAVE = frozenset({"tp", "pp", "cp", "ep"})
"""Flags that scripts have as well, and that are meant for them behind SCRIPT."""
_OF_VERBS = frozenset({"--dry-run", "--follow", "--wait", "--stdout", "--diff", "--only", "--for"})
"""Flags of `submit` and `render` that are no keys of a job."""
_SUBMITTING = frozenset({"preflight", "exclude_unfit", "snapshot", "force", "after"})
"""Flags of verbs that start something; `render` only describes a job."""
_MOST_HOURS = 24
"""What is meant as HH:MM has at most so many; 90:00 is 90 minutes for anybody."""


def takes_job_options(*names: str, starts: bool = True) -> Callable[[Verb], Verb]:
    """Give `verb(options, **own)` the flags called `names`, all of them where none is named.

    Without `starts`, those are left out that say how a job is started. `options` holds what was
    given: the keys of a job file, without those that nobody gave.
    """
    from clusterkit.launch.options import job_options

    left_out = () if starts else _SUBMITTING
    return takes_rows(
        [job_options()[name] for name in names or job_options() if name not in left_out]
    )


def takes_rows(rows: Iterable[Row]) -> Callable[[Verb], Verb]:
    """Give `verb(options, **own)` the flags of these rows of a table."""
    flags = [_parameter(row) for row in rows]
    return lambda verb: with_flags(verb, flags, _given)


def _given(values: Mapping[str, Any]) -> Mapping[str, Any]:
    absent = {name for name, value in values.items() if value in (None, []) or value is False}
    return {name: value for name, value in values.items() if name not in absent}


def _parameter(row: Row) -> inspect.Parameter:
    """Return a row of the table as typer wants it."""
    about = row.option
    if about.argument:
        shown: Any = typer.Argument(help=about.help, metavar=about.metavar, show_default=False)
    else:
        variable = f"CLUSTERKIT_{row.name.upper()}" if about.variable else None
        more: Any = {"rich_help_panel": about.panel, "envvar": variable}
        shown = option(f"{row.flag} {about.short or ''}", about.help, about.metavar or None, **more)
    kind = list[str] | None if row.repeated else row.type if row.plain else str | None
    default = False if row.default is False else None
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(row.name, keyword, default=default, annotation=Annotated[kind, shown])


def request_of(options: Mapping[str, Any], *, verb: str) -> JobRequest:
    """Return what the flags of `verb`, and the job file that they name, ask for.

    Raises:
        UserError: the job file has errors.
    """
    from clusterkit.jobs.submit.request import read_request

    file = options.get("job")
    request = read_request(options, verb=verb, job=file and Path(file), warn=console.warn)
    console.note(*_time_understood(str(request.get("time"))))
    return request


def _time_understood(text: str) -> tuple[str, ...]:
    """Return a line on a time limit that may be meant as HH:MM: Slurm takes it for MM:SS."""
    from clusterkit.config.units import parse_time_limit

    if text.count(":") != 1 or "-" in text:
        return ()
    with suppress(ValueError):  # refused where the job is
        if int(text.partition(":")[0]) > _MOST_HOURS:
            return ()
        limit = limit_in_words(parse_time_limit(text) or 0)
        return (f"--time {text} means {limit} (MM:SS); if you meant hours: --time {text}:00",)
    return ()


def warn_of_script(plan: LaunchPlan) -> None:
    """Warn where the job's script is for another framework, or gets what is meant for us."""
    from clusterkit.launch.scripts.kinds import script_warnings

    for problem in script_warnings(plan):
        console.warn(str(problem))
    if strays := flags_behind(plan):
        console.warn(
            f"{strays[0]} stands after {plan.script} and goes to the script;\n"
            "  flags of clusterkit stand before it"
        )


def refuse_dry_run_behind(plan: LaunchPlan) -> None:
    """Refuse to start a job whose `--dry-run` stands behind its script, which does not name it.

    A `--` before the script says that all behind it is meant for the script.

    Raises:
        UserError: with the command line as it is to be typed.
    """
    strays = flags_behind(plan)
    typed = sys.argv[1 : len(sys.argv) - len(plan.args)]
    behind = sys.argv[1 + len(typed) :]  # the words of a sweep as they were typed
    if "--dry-run" not in {*strays}.intersection(behind) or "--" in typed:
        return
    from clusterkit.core.model import ScriptKind
    from clusterkit.launch.options import job_options

    alone = {row.flag for row in job_options().values() if row.default is False} | _OF_VERBS
    moved: list[str] = []
    left: list[str] = []
    words = iter(behind)
    for word in words:
        ours = word.partition("=")[0] in strays
        (moved if ours else left).append(word)
        if ours and word not in alone and "=" not in word:
            moved += [value for value in (next(words, None),) if value is not None]
    verb = typed.index("submit") + 1 if "submit" in typed else 0
    command = shlex.join(["clusterkit", *typed[:verb], *moved, *typed[verb:], *left])
    module = "-m " if plan.script_kind is ScriptKind.MODULE else ""
    raise UserError(
        f"--dry-run stands after {plan.script}: it would go to the script, and the job would start",
        hint=f"{command}\n"
        f"  if the script takes it: clusterkit submit ... {module}-- {plan.script} --dry-run",
    )


def flags_behind(plan: LaunchPlan) -> list[str]:
    """Return the arguments of the script that look like ours, and that it does not name."""
    from clusterkit.launch.options import job_options

    ours = {row.flag for name, row in job_options().items() if name not in _SCRIPTS_HAVE}
    arguments = (argument.partition("=")[0] for argument in plan.args)
    behind = [argument for argument in arguments if argument in ours | _OF_VERBS]
    text = ""
    if behind:
        with suppress(OSError):
            text = Path(plan.workdir, plan.script).read_text(encoding="utf-8", errors="replace")
    return [argument for argument in behind if not _takes(text, argument)]


def _takes(script: str, flag: str) -> bool:
    """Tell whether a script names a flag, or a field that a parser makes it of."""
    name = flag[2:].replace("-", "_")
    forms = (flag, f"--{name}", f"{name}:", f"{name}=", f"{name} =", f"'{name}'", f'"{name}"')
    return any(form in script for form in forms)
