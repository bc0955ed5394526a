"""Diagnose a submitted job from its run folder, or any files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clusterkit.core import files
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.model import JobState
from clusterkit.core.records import count_of, counts_of, object_of, text_of, texts_of
from clusterkit.core.shell import quote
from clusterkit.core.text import some_of
from clusterkit.executors.run import hangs, node_results
from clusterkit.executors.run.runfolder import RunFolder, read_submission
from clusterkit.executors.submission import fetch
from clusterkit.jobs.document import name_of
from clusterkit.jobs.nccl_network import network_of
from clusterkit.jobs.state.load import Job, load_job
from clusterkit.observe.diagnose.events import Source
from clusterkit.observe.diagnose.flight_dump import looks_like_dump
from clusterkit.observe.diagnose.flight_recorder import Recorded, read_recorders
from clusterkit.observe.diagnose.rules import Rule
from clusterkit.observe.diagnose.verdict import Diagnosis, diagnose

_SUFFIXES = frozenset({".log", ".out", ".err", ".txt"})
_ROTATED = re.compile(r"(?:[.-]\d{1,20}){0,4}(?:\.(?:gz|bz2|xz|zst|lz4|zip))?$")
"""What logrotate and others append to the name of a log."""
_MOST_NAMED = 3
_REQUEUED = "preempted"
"""The rule of attempts that Slurm has put back into the queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDiagnosis:
    """A job, and what its logs and its run folder say of its failure."""

    job: Job
    diagnosis: Diagnosis


def diagnose_run(run: RunFolder, rules: Sequence[Rule]) -> JobDiagnosis:
    """Bring the logs of a job here where they are elsewhere, and diagnose it.

    Raises:
        UserError: its folder holds no submission.
    """
    submission = read_submission(run)
    notes: tuple[str, ...] = ()
    if submission is not None and not run.state.exists():
        try:
            fetch(run, submission)
        except RemoteError as error:  # what is here may tell enough
            notes = (f"what the nodes printed last could not be fetched: {error.message}",)
    found = diagnose_job(load_job(run), rules)
    network = network_of(run)
    if network is not None and network.warning:
        notes = (*notes, network.warning)
    known = found.diagnosis
    return replace(found, diagnosis=replace(known, notes=(*notes, *known.notes)))


def diagnose_job(job: Job, rules: Sequence[Rule]) -> JobDiagnosis:
    """Diagnose a job whose logs are here."""
    # Loads what runs on nodes; who reads files, as each node after a failure, has no use for that.
    from clusterkit.observe.diagnose.facts import known_of  # noqa: PLC0415

    known, sources, missing = known_of(job)
    found = diagnose([*_of_last_attempt(rules, job)], sources, known)
    # Where all went well, nobody has to print: often the first rank alone does.
    quiet = job.status.state in {JobState.PENDING, JobState.SUCCEEDED}
    notes = () if quiet else (*missing, *_still_on_nodes(job))
    return JobDiagnosis(job=job, diagnosis=replace(found, notes=(*notes, *found.notes)))


def _still_on_nodes(job: Job) -> Iterator[str]:
    """Yield what is not known here of a hang, where each node has a run folder of its own."""
    hang = hangs.open_hang(job.run, node_results.latest_attempt(job.run))
    cluster = object_of(files.read_json(job.run.plan) or {}, "cluster")
    apart = job.submission.kind.lists_hosts and cluster.get("shared_filesystem") is False
    if apart and hang is not None and not job.status.state.final:
        yield (
            f"the nodes share no folder: where ranks stood is known of {hang.node} alone; "
            f"where all stand now: clusterkit diagnose --stacks {name_of(job)}; dumps of flight "
            f"recorders are fetched once the job has ended: clusterkit cancel {name_of(job)}"
        )


def _of_last_attempt(rules: Sequence[Rule], job: Job) -> Iterator[Rule]:
    """Yield the rules that may explain how a job ended.

    In the scheduler's own output the ends of all attempts stand below each other: that one was
    requeued explains nothing where the last has ended otherwise.
    """
    last, state = node_results.read_results(job.run), job.status.state
    otherwise = state is JobState.TIMEOUT or (
        state.final
        and state is not JobState.PREEMPTED
        and last.attempt > 0
        and all(one.reason != "preempted" for one in last.nodes)
    )
    yield from (rule for rule in rules if not (otherwise and rule.id == _REQUEUED))


def named_as_log(name: str) -> bool:
    """Tell whether a name ends as those of logs do, also of rotated ones."""
    return Path(_ROTATED.sub("", name)).suffix in _SUFFIXES


def sources_of(paths: Sequence[Path]) -> tuple[tuple[Source, ...], Recorded]:
    """Return the logs of these files and folders, and what is told by dumps that are among them.

    What of the folders is left out is among the notes.

    Raises:
        UserError: there is no such file, or no log in a folder.
    """
    found: list[Path] = []
    dumps: list[Path] = []
    notes: list[str] = []
    for path in paths:
        if path.is_dir():
            inside, others = _logs_in(path)
            dumps += (recorded := [one for one in (*inside, *others) if looks_like_dump(one)])
            inside = [one for one in inside if one not in recorded]
            others = [one for one in others if one not in recorded]
            if not inside and not recorded:
                raise UserError(f"{path} holds no logs", hint="name the files themselves")
            found += inside
            if others:
                names = some_of([str(p.relative_to(path)) for p in others], _MOST_NAMED)
                notes.append(f"{path}: not read, as not named as logs are: {names}")
        elif path.exists():
            (dumps if looks_like_dump(path) else found).append(path)
        else:
            raise UserError(
                f"there is no file {path}",
                hint="clusterkit diagnose latest, or name log files; clusterkit status lists jobs",
            )
    sources = tuple(Source(path=path) for path in dict.fromkeys(map(_without_links, found)))
    told = read_recorders(dict.fromkeys(map(_without_links, dumps)))
    return sources, replace(told, notes=(*notes, *told.notes))


def _without_links(path: Path) -> Path:
    """Return a path that can be opened as it is: links are followed here, where the user named it.

    Those of a run folder are not (`core/reading.py`).
    """
    return path.resolve() if path.is_symlink() or path.parent.is_symlink() else path


def _logs_in(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the logs of a folder, and its other files; a name without a suffix may be of a log."""
    logs: list[Path] = []
    others: list[Path] = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            bare = not Path(_ROTATED.sub("", path.name)).suffix
            (logs if bare or named_as_log(path.name) else others).append(path)
    return logs, others


_MODEL = ("--model", "--model-name", "--model-name-or-path")
_MICRO_BATCH = ("--micro-batch", "--micro-batch-size", "--per-device-train-batch-size")
_SEQ = ("--seq", "--seq-length", "--seq-len", "--max-seq-length")


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What to do about the memory."""

    command: str
    """The question to the estimator; capital words stand for what the plan does not tell."""
    answer: str | None
    """What it answers; None where something is missing."""


def advise(run: RunFolder) -> Advice | None:
    """Return the estimator's advice for a job of ours; None where it has no plan."""
    plan = files.read_json(run.plan) if run.foreign is None else None
    if plan is None:
        return None
    known = dict(_known(plan))
    shown = {"model": "MODEL", "gpu": "GPU", **known}
    flags = " ".join(f"--{name.replace('_', '-')} {quote(str(v))}" for name, v in shown.items())
    answer = _answer(known) if {"model", "gpu"} <= known.keys() else None
    return Advice(command=f"clusterkit estimate {flags}", answer=answer)


def _known(plan: Mapping[str, Any]) -> Iterator[tuple[str, str | int]]:
    args = texts_of(plan, "args")
    gpu = text_of(object_of(plan, "cluster"), "gpu_type")
    model = _value(args, _MODEL)
    if model:
        yield "model", model
    if gpu:
        yield "gpu", gpu
    if processes := count_of(plan, "processes"):
        yield "gpus", processes
    if slots := counts_of(plan, "slots"):
        yield "gpus_per_node", slots[0]
    for name, flags in (("micro_batch", _MICRO_BATCH), ("seq", _SEQ)):
        value = _value(args, flags)
        if value and value.isascii() and value.isdigit():
            yield name, int(value)


def _value(args: Sequence[str], flags: Sequence[str]) -> str | None:
    """Return the value of the first of these flags, with `_` for `-` as well, and `=`."""
    for index, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if name.replace("_", "-") in flags:
            return value if equals else next(iter(args[index + 1 :]), None)
    return None


def _answer(known: Mapping[str, Any]) -> str | None:
    # A third of a second, and only here: the models, the GPUs, every strategy.
    from clusterkit.estimate.models.named import model_named  # noqa: PLC0415
    from clusterkit.estimate.query.answer import answer  # noqa: PLC0415
    from clusterkit.estimate.query.options import EstimateOptions  # noqa: PLC0415

    try:
        model_named(known["model"])  # not somebody's file or module, which would be run
        return answer(EstimateOptions(**known)).why
    except UserError:
        return None
