"""What is told of a failure: what happened, where, what to do, and what followed from it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from pathlib import Path
from textwrap import shorten

from clusterkit.core import throughput
from clusterkit.core.hosts import hostlist
from clusterkit.core.text import some_of
from clusterkit.launch.array.spec import ranks_in_words
from clusterkit.observe.diagnose.events import Fact, Source, events_of
from clusterkit.observe.diagnose.evidence import (
    Root,
    at_last,
    lines_after,
    lines_before,
    message_below,
    next_step,
    of_traceback,
    printed_by_library,
    raised_in,
    reported_at,
    root_at,
    steps_after,
    unwrapped,
    words_around,
)
from clusterkit.observe.diagnose.held import held_by_others
from clusterkit.observe.diagnose.hits import REPORTS, RESTART, Hit, Scanned
from clusterkit.observe.diagnose.lines import form_of
from clusterkit.observe.diagnose.open_log import WINDOW, read_part
from clusterkit.observe.diagnose.order import (
    MEMORY,
    MOMENT_S,
    Event,
    Place,
    also_short,
    awaited,
    ranked,
    root_of,
)
from clusterkit.observe.diagnose.rules import Role, Rule
from clusterkit.observe.diagnose.scan import scan_all

_SIGTERM = -15
_SIGNALLED = ") received by PID "
_FILE = '  File "'
_TOLD = frozenset({"message", "kind"})
"""Groups of a rule beside which the next line tells no more, but where the line ends in a colon."""
_NAMING = frozenset(
    {"horovod-report", "launcher-report", "mpi-abort", "mpi-report", "slurm-report"}
)
"""Rules of lines by which a launcher names the rank whose end it has seen."""
_UNKNOWING = frozenset(
    {
        "dataset-not-loaded",
        "error-line",
        "exception-named",
        "exception-unknown",
        "framework-error",
        "java-exception",
        "last-words",
        "process-aborted",
        "program-error",
        "python-exception",
        "python-exception-below",
        "ray-task-failed",
        "spark-task-failed",
        "thread-exception",
    }
)
"""Rules that know how a program ends, and nothing of what it says then."""
_COUNTING_OWN = frozenset({"torchrun-report", "torchrun-stopped", "deepspeed-report"})
"""Rules of launchers that start ranks in each task of another one."""
_BEFORE = "job-before"
_CANCELLED = "cancelled"
_EMPTY = "collective-empty"
_HUNG = "hung"
_LIMIT = "time-limit"
_MISMATCHES = frozenset({"collective-calls", "collective-mismatch", "collective-mismatch-timeout"})
_OF_SPARK = "spark-stage-failed"
_SLURM_REPORT = "slurm-report"
_TASKS = re.compile(r": tasks \S{1,200}: Exited with exit code")
"""By which srun tells of several that ended by themselves."""
_OF_SLURM = ("slurmstepd: ", "srun: ")
_WAITING = frozenset({"collective-rank-missing", "horovod-stalled", "monitored-barrier"})
"""Rules that name a rank for which others wait."""
_MOST_NAMED = 8
_LAST_WORDS = 5
"""Lines before the report of a launcher, of a failure of which no rule knows a line."""
_MOST_ASKED = 8
"""Logs in which it is: mostly the first rank tells, or all."""
_STEPS = 2
"""From so many steps after a cause on it is in doubt: one may be printed late."""
_DOUBT = "But steps stand after it: it may not be what ended the job."
_PRINTED = "But a library printed it itself, and may have gone on until the job was ended."
_GENERAL = 8
"""Rules of last lines up to this priority know errors in general, and not what is wrong."""
_PASSES_ON = re.compile(r"\b(?i:error|failed|crashed|exception)\b")
_SAYS = re.compile(r": +(?:(?:\w+\.){0,8}[A-Z]\w{0,60}(?:Error|Exception): )?| - |\] +")
"""What stands between such a word, up to so many characters behind it, and the message."""
_SAYS_WITHIN = 100
_CLASSES = ("RuntimeError", "ValueError", "TypeError", "AttributeError", "IndexError")
"""Classes of exceptions that tell nothing themselves, so that a rule knows the message."""
_NO_MODULE = ("No module named ", "ModuleNotFoundError")
_LAST_LINES = "It stands among the last lines of the log, so that it may be what ended the job."
_LONGEST_NOTE = 160
_RANK = re.compile(r"\b[Rr]ank (\d{1,6})\b(?!-)")
_FRAME = 4
"""Lines of the last frame of a traceback: file, source, and marks below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Lines of a log that show it."""

    file: Path
    line: int
    """From 1; 0 for a fact of the run folder, which stands in no log."""
    text: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that happened."""

    rule: str
    role: Role
    title: str
    says: str
    do: str
    advice: str | None
    """The hook of the engine that has more to say, such as `estimate`."""
    node: str | None
    rank: int | None
    hardware: bool = False
    """Whether it ended what ran on the node, and was a fault of the node's hardware."""
    local: str = ""
    """The local rank, where no more is known; empty where not even that is."""
    by_others: bool = False
    """Whether `nodes` and `ranks` are of those who tell of this place."""
    time: float | None
    """Seconds since the epoch, by the clock of whoever printed it."""
    nodes: tuple[str, ...]
    ranks: tuple[int, ...]
    """Everybody to whom it happened."""
    count: int
    """Lines that say so."""
    evidence: Evidence

    @property
    def where(self) -> str:
        """The node and the rank in words; empty where neither is known."""
        words = [self.node] if self.node else []
        if self.rank is not None:
            words += [f"rank {self.rank}"]
        elif self.local:
            words += [f"local rank {self.local}"]
        return " ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What came of reading the logs of a job."""

    cause: Finding | None
    others: tuple[Finding, ...]
    """What else was found, in the order of time where that is known."""
    notes: tuple[str, ...]
    files: int
    bytes: int
    step: int | None = None
    """The last step that the first log to tell of any tells of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of a job beside its logs; of files alone, nothing."""

    job: str = "JOB"
    """What to type for it."""
    folder: Path = Path()
    """Its run folder, from which the facts are."""
    facts: tuple[Fact, ...] = ()
    first: Place | None = None
    """Where it failed first; without it, torchrun's reports tell."""
    processes: int | None = None
    """How many ranks it has at most: a number in front of a line that is not below is of none."""
    succeeded: bool = False
    """Then nothing counts but what does not end a job."""
    failed: bool = False
    """Then what the training went on after is better than nothing."""


def diagnose(
    rules: Sequence[Rule], sources: Sequence[Source], known: Known | None = None
) -> Diagnosis:
    """Read the logs and return the cause of the failure, if there is one."""
    known = known or Known()
    scanned = scan_all(rules, [source.path for source in sources], known.processes)
    found = list(zip(sources, scanned, strict=True))
    by_name = {rule.id: rule for rule in rules}
    events = _without_untrue(events_of(by_name, found, known.facts, folder=known.folder))
    if known.succeeded:
        events = tuple(event for event in events if event.rule.silent)
    elif not known.failed:
        events = tuple(event for event in events if not event.handled)
    roots = _roots(found)
    events = tuple(event for event in events if not _ended_later(event, roots))
    first = known.first or _told_by_torchrun(roots)
    events = tuple(_of_first(event, first) for event in events)
    root = _of_the_accused(root_of(events, first), events)
    first = first or _told_by_reports(events)
    root = root and _of_its_node(root, events)
    if root is not None and first is not None:
        others = (e for e in events if e.rule.role is not Role.CONSEQUENCE and e.hit != root.hit)
        sole = (root.rule.parting or raised_in(root.hit) != ()) and not any(others)
        root = ranked(root, first, sole=sole or root.rule.id in REPORTS)
    root = root and _placed(root, events)
    cause = _cause(_recognized(root, rules), events, known.job) if root is not None else None
    return Diagnosis(
        cause=cause,
        others=tuple(_others(root, events, known.job)) if root is not None else (),
        notes=tuple(_notes(scanned)),
        files=sum(scanned.problem is None for _, scanned in found),
        bytes=sum(scanned.size for _, scanned in found),
        step=next((at for at in map(_last_step, scanned[:_MOST_ASKED]) if at is not None), None),
    )


def _without_untrue(events: tuple[Event, ...]) -> tuple[Event, ...]:
    """Leave out what two rules tell of that another line knows to have been otherwise.

    Slurm and srun tell of the end by a limit in the same words as of a cancelled job; only the
    state of the job itself says that it was cancelled after an earlier attempt had come to its
    limit. Ranks in different collectives get nothing from each other over the best of links.
    """
    found = {event.rule.id for event in events}
    told = any(event.rule.id == _CANCELLED and not event.hit.line for event in events)
    if _BEFORE in found or (_LIMIT in found and not told):
        return tuple(event for event in events if event.rule.id != _CANCELLED)
    if any(event.rule.id in _MISMATCHES and event.hit.line for event in events):
        return tuple(event for event in events if event.rule.id != _EMPTY)
    return events


def _last_step(scanned: Scanned) -> int | None:
    """Return the last step of the last attempt whose output is in a log; None where it has none."""
    end = read_part(scanned.file, scanned.excerpts, max(0, scanned.size - WINDOW), WINDOW)
    for raw in reversed(end.splitlines()):
        text = raw.decode(errors="replace")
        if RESTART.match(text):
            return None
        if (step := throughput.step_of(text)) is not None:
            return step
    return None


def _recognized(root: Event, rules: Iterable[Rule]) -> Event:
    """Return last words that pass on the message of an exception as a find of the rule that has it.

    Scripts catch what ends them, and print it without its class: `Training failed: CUDA out of`.
    """
    general = root.rule.closing and root.hit.line and root.rule.priority <= _GENERAL
    said = root.hit.text if general else root.groups.get("reason", "")
    word = _PASSES_ON.search(said)
    if word is None:
        return root
    ends = _SAYS.finditer(said, word.start(), word.end() + _SAYS_WITHIN)
    messages = [said[end.end() :] for end in ends]
    causes = [one for one in rules if one.role is Role.CAUSE and one.by_line and not one.generic]
    for message, kind in product(messages, (*_CLASSES, _NO_MODULE[1])):
        if kind == _NO_MODULE[1] and not message.startswith(_NO_MODULE[0]):
            continue
        text = f"{kind}: {message}"
        found = [(one, match) for one in causes if (match := one.match(text)) is not None]
        if found:
            rule, match = max(found, key=lambda pair: pair[0].priority)
            groups = {name: told for name, told in match.groupdict().items() if told}
            rule = replace(rule, says=f"{rule.says} {_LAST_LINES}", hardware=False)
            return replace(root, rule=rule, groups=groups)
    return root


def _cause(root: Event, events: Sequence[Event], job: str) -> Finding:
    """Return what is told of the root; the place is that of whom the others wait for."""
    finding = _doubted(root, _finding(root, events, job))
    if told := also_short(root, events):
        finding = replace(finding, says=f"{finding.says} {told}")
    ended = not root.rule.outside and any(event.rule.outside for event in events)
    if ended and printed_by_library(root.hit):
        finding = replace(finding, says=f"{finding.says} {_PRINTED}")
    of = awaited(root, events)
    if of is None:
        return finding
    says = f"{finding.says} {of.says}"
    if of.node is None and of.rank is None:
        return replace(finding, says=says)
    return replace(finding, says=says, node=of.node, rank=of.rank, local="", by_others=True)


def _doubted(root: Event, finding: Finding) -> Finding:
    """Say of a cause that it may be none, where whoever printed it took steps after it.

    Whom a scheduler ends it leaves some seconds, in which there may be steps.
    """
    if root.rule.outside and not root.handled:
        return finding
    if root.rule.role is Role.CONSEQUENCE or not root.hit.line:
        return finding
    if not root.handled and steps_after(root.hit).get(root.rank, 0) < _STEPS:
        return finding
    return replace(finding, says=f"{finding.says} {_DOUBT}", hardware=False)


def _of_first(event: Event, first: Place | None) -> Event:
    """Give what may be the root the rank that failed first; consequences are of any rank."""
    if first is None or event.rule.role is Role.CONSEQUENCE:
        return event
    return ranked(event, first)


def _notes(scanned: Iterable[Scanned]) -> Iterator[str]:
    """Yield what was not read and why, files in the same trouble together; and earlier runs."""
    alike: dict[str, list[str]] = {}
    for one in scanned:
        why = one.problem or (one.damage and f"{one.damage}; read up to there")
        if why:
            alike.setdefault(why, []).append(str(one.file))
        if one.earlier is not None:
            told = shorten(one.earlier.text, _LONGEST_NOTE, placeholder=" ...")
            often = f" ({one.earlier.count} lines like it)" if one.earlier.count > 1 else ""
            at = f"{one.file}:{one.earlier.line}"
            yield f"{at}: an earlier run in it had ended with: {told}{often}"
    for why, names in alike.items():
        yield f"{some_of(names, _MOST_NAMED)}: {why}"


def _roots(found: Sequence[tuple[Source, Scanned]]) -> list[tuple[Root, Source]]:
    """Return which ranks torchrun saw fail first, and not those that it ended itself."""
    roots = [
        (root, source)
        for source, scanned in found
        for offset in scanned.roots
        if (root := root_at(scanned.file, scanned.excerpts, offset)) is not None
    ]
    return [(root, source) for root, source in roots if root.exit_code != _SIGTERM]


def _ended_later(event: Event, roots: Sequence[tuple[Root, Source]]) -> bool:
    """Tell whether torchrun reports a signal with which it ended a rank after another's failure."""
    if _SIGNALLED not in event.hit.text or not event.hit.line:
        return False
    began = min(map(_moment, (root for root, _ in roots)), default=inf)
    ends = [reported_at(hit) for hit in (event.hit, at_last(event.hit))]
    return all(end is not None and end > began + MOMENT_S for end in ends)


def _told_by_torchrun(roots: Sequence[tuple[Root, Source]]) -> Place | None:
    if not roots:
        return None
    root, source = min(roots, key=lambda one: _moment(one[0]))
    alone = root.alone and len(roots) == 1
    return Place(
        node=source.node or root.node, rank=root.rank, alone=alone, ended=_words_of_end(root)
    )


def _words_of_end(root: Root) -> tuple[str, ...]:
    """Return what torchrun prints of a rank that a signal ended: as it sees it, and at last."""
    if root.exit_code is None or root.exit_code >= 0:
        return ()
    seen = f"failed (exitcode: {root.exit_code}) local_rank: {root.local}"
    return f"{seen} " if root.local else seen, f"traceback : Signal {-root.exit_code} ("


def _told_by_reports(events: Sequence[Event]) -> Place | None:
    """Return the rank that mpirun, srun or another launcher says has failed, if it is one alone.

    A task of Slurm in which torchrun starts the ranks of a node is none of these ranks.
    """
    rules = {event.rule.id for event in events}
    counts = _NAMING - {_SLURM_REPORT} if rules & _COUNTING_OWN else _NAMING
    naming = [event for event in events if event.rule.id in counts]
    if any(_TASKS.search(event.hit.text) for event in naming):
        return None
    named = {(event.rank, event.groups.get("local", "")) for event in naming} - {(None, "")}
    if len(named) != 1:
        return None
    rank, local = named.pop()
    return Place(rank=rank, local=local, alone=True)


def _of_the_accused(root: Event | None, events: Sequence[Event]) -> Event | None:
    """Return the exception of the rank that the others waited for, where it has printed one."""
    if root is None or root.rank is None or root.rule.id not in _WAITING:
        return root
    raised = (e for e in events if e.generic and e.rank == root.rank and raised_in(e.hit))
    return next((event for event in raised if not event.handled), root)


def _of_its_node(root: Event, events: Iterable[Event]) -> Event:
    """Give what tells of too little memory the one node of which another line tells the same."""
    if root.rule.id not in MEMORY or root.node is not None or root.rank is not None:
        return root
    nodes = {event.node for event in events if event.rule.id in MEMORY} - {None}
    return replace(root, node=nodes.pop()) if len(nodes) == 1 else root


def _placed(root: Event, events: Sequence[Event]) -> Event:
    """Give the root the node on which a launcher has seen its rank end, or Spark its task fail.

    Where no line says the rank, it is the node of all that Slurm tells of the ends of tasks; of a
    job that hung, that is the one that noticed it.
    """
    if root.node is not None or root.rule.id == _HUNG:
        return root
    if root.rank is None:
        own = root.hit.text.startswith(_OF_SLURM) and root.rule.role is not Role.CAUSE
        tells = {_OF_SPARK} if own else {_OF_SPARK, _SLURM_REPORT}
        nodes = {event.node for event in events if event.rule.id in tells} - {None}
    elif {event.rule.id for event in events} & _COUNTING_OWN:
        return root
    else:
        nodes = {event.node for event in events if event.rank == root.rank} - {None}
    return replace(root, node=nodes.pop()) if len(nodes) == 1 else root


def _moment(root: Root) -> float:
    return root.time if root.time is not None else inf


def _others(root: Event, events: Sequence[Event], job: str) -> Iterable[Finding]:
    of_rule: dict[str, list[Event]] = {}
    stops = [event.hit for event in events if event.rule.id == "torchrun-stopped"]
    for event in events:
        follows = event.rule.id == "torchrun-report" and any(
            _is_before(stop, event.hit) for stop in stops
        )  # no rank had failed
        if event.rule is not root.rule and not follows and not _says_it_again(event, root):
            of_rule.setdefault(event.rule.id, []).append(event)
    order = list(Role)
    for same in sorted(of_rule.values(), key=lambda one: order.index(one[0].rule.role)):
        yield _finding(min(same, key=_when), same, job)


def _says_it_again(event: Event, root: Event) -> bool:
    """Tell whether an exception or an exit code is what the root itself has led to.

    An end from outside leads to nothing that was printed before it.
    """
    if root.rule.outside and event.rule.closing and _is_before(event.hit, root.hit):
        return False
    return event.generic and (event.node, event.rank) == (root.node, root.rank)


def _is_before(one: Hit, other: Hit) -> bool:
    return one.file == other.file and 0 < one.line < other.line


def _when(event: Event) -> tuple[float, str, int]:
    time = event.time if event.time is not None else inf
    return time, str(event.hit.file), event.hit.offset


def _finding(event: Event, events: Sequence[Event], job: str) -> Finding:
    rule, hit = event.rule, event.hit
    around = replace(hit, rank=hit.before)
    of_launcher = rule.role is Role.CONSEQUENCE
    same = [other for other in events if other.rule is rule] or [event]
    alike = [other for other in same if not rule.closing or _alike(other, event)]
    text = unwrapped(around) if hit.line else hit.text
    whole = rule.match(text) if text != hit.text else None
    held = held_by_others(text)
    asks = bool(hit.line) and "{place}" in rule.says
    at = "" if asks or of_launcher or rule.id in REPORTS else _at(hit)
    known: Mapping[str, str] = {
        "job": job,
        "node": event.node or "",
        "rank": "" if event.rank is None else str(event.rank),
        **(of_traceback(hit) if asks else {}),
        **(words_around(around) if rule.asks_around and hit.line else {}),
        **event.groups,
        **({name: text for name, text in whole.groupdict().items() if text} if whole else {}),
        **({"below": ""} if _TOLD & event.groups.keys() and not message_below(hit) else {}),
    }
    title = rule.fill(rule.title, known)
    do = rule.do
    told_of = f"{text} {held} {known.get('below', '')}"
    for of, said in _asking(rule, told_of, title) if hit.line else ():
        step, told = next_step(hit, said, of)
        if step and of == "class":
            known = {**known, "look": known.get("look") or rule.fill(step, told)}
        elif step:
            do, known = step, {**known, **told}
            break
    return Finding(
        rule=rule.id,
        role=rule.role,
        title=title,
        says=f"{rule.fill(rule.says, known)}{held}{at}",
        do=rule.fill(do, known),
        advice=None if held else rule.advice,
        node=event.node,
        rank=event.rank,
        hardware=rule.hardware,
        local=hit.local or event.groups.get("local", ""),
        time=event.time if event.timed else None,
        nodes=tuple(dict.fromkeys(other.node for other in same if other.node)),
        ranks=tuple(sorted({other.rank for other in same if other.rank is not None}))
        or (_ranks_in(rule.fill(rule.says, known)) if rule.id in _MISMATCHES else ()),
        count=sum(other.hit.count for other in alike),
        evidence=Evidence(
            file=hit.file,
            line=hit.line,
            text=hit.text,
            before=_before(around, max(rule.before, _LAST_WORDS * of_launcher)) if hit.line else (),
            after=lines_after(around, rule.after) if hit.line and rule.after else (),
        ),
    )


def _alike(one: Event, other: Event) -> bool:
    return form_of(one.hit.text) == form_of(other.hit.text)


def _ranks_in(says: str) -> tuple[int, ...]:
    return tuple(sorted({int(match[1]) for match in _RANK.finditer(says)}))


def _asking(rule: Rule, said: str, title: str) -> Iterator[tuple[str, str]]:
    """Yield the sorts of next steps that are in question for a rule, and the words to look at."""
    yield rule.id, said
    if rule.generic:
        yield "", said
    if rule.id in _UNKNOWING:
        yield "unknown", f"{said} {title}"
        yield "class", said


def _at(hit: Hit) -> str:
    """Say where an exception was raised of which the rule itself does not tell it."""
    told = of_traceback(hit) if hit.line else {}
    return f" It came up {told['place'].strip('()')}." if told.get("own") else ""


def _before(hit: Hit, count: int) -> tuple[str, ...]:
    """Return the lines before one; of the last of a traceback, at least the place in the code."""
    lines = lines_before(hit, max(count, _FRAME))
    frame = next((n for n, line in enumerate(reversed(lines), 1) if line.startswith(_FILE)), 0)
    of_frame = all(line.startswith("    ") for line in lines[len(lines) - frame + 1 :])
    wanted = max(count, frame if of_frame else 0)
    return lines[-wanted:] if wanted else ()


def everybody(finding: Finding) -> str:
    """Return to whom it happened, folded: ranks where they are known on all nodes, else nodes."""
    if len(finding.ranks) >= max(len(finding.nodes), 1):
        ranks = ranks_in_words(finding.ranks)  # of srun they are its tasks, which may have many
        return ranks.replace("rank", "task") if finding.rule == _SLURM_REPORT else ranks
    return hostlist.fold_set(finding.nodes) if finding.nodes else ""
