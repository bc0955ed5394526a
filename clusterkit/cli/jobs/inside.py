"""`clusterkit exec`, `shell` and `forward`: into a job that runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from shlex import quote
from typing import TYPE_CHECKING

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import JsonFlag, explained
from clusterkit.cli.frame.job_args import JobArgument, run_named, runs_named
from clusterkit.cli.frame.usage import in_a_job_or_on_nodes
from clusterkit.cli.nodes.answers import TIMEOUT_S, report, require_time, require_words
from clusterkit.core.errors import UserError
from clusterkit.core.model import JobState
from clusterkit.jobs.find import NoSuchJobError
from clusterkit.jobs.state.load import Job, load_job

if TYPE_CHECKING:
    from clusterkit.jobs.inside import Place

_SHELL = ("sh", "-c", "command -v bash >/dev/null && exec bash -i; exec sh -i")
_LAST_PORT = 65_535


@explained
def exec_(
    job: JobArgument,
    command: list[str],
    node: str | None = None,
    everywhere: bool = False,
    timeout: float | None = None,
    terminal: bool = False,
    json: JsonFlag = False,
) -> None:
    """Run a command inside a running job: with its variables, in its folder and its container.

    It gets this verb's input, gives it its exit code, and ends with the
    job. With --all it runs on all nodes: exit code 0 if it was 0 on all of
    them, else 1.
    """
    from clusterkit.jobs.inside import run_inside, run_on_all

    require_words(command)
    _require_job(job, command)
    if everywhere:
        if node is not None or terminal:
            raise UserError(
                "--all: on all nodes, and without a terminal", hint="leave the other out"
            )
        timeout_s = TIMEOUT_S if timeout is None else timeout
        require_time(timeout_s)
        said = run_on_all(_running(job), command, timeout_s=timeout_s)
        report(command, said, as_json=json)
        return
    if json or timeout is not None:
        flag = "--json" if json else "--timeout"
        raise UserError(f"{flag} goes with --all", hint="leave it out, or add --all")
    if terminal:
        _require_terminal("leave --tty out")
    raise typer.Exit(run_inside(_place(job, node), command, terminal=terminal))


@explained
def shell(job: JobArgument, node: str | None = None) -> None:
    """Open a shell inside a running job: with its variables, in its folder and its container.

    Its exit code is that of the shell. It ends with the job.
    """
    from clusterkit.jobs.inside import run_inside

    there = f" --node {quote(node)}" if node is not None else ""
    _require_terminal(f"to run one command: clusterkit exec {quote(job)}{there} -- COMMAND")
    raise typer.Exit(run_inside(_place(job, node), _SHELL, terminal=True))


@explained
def forward(job: JobArgument, port: str, node: str | None = None) -> None:
    """Make a port of a job's node one of this machine, until Ctrl-C.

    For TensorBoard, Jupyter or a debugger that runs inside the job.
    """
    from clusterkit.jobs.inside import Forward, listens_here

    local, there = _ports(port)
    place = _place(job, node)
    if place.job.submission.kind.shares_machine:
        console.say(f"the job runs on this machine: http://localhost:{there}")
        if not listens_here(there):
            console.warn(f"port {there}: nothing listens there")
        return
    with closing(Forward(place, there, local=local, told=console.warn)) as way:
        console.say(f"http://localhost:{way.local} is port {there} of {place.node}; Ctrl-C ends it")
        sys.stdout.flush()
        way.serve()


def _require_job(word: str, command: Sequence[str]) -> None:
    """Refuse a command behind `--` whose first word was taken for the job.

    Raises:
        UserError: it is no job, and stands behind `--`.
    """
    if "--" not in sys.argv or word in sys.argv[: sys.argv.index("--")]:
        return
    try:
        runs_named(word)
    except NoSuchJobError as error:
        hint = in_a_job_or_on_nodes([word, *command])
        message = f"{word!r} was taken for JOB, which stands before `--`"
        raise UserError(message, hint=hint) from error


def _place(job: str, node: str | None) -> Place:
    from clusterkit.jobs.inside import place_in

    return place_in(_running(job), node)


def _running(word: str) -> Job:
    """Return the job that the user means: of several of that name the one that runs, and says so.

    Raises:
        UserError: there is none, or several run.
    """
    return load_job(run_named(word, lambda job: job.status.state is JobState.RUNNING, "runs"))


def _require_terminal(hint: str) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UserError("there is no terminal here", hint=hint)


def _ports(text: str) -> tuple[int, int]:
    """Return the port here and the port there of `[LOCAL:]PORT`."""
    near, _, far = text.rpartition(":")
    for number, least in ((near or far, 0 if near else 1), (far, 1)):
        whole = number.isascii() and number.isdigit() and len(number) < 6
        if not whole or not least <= int(number) <= _LAST_PORT:
            raise UserError(
                f"{text}: ports are numbers from 1 to {_LAST_PORT}",
                hint="such as 6006, or 8888:6006",
            )
    return int(near or far), int(far)
