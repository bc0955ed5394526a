"""What the run folder itself knows of a failed job, as lines that rules match like any other.

Some causes print nothing: a rank that the kernel kills, a time limit, a node that goes. A fact is a
line `clusterkit fact: KEY=VALUE`; docs/how-to/diagnose.md lists the keys.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterkit.core import files, reading, throughput
from clusterkit.core.errors import UserError
from clusterkit.core.model import JobState, NodeResult
from clusterkit.core.reading import open_regular
from clusterkit.core.records import count_of, counts_of, object_of, text_of, texts_of
from clusterkit.core.text import in_words, some_of
from clusterkit.executors.node.failure import read_rank_failure
from clusterkit.executors.run import hangs, node_results, restarts
from clusterkit.executors.run.dependencies import Dependency
from clusterkit.executors.run.hangs import Hang
from clusterkit.executors.run.runfolder import RunFolder, listed
from clusterkit.jobs.document import name_of
from clusterkit.jobs.logs import ranks_of
from clusterkit.jobs.state.load import Job, load_job
from clusterkit.launch.array.spec import ranks_in_words
from clusterkit.observe.diagnose.events import Fact, Source
from clusterkit.observe.diagnose.evidence import took_steps
from clusterkit.observe.diagnose.flight_recorder import dumps_below, read_recorders
from clusterkit.observe.diagnose.hits import RESTART
from clusterkit.observe.diagnose.open_log import text_size
from clusterkit.observe.diagnose.order import Place
from clusterkit.observe.diagnose.stacks import in_a_sentence, kept_stacks, odd_one_out
from clusterkit.observe.diagnose.verdict import Known

_SIGTERM = 143
_ENDED_FROM_OUTSIDE = frozenset({JobState.CANCELLED, JobState.TIMEOUT})
_WAITED = _ENDED_FROM_OUTSIDE | {JobState.RUNNING}
_SENT = frozenset({130, _SIGTERM, 137})
"""Exit codes of whoever is told to end, and is killed where it does not."""
_MOST_NAMED = 8
_LONGEST_BY = 200
_SILENT_S = 60.0
"""A job that had printed nothing for so long as it was ended may have hung."""
_OF_SCHEDULER = frozenset({".out", ".err"})
_MOST_OF_OTHERS = 1 << 29
"""Bytes of text of somebody else's job that are looked through."""
_SIGNALS = 64
"""Linux has so many; an exit code over 128 + that, such as 255, is no signal."""


def known_of(job: Job) -> tuple[Known, tuple[Source, ...], tuple[str, ...]]:
    """Return what the run folder of a job says, the logs that it has, and what is not to be read.

    The rank that failed first is one that its launchers told.
    """
    attempt = node_results.latest_attempt(job.run)
    results = node_results.read_results(job.run, attempt).nodes
    failure = node_results.first_failure(job.run, attempt)
    plan = files.read_json(job.run.plan) or {}
    # On Slurm, which chooses the nodes, a plan names none.
    sources, notes = _sources(job, results, texts_of(plan, "node_names"))
    first, processes = _first(job, failure, attempt), _processes(plan)
    dumps = dumps_below(job.run.results, attempt)
    failed, foreign = first.rank if first else None, job.run.foreign is not None
    recorded = read_recorders(dumps, processes, failed, foreign=foreign)
    state = job.status.state
    known = Known(
        job=name_of(job),
        folder=job.run.path,
        facts=(
            *_facts(job, results, failure),
            *_hang(job, attempt, plan),
            *_locks(job, plan),
            *(recorded.facts or _ras(job, attempt)),
        ),
        first=first,
        processes=processes,
        succeeded=state is JobState.SUCCEEDED,
        failed=state.final and state is not JobState.SUCCEEDED,
    )
    return known, sources, (*notes, *recorded.notes)


def _processes(plan: Mapping[str, Any]) -> int | None:
    slots = counts_of(plan, "slots")
    nodes = max(count_of(plan, "max_nodes"), len(slots))
    most = max(count_of(plan, "processes"), nodes * max(slots, default=0))
    return most or None


def _facts(job: Job, results: tuple[NodeResult, ...], failure: NodeResult | None) -> Iterator[Fact]:
    status = job.status
    timed_out = status.state is JobState.TIMEOUT
    yield _fact("state", "; ".join([status.state, *_of_end(job)]))
    if timed_out and job.submission.requeue:
        yield from _attempts(job)
    if reason := _reason(job):
        yield _fact("reason", reason)
    if failure is not None:
        yield from _of_node(failure)
        if failure.ended_before:
            yield _fact("ended-before", failure.ended_before)
        code = failure.exit_code
        signal = code - 128
        key, value = ("signal", signal) if 0 < signal <= _SIGNALS else ("exit", code)
        asked_for = status.state in _ENDED_FROM_OUTSIDE and code in _SENT
        if failure.lost is None and failure.unfit is None and not asked_for:
            yield _fact(key, value, failure)
        if not reading.size_of(job.run.log(failure.node_rank)):
            for line in failure.tail:
                yield Fact(text=line, node=failure.node, rank=failure.rank, time=failure.ended_at)
    for result in results:
        if result != failure:
            yield from _of_node(result)


def _of_end(job: Job) -> Iterator[str]:
    """Tell what is known of how a job was ended: by whom, and what it did before."""
    if job.status.state is JobState.CANCELLED and not _stopped_by(job):
        by = reading.read_end(job.run.cancelled, _LONGEST_BY).decode(errors="replace")
        yield from [by] if by.strip() else []
    if job.status.state is not JobState.TIMEOUT:
        return
    if (hang := _hung(job, node_results.latest_attempt(job.run))) is not None:
        yield f"before that it hung: {hang.what}"
    elif (silent_s := _silent_s(job)) >= _SILENT_S:
        yield f"its last line came {in_words(silent_s)} before"


def _silent_s(job: Job) -> float:
    """Return for how long no node had printed anything as the job ended; 0 where none knows."""
    times = []
    for rank in ranks_of(job.run):
        with suppress(OSError):
            times.append(job.run.log(rank).stat().st_mtime)
    ended_at = job.status.ended_at
    return ended_at - max(times) if times and ended_at is not None else 0.0


def _reason(job: Job) -> str | None:
    """Return the reason of the state; of the last of a chain, that of the first to never start.

    With what to type for those between them, from the first on.
    """
    reason, between, after = job.status.reason, list[str](), _stopped_by(job)
    while after is not None and job.run.foreign is None and after.job_id not in between:
        try:
            before = load_job(RunFolder(Path(after.run_dir)))
        except UserError:  # it has been removed
            break
        between.insert(0, after.job_id)
        after = _stopped_by(before)
        if after is not None:
            reason = f"{before.status.reason}{_typed(between)}"
    return reason


def _stopped_by(job: Job) -> Dependency | None:
    """Return the job whose end kept this one from starting."""
    reason = job.status.reason or ""
    return next((one for one in job.submission.after if one.explains(reason)), None)


def _typed(jobs: Sequence[str]) -> str:
    commands = [f"`clusterkit rerun {job} --after NEW`" for job in jobs]
    return f", {', '.join(commands)}"


def _attempts(job: Job) -> Iterator[Fact]:
    """Tell of the attempts of a job that has used them up, and of the steps that each made."""
    made = node_results.latest_attempt(job.run) + 1
    if made - restarts.count(job.run, made - 1) <= job.submission.requeue:
        return
    steps = steps_of_attempts(job.run.log(0))
    each = ", ".join(f"{steps.get(attempt, 0)} steps" for attempt in range(made))
    yield _fact("attempts", f"{made} of {made}, to the time limit" + (f"; {each}" if steps else ""))


def _hung(job: Job, attempt: int) -> Hang | None:
    over = job.status.state is JobState.SUCCEEDED
    return None if over else hangs.open_hang(job.run, attempt)


def _ras(job: Job, attempt: int) -> Iterator[Fact]:
    """Tell what NCCL said then, which knows ranks and nodes, and no line of the script."""
    if _hung(job, attempt) is not None:
        path = hangs.ras_file(job.run, attempt)
        for said in told_by_ras(hangs.read_kept(path)):
            yield Fact(text=f"clusterkit fact: {said}", file=path)


def _hang(job: Job, attempt: int, plan: Mapping[str, Any]) -> Iterator[Fact]:
    """Tell that the job makes no progress, and where its ranks stood when that was noticed.

    The place is that of the rank that the others wait for; the node that noticed it is none.
    """
    if (hang := _hung(job, attempt)) is None:
        return
    n_nodes = len(counts_of(plan, "slots")) or job.submission.nodes
    found = kept_stacks(job.run, attempt, n_nodes)
    where = in_a_sentence(found).replace(";", ",")
    text = f"clusterkit fact: hung={hang.text}" + (f"; {where}" if where else "")
    node, rank = odd_one_out(found) or (hang.node if n_nodes == 1 else None, None)
    yield Fact(text=text, node=node, rank=rank, time=hang.at)


def _locks(job: Job, plan: Mapping[str, Any]) -> Iterator[Fact]:
    if job.status.state not in _WAITED or plan.get("container"):
        return
    logs = [job.run.log(rank) for rank in ranks_of(job.run)]
    given = object_of(plan, "env")
    env = {name: text for name in given if (text := text_of(given, name))}
    framework = text_of(plan, "framework") or ""
    for path in old_locks(logs, env, job.submission.submitted_at, framework=framework):
        yield _fact("lock", path)


def _of_node(result: NodeResult) -> Iterator[Fact]:
    if result.reason:
        yield _fact("node-reason", result.reason, result)
    if result.lost:
        yield _fact("lost", result.lost, result)
    if result.found:
        yield _fact("unfit", result.found, result)


def _fact(key: str, value: object, of: NodeResult | None = None) -> Fact:
    text = " ".join(f"clusterkit fact: {key}={value}".split())
    if of is None:
        return Fact(text=text)
    return Fact(text=text, node=of.node, rank=of.rank, time=of.ended_at)


def _first(job: Job, failure: NodeResult | None, attempt: int) -> Place | None:
    sent = _SENT if job.status.state in _ENDED_FROM_OUTSIDE else {_SIGTERM}
    told = read_rank_failure(job.run, attempt)
    if told is not None and told.exit_code not in sent:
        return Place(node=told.node, rank=told.rank)
    if failure is not None and failure.exit_code not in sent:
        return Place(node=failure.node, rank=failure.rank)
    return None


def _sources(
    job: Job, results: tuple[NodeResult, ...], planned: tuple[str, ...]
) -> tuple[tuple[Source, ...], tuple[str, ...]]:
    names = dict(enumerate(planned)) | {r.node_rank: r.node for r in results}
    found, missing = [], []
    room = math.inf if job.run.foreign is None else _MOST_OF_OTHERS
    left_out = []
    for rank in ranks_of(job.run):
        path = job.run.log(rank)
        room -= text_size(path)
        if room < 0:
            left_out.append(path.name)
        elif reading.size_of(path):
            found.append(Source(path=path, node=names.get(rank)))
        else:
            missing.append(names.get(rank) or f"node {rank}")
    for name in sorted(listed(job.run.submitit)):
        path = job.run.submitit / name
        if path.suffix in _OF_SCHEDULER and reading.size_of(path):
            room -= text_size(path)
            found += [Source(path=path, scheduler=True)] if room >= 0 else []
    notes = []
    if left_out:
        named = some_of(left_out, _MOST_NAMED, rest="others")
        notes.append(f"too much of somebody else to be read at once: {named} of {job.run.logs}")
    never = job.status.state is JobState.CANCELLED and not results and not found
    if missing and not never:
        named = some_of(missing, _MOST_NAMED, rest="others")
        notes.append(f"no output of {named}: {job.run.logs} has none")
    return tuple(found), tuple(notes)


_LONGEST = 1 << 14
_MOST = 1 << 28
"""Bytes that are read; a log is read by the line, which takes some seconds for so much."""


def steps_of_attempts(log: Path) -> dict[int, int]:
    """Return how many steps each attempt made, of those of which the log shows any.

    From the first that was printed to the last, and those before the first, which are as many as
    there are between two lines.
    """
    printed: dict[int, list[int]] = {}
    attempt = read = 0
    try:
        with os.fdopen(open_regular(log), "rb") as file:
            while (raw := file.readline(_LONGEST)) and read < _MOST:
                read += len(raw)
                text = raw.decode(errors="replace")
                mark = RESTART.match(text)
                if mark is not None:
                    attempt = int(mark["attempt"])
                elif (step := throughput.step_of(text)) is not None:
                    _note(printed.setdefault(attempt, []), step)
    except OSError:
        return {}
    return {attempt: _made(steps, from_zero=not attempt) for attempt, steps in printed.items()}


def _note(steps: list[int], step: int) -> None:
    """Keep the first step, the second, and the last; others print what came before it as well."""
    if len(steps) < 2:
        if not steps or step > steps[-1]:
            steps.append(step)
    else:
        steps[2:] = [max(step, *steps[1:])]


def _made(steps: list[int], *, from_zero: bool) -> int:
    first, last = steps[0], steps[-1]
    alone = first if from_zero else 1
    apart = steps[1] - first if len(steps) > 1 else alone
    return last - first + max(1, min(apart, first))


_END = 1 << 16
_USES = (b"eepspeed", b"DeepSpeed", b"torch_extensions", b"cpp_extension")


def old_locks(
    logs: Iterable[Path], env: Mapping[str, str], before: float, *, framework: str
) -> Iterator[Path]:
    """Yield locks that are older than the job, where its ranks may wait for one.

    They may where they took no step and something tells of extensions; `before` is the time of
    submission, in seconds since the epoch. Only what this machine sees is looked at.
    """
    ends = [reading.read_end(log, _END) for log in logs]
    uses = framework == "deepspeed" or any(word in end for end in ends for word in _USES)
    if not uses or any(took_steps(end) for end in ends):
        return
    home = env.get("HOME") or os.environ.get("HOME") or "/"
    root = Path(env.get("TORCH_EXTENSIONS_DIR") or Path(home, ".cache", "torch_extensions"))
    try:
        for path in sorted((*root.glob("*/lock"), *root.glob("*/*/lock"))):
            if path.stat().st_mtime < before:
                yield path
    except OSError:  # it went meanwhile
        return


_SECTION = re.compile(
    r"(?:#(?P<comm>\d{1,9}-\d{1,9}) \(\w{1,32}\) )?(?P<kind>DEAD|INCOMPLETE|MISMATCH|ERROR)"
)
_PROCESS = re.compile(r" +Process (?P<pid>\d{1,10}) on node (?P<node>\S{1,255})\b")
_RAS_RANK = re.compile(
    r" +Rank (?P<rank>\d{1,7}) (?:(?P<what>[^-\s][^-]{0,120}?) )?-- "
    r"(?:GPU \S{1,16} managed by process \d{1,10} on node (?P<node>\S{1,255})|\[)"
)
_MANY = re.compile(r" +(?P<count>\d{1,7}) (?:ranks|job processes) (?P<what>\S.{0,120})")
_COUNTS = re.compile(r" +Communicator ranks have different (?P<op>\w{1,40}) operation counts")
_LAUNCHED = re.compile(
    r"(?:has|have) (?:launched up to operation (?P<last>\d{1,19})|not launched any)"
)
_MOST_LINES = 1 << 14
_MOST_NODES = 8


@dataclass(slots=True, kw_only=True)
class _Behind:
    """Ranks of a communicator by the last operation of one kind that they have launched."""

    comm: str
    op: str
    counts: Counter[int] = field(default_factory=Counter)
    ranks: dict[int, dict[int, str]] = field(default_factory=dict)
    """Of each count those that are named, and their nodes."""

    def told(self) -> str:
        if len(self.counts) < 2:
            return ""
        least, most = min(self.counts), max(self.counts)
        who, ahead = self.ranks.get(least, {}), sum(self.counts.values()) - self.counts[least]
        if len(who) != self.counts[least] or len(who) >= ahead:
            return ""  # nobody can tell who waits for whom
        done = f"number {least}" if least else "none"
        return (
            f"nccl-behind={ranks_in_words(who)} on {_nodes(who.values())}; {self.op}; "
            f"{done}; {ahead} others at number {most}; communicator {self.comm}"
        )


def told_by_ras(text: str) -> Iterator[str]:
    """Yield what the answer of RAS tells, as `KEY=VALUE`: who is lost, and who is behind.

    Ranks are those of a communicator, of which the largest comes first: mostly that of all ranks.
    """
    lost: dict[str, tuple[list[str], dict[int, str]]] = {}
    behind: list[_Behind] = []
    kind, comm, many = "", "", None
    largest = ""
    """The first communicator of which ranks are missing: others number theirs anew."""
    for line in text.splitlines()[:_MOST_LINES]:
        if section := _SECTION.fullmatch(line.rstrip()):
            kind, comm, many = section["kind"], section["comm"] or "", None
            largest = largest or (comm if kind == "INCOMPLETE" else "")
        elif counts := _COUNTS.match(line):
            behind.append(_Behind(comm=comm, op=counts["op"]))
            many = None
        elif kind in {"DEAD", "INCOMPLETE"}:
            nodes, ranks = lost.setdefault(kind, ([], {}))
            if process := _PROCESS.match(line):
                nodes.append(process["node"])
            elif comm == largest and (rank := _RAS_RANK.match(line)):
                ranks.setdefault(int(rank["rank"]), rank["node"] or "?")
        elif kind == "MISMATCH" and behind and behind[-1].comm == comm:
            many = _count_ras(line, behind[-1], many)
    for kind, (nodes, ranks) in sorted(lost.items()):
        if nodes or ranks:
            what = "is dead" if kind == "DEAD" else "does not answer"
            named = _nodes(nodes or ranks.values())
            who = ranks_in_words(ranks) if ranks else _some(len(nodes))
            yield f"nccl-lost={named}; {what}; {who}"
    yield from [said for one in behind if (said := one.told())][:1]


def _count_ras(line: str, behind: _Behind, many: int | None) -> int | None:
    """Note a line of how far ranks have come; return of which count those that follow are."""
    if found := _RAS_RANK.match(line):
        launched = _LAUNCHED.match(found["what"] or "")
        last = int(launched["last"] or 0) if launched else many
        if last is not None:
            behind.counts[last] += launched is not None
            behind.ranks.setdefault(last, {})[int(found["rank"])] = found["node"] or "?"
        return many
    if (found := _MANY.match(line)) and (launched := _LAUNCHED.match(found["what"])):
        last = int(launched["last"] or 0)
        behind.counts[last] += int(found["count"])
        return last
    return many


def _some(count: int) -> str:
    return f"{count} process{'es' * (count > 1)}"


def _nodes(names: Iterable[str]) -> str:
    return some_of(sorted({*names}), _MOST_NODES, rest="others").replace(";", ",")
