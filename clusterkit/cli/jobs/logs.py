"""`clusterkit logs`: the output of the nodes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import typer

from clusterkit.cli.diagnose.array import cause_documents, causes_of, log_blocks
from clusterkit.cli.diagnose.report import why_failed
from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import JsonFlag, explained
from clusterkit.cli.frame.job_args import (
    JobArgument,
    exit_code_of,
    expected_start,
    note_owner,
    run_named,
    runs_named,
    sentence_of,
    state_text,
    unfinished_named,
)
from clusterkit.cli.frame.main import EXIT_INTERRUPTED
from clusterkit.core.errors import UserError
from clusterkit.core.model import JobState
from clusterkit.core.ownership import find_foreign
from clusterkit.core.text import ESCAPES, harmless
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.jobs.document import array_document, batch_output, counted, logs_document, name_of
from clusterkit.jobs.logs import Keep, read_logs
from clusterkit.jobs.logs import follow as follow_output
from clusterkit.jobs.nccl_network import NcclLog
from clusterkit.jobs.node_names import choose_node, known_names, node_number
from clusterkit.jobs.state.load import Job, load_job, load_jobs

if TYPE_CHECKING:
    from clusterkit.observe.diagnose.rank_lines import RankLines

_QUOTE = re.compile(r"  \| (?P<text>.*)")
"""A line of a log below the state of a job."""
_ON_SCREEN = 4096
"""Characters of a log that are certainly still seen when its job has ended."""
_ENDED = frozenset({JobState.CANCELLED, JobState.TIMEOUT, JobState.PREEMPTED})
"""Whoever was ended has a log that ends with a traceback of its launcher, which is not why."""


@explained
def logs(
    job: JobArgument,
    follow: bool = False,
    node: str | None = None,
    rank: int | None = None,
    tail: int | None = None,
    json: JsonFlag = False,
) -> None:
    """Print what the nodes of a job print; follow it with -f."""
    if json and follow:
        raise UserError(
            "--follow has no end that one JSON document could wait for",
            hint=f"clusterkit wait {job}, then clusterkit logs --json {job}",
        )
    named = unfinished_named(job) if follow else runs_named(job)
    if named.array and not follow and node is None and rank is None:
        _of_array(named.array, named.runs, tail, as_json=json)
        return
    run = run_named(job) if named.array else named.runs[0]
    note_owner(run)
    chosen = _node(run, node) if node is not None else None
    if rank is not None:
        from clusterkit.observe.diagnose.rank_lines import RankLines

        _of_rank(RankLines(run, rank, job), run, chosen, tail, follow=follow, as_json=json)
        return
    if json:
        console.json_document(logs_document(run, chosen, tail))
        return
    if follow:
        raise typer.Exit(follow_run(run, node=chosen, tail=tail))
    if not _print(_shown(run, read_logs(run, chosen, tail=tail))):
        _say_of_nothing(load_job(run))
    elif run.state.exists() and (ended := load_job(run)).status.state in _ENDED:
        console.note(f"{name_of(ended)} {state_text(ended)}")


def _of_rank(
    lines: RankLines,
    run: RunFolder,
    node: int | None,
    tail: int | None,
    *,
    follow: bool,
    as_json: bool,
) -> None:
    """Print the lines of one rank, as far as they can be told from those of others."""
    if node is not None and lines.node not in {None, node}:
        raise UserError(f"rank {lines.rank} is on node {lines.node}", hint="leave --node out")
    node = lines.node if node is None else node
    keep = None if lines.alone else lines.keep
    if as_json:
        document = logs_document(run, node, tail, keep)
        _refuse_mixed(lines)
        console.json_document(document)
    elif follow:
        if not (lines.alone or lines.labels):
            console.note(f"only lines that name rank {lines.rank}", f"  {lines.advice}")
        raise typer.Exit(follow_run(run, node=node, tail=tail, keep=keep, rank=lines.rank))
    elif not _print(_shown(run, read_logs(run, node, tail=tail, keep=keep))) and not lines.own:
        _refuse_mixed(lines)
        if not (lines.labelled or lines.unlabelled):
            _say_of_nothing(load_job(run))
            return
        console.note(f"no line names rank {lines.rank}")
    if lines.unlabelled and not (as_json or follow):
        count = f"{lines.unlabelled} line{'s' * (lines.unlabelled != 1)}"
        where = "" if node is None else f" --node {node}"
        every = f"clusterkit logs{where} {lines.called}"
        console.note(f"left out, since they name no rank: {count}; all: {every}")


def _refuse_mixed(lines: RankLines) -> None:
    """Raise where there are lines, none of them names its rank, and none will."""
    if lines.unlabelled and not (lines.labelled or lines.labels):
        raise UserError(
            f"no line says which rank printed it, so those of rank {lines.rank} cannot be told "
            "from others",
            hint=lines.advice,
        )


def _of_array(array: str, runs: Sequence[RunFolder], tail: int | None, *, as_json: bool) -> None:
    """Print the end of what one failed job of each cause has printed."""
    jobs = load_jobs(runs)
    causes = causes_of(jobs)
    if as_json:
        documents = cause_documents(causes, tail=tail, logs=True)
        console.json_document({**array_document(array, jobs), "causes": documents})
        return
    console.note(f"{array} {counted(jobs)}")
    if not causes:
        console.note("none of its jobs has failed")
        console.note(f"what one has printed: clusterkit logs {array}/{jobs[0].submission.index}")
    console.say(*log_blocks(array, jobs, causes, tail=tail))


def _say_of_nothing(job: Job) -> None:
    """Say how it is that no node has printed anything, with what the batch script has."""
    batch = batch_output(job)
    yet = "" if job.status.state.final else " yet"
    console.note(f"nothing printed{yet}; the job {sentence_of(job)}")
    if batch:
        console.note(f"its batch script ended with ({job.run.submitit}):")
    console.say(*batch)


def _node(run: RunFolder, node: str) -> int:
    """Return the number of a node: as it is typed, as its lines begin (`node-0`), or by its name.

    Raises:
        UserError: no node of the job has that name, or several have.
        RemoteError: Slurm does not say which nodes the job has.
    """
    number = node_number(node)
    if number is not None:
        return number
    names = known_names(load_job(run))
    _, name = choose_node(node, names)
    first, *others = sorted(number for number, known in names.items() if known == name)
    if others:
        raise UserError(
            f"--node {node}: nodes {first} to {others[-1]} of this job are there",
            hint=f"by its number: --node {first}",
        )
    return first


def follow_run(
    run: RunFolder,
    *,
    node: int | None = None,
    tail: int | None = None,
    keep: Keep | None = None,
    rank: int | None = None,
) -> int:
    """Print the output of a job until it is over; return the exit code of the verb.

    Ctrl-C ends the looking on, not the job, and tells how to come back to this node or `rank`.
    """

    def changed(job: Job) -> None:
        if job.status.state is JobState.PENDING:  # else its output tells
            console.note(f"{name_of(job)} {state_text(job)}{expected_start(job)}")

    end = _End()
    try:
        pieces = follow_output(run, node, tail=tail, keep=keep, changed=changed)
        _print(_shown(run, _watching_network(run, end.of(pieces))))
        job = load_job(run)
    except KeyboardInterrupt:
        left = load_job(run)
        name, runs = name_of(left), left.status.state is JobState.RUNNING
        still = "is still running" if runs else sentence_of(left)
        chosen = f" --node {node}" if node is not None else ""
        chosen = f" --rank {rank}" if rank is not None else chosen
        console.note(
            f"\n{name} {still}\n  come back  clusterkit logs -f {name}{chosen}\n"
            f"  end it     clusterkit cancel {name}"
        )
        return EXIT_INTERRUPTED
    console.note(f"{name_of(job)} {state_text(job)}")
    console.note(*end.without_repeated(why_failed(job)))
    if job.status.state is JobState.UNKNOWN:
        console.note(f"its files: {run.path}")
    return exit_code_of(job)


class _End:
    """What was printed last of a log, so that it is not quoted right below."""

    def __init__(self) -> None:
        self._text = ""

    def of(self, pieces: Iterator[str]) -> Iterator[str]:
        """Yield the pieces."""
        for piece in pieces:
            self._text = (self._text + piece)[-_ON_SCREEN:]
            yield piece

    def without_repeated(self, lines: Sequence[str]) -> list[str]:
        """Return the lines without those quoted from the log, where all are still on the screen."""
        if not sys.stdout.isatty():
            return [*lines]
        quoted = {line: _QUOTE.match(ESCAPES.sub("", line)) for line in lines}
        known = all(match["text"] in self._text for match in quoted.values() if match)
        return [line for line in lines if not (known and quoted[line])]


def _watching_network(run: RunFolder, pieces: Iterator[str]) -> Iterator[str]:
    """Yield the output, and warn once where NCCL says in it that it goes over TCP for nothing."""
    log = NcclLog()
    for piece in pieces:
        yield piece
        if not log.told:
            log.take(piece)
            network = log.network(run)
            if network is not None and network.warning:
                console.warn(network.warning)


def _shown(run: RunFolder, pieces: Iterator[str]) -> Iterator[str]:
    """Return the output as it is; that of somebody else without what moves a terminal's cursor."""
    return pieces if find_foreign(run.path) is None else map(harmless, pieces)


def _print(pieces: Iterator[str]) -> bool:
    """Write as it comes; a log in another encoding must not stop a terminal that knows less."""
    some = False
    for piece in pieces:
        some = True
        try:
            sys.stdout.write(piece)
        except UnicodeEncodeError:
            encoding = sys.stdout.encoding or "ascii"
            sys.stdout.write(piece.encode(encoding, errors="replace").decode(encoding))
        sys.stdout.flush()
    return some
