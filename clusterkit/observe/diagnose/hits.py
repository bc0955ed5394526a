"""What has been found in one file so far: bounded, however often something is found."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

from clusterkit.observe.diagnose.lines import (
    IGNORED,
    TRACEBACK,
    Learnt,
    Line,
    form_of,
    ignored,
    rank_in,
    read_line,
)
from clusterkit.observe.diagnose.open_log import Excerpts
from clusterkit.observe.diagnose.rules import Compare, Rule

_MOST_HITS = 4096
"""Different finds that are kept of one file; what repeats itself is one."""
_MOST_FORMS = 1 << 14
_MOST_MESSAGES = 16
"""Exceptions of one rule in a file that are told apart."""
_LONGEST_MESSAGE = 120
_OFTEN = 5
_SPREAD = 300
_MOST_CLOSING = 64
_CLOSING = 60
"""Lines at the end of a file among which an error that no rule knows may be what ended it."""
_MOST_ENDINGS = 64
_MOST_TRACEBACKS = 64
_LONGEST_FORM = 512
_TRACEBACK = 1 << 14
"""Bytes before an exception within which its traceback begins."""
_OF_JAVA = re.compile(r"(?:java|javax|org|com|io|scala|sun)(?:\.\w+){1,12}(?:Exception|Error)\b")
_LOGGED = re.compile(rb"\bWARN\b|\bINFO\b.*(?i:exception|error|fail)|\bShutdownHookManager\b")
"""What stands before an exception that was only logged, or that came up as all was over."""
_MOST_IGNORED = 1 << 13
"""Exceptions of one file that Python ignored, after which all that are near others are some."""

RESTART = re.compile(r"^--- clusterkit: restart (?P<attempt>\d{1,7}) on (?P<node>\S+?),")
"""The line that the worker writes before what a later attempt prints."""
ROOT = "Root Cause (first observed failure)"
"""The line before torchrun's word about the rank that failed first."""
MARKS = ("--- clusterkit: restart ", ROOT, TRACEBACK)
ENDS = "*** JOB "
_FIRST = ("STARTUP_MSG: Starting ", "= Modified FLAGS detected =")
"""What a program prints before all else: what stands before is of an earlier run."""
BEGINNINGS = (
    *_FIRST,
    "init nccl context nranks: ",
    "Started a local Ray instance",
    "SparkContext: Running Spark version ",
)
"""What a program prints once as it starts: where it stands again, another run begins."""
_ENDED = re.compile(r"\*\*\* JOB (\d+) ON \S+ CANCELLED AT ")
"""Slurm's word for a job that it has ended: a file to which more of them wrote has one of each."""
_BY_HAND = "nohup: ignoring input"
_OF_WANDB = "wandb: Tracking run with wandb version"
STARTS = (
    _BY_HAND,
    "Setting OMP_NUM_THREADS environment variable for each process",
    "The following values were not passed to `accelerate launch`",
    ":main] cmd = ",
    _OF_WANDB,
)
"""What a launcher prints once, before all else: torchrun, accelerate, DeepSpeed, a shell; and what
follows the report of one only as another run begins."""
STARTUPS = (
    *("oneDNN custom operations are on", "cpu_feature_guard.cc", "Namespace(", "MASTER_PORT="),
    _OF_WANDB,
)
"""What each process prints once as it starts: TensorFlow, scripts of their arguments, wandb."""
_MOST_STARTUPS = 256
REPORTS = frozenset(
    {"torchrun-report", "deepspeed-report", "launcher-report", "slurm-report", "hangup"}
)
"""Rules of lines by which a launcher tells that it has ended its ranks."""
_WELL = ('"key": "run_stop"', '"status": "success"')
"""mlperf_logging: the run as a whole has reached its goal."""
_BEGUN = '"key": "run_start"'
_PROGRAM = (
    *("'train_runtime':", "Trainer.fit` stopped", "orker group successfully finished"),
    *("All workers finished successfully", "# Out of bounds values : 0 OK"),
)
"""Texts of an ending that a library or a benchmark prints, and no script whatever has happened."""
_SAID = re.compile(
    r"'train_runtime':|`Trainer\.fit` stopped: `max_"
    r"|\b[Tt]raining (?:is |has been |has )?(?:completed?|done|finished)\b(?! (?:epoch|iter|step))"
    r"|^\d+ epochs completed in \d"
    r"|worker group successfully finished|All workers finished successfully"
    r"|^# Out of bounds values : 0 OK"
)
"""Transformers, Lightning, YOLO, torchrun, nccl-tests and scripts say that a process is through."""
ENDINGS = (
    *('"key": "run_stop"', _BEGUN, "'train_runtime':", "Trainer.fit` stopped", "raining complete"),
    *(
        "raining done",
        "raining finished",
        "inished Training",
        "raining is ",
        "raining has ",
        "finished successfully",
    ),
    "group successfully finished",
    "epochs completed in ",
    "# Out of bounds values : 0 OK",
)
"""Texts without which no line tells that all went well."""


@dataclass(frozen=True, slots=True)
class Ending:
    """A line that says that the training has come to its end."""

    offset: int
    """Bytes before it."""
    whole: bool
    """Whether it says so of the whole job."""
    program: bool = False
    """Whether the program says so that was at work: a script may, whatever has happened."""


@dataclass(slots=True, kw_only=True)
class Hit:
    """The first line of its kind (rules, node, rank) in a file, and how often there was one."""

    rules: tuple[str, ...]
    """Names of the rules that match, the highest priority first."""
    file: Path
    line: int
    """From 1."""
    offset: int
    """Bytes of the text before the line."""
    text: str
    stamp: str = ""
    """The time that a tool put before the line."""
    local: str = ""
    """The local rank, where the line tells no more."""
    node: str | None = None
    rank: int | None = None
    before: int | None = None
    """The rank that stands before the line, and before those around it, if it is of the same."""
    value: tuple[str, str, str] | None = None
    """Of a rule that compares: the groups `what`, `value` and `number`."""
    count: int = 1
    last: int = 0
    """Bytes before the last line like it."""
    last_line: int = 0
    """From 1."""
    learnt: re.Pattern[str] | None = None
    """What stands before its text, where only the log itself tells."""
    excerpts: Excerpts | None = None
    """What stands around it, where it cannot be read again from the file."""


@dataclass(slots=True, kw_only=True)
class Scanned:
    """What was found in one file."""

    file: Path
    size: int = 0
    hits: tuple[Hit, ...] = ()
    roots: tuple[int, ...] = ()
    """Where torchrun tells which rank failed first: bytes before that line."""
    endings: tuple[Ending, ...] = ()
    tracebacks: tuple[Hit, ...] = ()
    """The head of the last traceback of each rank."""
    startups: tuple[tuple[str, int], ...] = ()
    """What tells that a program has started, and how many bytes stand before it."""
    excerpts: Excerpts | None = None
    """As of its hits, and around the roots and endings."""
    problem: str | None = None
    """Why it could not be read."""
    damage: str | None = None
    """Why no more of it could be read."""
    earlier: Hit | None = None
    """What an earlier run in the same file had ended with."""


@dataclass(slots=True)
class Tally:
    """How many lines of a sort were read, and found, and the last find; and how many ignored."""

    read: int = 0
    found: int = 0
    ignored: int = 0
    """Not counted among those that were read."""
    last: Hit | None = None
    since: int = 0
    """The number of the first line that was found."""

    def often(self, number: int) -> bool:
        """Tell whether a program had printed it often before a line, and gone on in between."""
        return self.found >= _OFTEN and number - self.since >= _SPREAD


@dataclass(slots=True)
class _Sequence:
    lines: deque[Hit] = field(default_factory=deque)
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """A reduced form, and the rules that may match its lines; None stands for our own marks."""

    form: bytes
    rules: tuple[Rule | None, ...]


class Finds:
    """What has been found in one file so far."""

    def __init__(self, path: Path, processes: int | None = None) -> None:
        self.path = path
        self.processes = processes
        """How many ranks there are; a number that is not below it is none of theirs."""
        self.steps = False
        """Whether numbers before its lines are of steps, and not of ranks."""
        self.size = 0
        self.lines = 0
        self.recent: deque[tuple[int, bytes]] = deque(maxlen=2)
        """The last parts of the text, each with how many bytes stand before it."""
        self._forms: dict[bytes, Tally] = {}
        self._of_rules: dict[tuple[Rule | None, ...], Tally] = {}
        self._hits: dict[tuple[object, ...], Hit] = {}
        self._sequences: dict[tuple[object, ...], _Sequence] = {}
        self._tracebacks: dict[tuple[str | None, int | None], Hit] = {}
        self._closing: deque[Hit] = deque(maxlen=_MOST_CLOSING)
        self.learnt = Learnt()
        self._messages: dict[Rule, set[str]] = {}
        self._roots: list[int] = []
        self._endings: deque[Ending] = deque(maxlen=_MOST_ENDINGS)
        self._starts: set[str] = set()
        self._ignored = 0
        self.heads: tuple[bytes, ...] = ()
        """Lines of the beginning that stand there again only as the program is started again."""
        self.startups: deque[tuple[str, int]] = deque(maxlen=_MOST_STARTUPS)
        self._earlier: Hit | None = None
        self._job: str | None = None
        """The last that Slurm has ended."""
        self._end = inf
        """Bytes before its end, until something is found after that."""
        self._before: list[Hit] = []
        """What was found until then."""

    def scanned(self) -> Scanned:
        """Return what there is, at the end of the file."""
        closing = [hit for hit in self._closing if self.lines - hit.line <= _CLOSING]
        return Scanned(
            file=self.path,
            size=self.size,
            hits=(*self._before, *self._hits.values(), *closing),
            roots=tuple(self._roots),
            endings=tuple(self._endings),
            tracebacks=tuple(self._tracebacks.values()),
            startups=tuple(sorted(self.startups, key=lambda one: one[1])),
            earlier=self._earlier,
        )

    def tallies(self, seen: Seen) -> tuple[Tally, Tally]:
        """Return how often lines of this form, and of any form that these rules want, were read."""
        if len(self._forms) > _MOST_FORMS:
            self._forms.clear()
        alike = self._forms.setdefault(seen.form[:_LONGEST_FORM], Tally())
        return alike, self._of_rules.setdefault(seen.rules, Tally())

    def rank_of(self, line: Line) -> int | None:
        """Return the rank that a line names, if the number before it can be one."""
        return None if self._beyond(line.rank) or (line.bare and self.steps) else line.rank

    def _beyond(self, rank: int | None) -> bool:
        return rank is not None and self.processes is not None and rank >= self.processes

    def mark(self, text: str, offset: int) -> None:
        """Take note of where an attempt begins, or of what torchrun tells."""
        if TRACEBACK in text:
            self.learnt.learn(text)
        elif text.startswith(ROOT):
            self._roots = [*self._roots[-7:], offset]
        elif RESTART.match(text):
            self._forget()
        elif self._appended(text, offset):
            self._ended_run()
            self._forget()
        elif (job := _ENDED.search(text)) is not None:
            self._set_apart(offset)
            if self._job not in {None, job[1]}:
                self._before.clear()
            self._job, self._end = job[1], offset
        elif _BEGUN in text:
            self._endings.clear()
        elif (well := all(words in text for words in _WELL)) or _SAID.search(text):
            self._endings.append(Ending(offset, well, any(words in text for words in _PROGRAM)))
        elif (words := next((words for words in STARTUPS if words in text), None)) is not None:
            self.startups.append((words, offset))

    def started(self, chunk: bytes, offset: int) -> None:
        """Take note of where lines of the beginning stand in a part of the text."""
        for line in self.heads:
            at = chunk.find(line)
            while at >= 0 and len(self.startups) < _MOST_STARTUPS:
                self.startups.append((line.decode(errors="replace"), offset + at))
                at = chunk.find(line, at + len(line))

    def _ended_run(self) -> None:
        """Keep what the run that has ended had failed of; of runs that failed alike, how many."""
        found = tuple(reversed(self._hits.values()))
        told = (hit for hit in found if hit.rules[0] not in REPORTS)
        last = next(told, next(iter(found), None))
        if last is None:
            return
        if self._earlier is not None and self._earlier.rules == last.rules:
            last.count += self._earlier.count
        self._earlier = last

    def _forget(self) -> None:
        self._tracebacks.clear()
        for found in (self._hits, self._closing, self._sequences, self._roots, self._endings):
            found.clear()
        self._before.clear()
        self._forms.clear()
        self._of_rules.clear()

    def _set_apart(self, offset: int) -> None:
        """Keep what was found of a job that has ended apart from what comes after its end."""
        if offset > self._end:
            self._before = [*self._before, *self._hits.values()][-_MOST_HITS:]
            self._hits.clear()
            self._sequences.clear()
            self._end = inf

    def _appended(self, text: str, offset: int) -> bool:
        """Tell whether another run begins, after a launcher has ended the one before."""
        begun = next((words for words in BEGINNINGS if words in text), None)
        if begun is not None:
            again = begun in _FIRST or begun in self._starts
            self._starts.add(begun)
            return again
        start = next((words for words in STARTS if words in text), None)
        if start is None:
            return False
        again = start in self._starts or (start == _BY_HAND and offset > 0)
        self._starts.add(start)
        found = self._hits.values()
        if not again or not found:
            return False
        reported = any(REPORTS.intersection(hit.rules) for hit in found)
        return reported or (start == _BY_HAND and all(hit.rank is None for hit in found))

    def ignores(self, line: Line, offset: int, learnt: re.Pattern[str] | None) -> bool:
        """Tell whether a line ends a traceback of which Python says that it ends nothing else."""
        before = self._between(offset - _TRACEBACK, offset)
        if _OF_JAVA.match(line.text) and _LOGGED.search(before.rstrip().rpartition(b"\n")[2]):
            return True
        if not any(words in before for words in IGNORED):
            return False
        if self._ignored >= _MOST_IGNORED:
            return True
        place = (line.node, line.rank)
        raw = reversed(before.replace(b"\r", b"\n").split(b"\n"))
        lines = (read_line(one, learnt) for one in raw)
        found = ignored(line.text, (one.text for one in lines if (one.node, one.rank) == place))
        self._ignored += found and line.text != TRACEBACK
        return found

    def add(self, hit: Hit, rules: Sequence[Rule]) -> Hit | None:
        """Keep a hit, or count it where its kind is known; return the one that is kept."""
        if rules[0].ends:
            place = (hit.node, hit.rank)
            if len(self._tracebacks) < _MOST_TRACEBACKS or place in self._tracebacks:
                self._tracebacks[place] = hit
            return None
        self._set_apart(hit.offset)
        closing = tuple(rule for rule in rules if rule.closing)
        if closing and all(rule.closing or rule.conditional for rule in rules):
            last = replace(hit)
            self._closing.append(last)
            if len(closing) == len(rules):
                return last
        rules = [rule for rule in rules if not rule.closing]
        match = rules[0].match(hit.text)
        groups = match.groupdict() if match else {}
        hit.node = groups.get("node") or hit.node
        rank = rank_in(groups.get("rank") or "")
        hit.rank = hit.rank if rank is None else rank
        if self._beyond(hit.rank):
            hit.rank = None
        self._compared(hit, rules)
        ongoing = [rule for rule in rules if rule.times == 1 or self._lasts(rule, hit)]
        if not ongoing:
            return None
        hit.rules = tuple(rule.id for rule in ongoing)
        if rules[0].generic and hit.value is None:
            hit.value = self._said(rules[0], hit.text)
        run = sum(at < hit.offset for _, at in self.startups)
        key = (hit.rules, hit.node, hit.rank, hit.value, run)
        if key not in self._hits and len(self._hits) >= _MOST_HITS:
            key = (hit.rules, None, None, None, 0)
        kept = self._hits.setdefault(key, hit)
        if kept is not hit:
            kept.count += 1
            kept.last, kept.last_line = hit.last, hit.last_line
        return kept

    def _said(self, rule: Rule, text: str) -> tuple[str, str, str]:
        """Return what tells exceptions apart: one that was caught is not the one that ended all."""
        messages = self._messages.setdefault(rule, set())
        message = form_of(text)[:_LONGEST_MESSAGE]
        if len(messages) < _MOST_MESSAGES:
            messages.add(message)
        return (message if message in messages else "", "", "")

    def _compared(self, hit: Hit, rules: Sequence[Rule]) -> None:
        for rule in rules:
            if rule.compare is Compare.DIFFERS and (match := rule.match(hit.text)):
                groups = match.groupdict()
                what, value, number = (groups.get(n) or "" for n in ("what", "value", "number"))
                hit.value = (what, value, number)
                return

    def _lasts(self, rule: Rule, hit: Hit) -> bool:
        """Tell whether a sequence is whole; the first of its lines is then the hit's place."""
        key: tuple[object, ...] = (rule.id, hit.node, hit.rank)
        if key not in self._sequences and len(self._sequences) >= _MOST_HITS:
            return False
        sequence = self._sequences.setdefault(key, _Sequence())
        if sequence.whole:
            return True
        lines = sequence.lines
        if rule.resets and lines and self._reset(rule, lines[-1], hit):
            lines.clear()
        lines.append(hit)
        while hit.line - lines[0].line > rule.within or len(lines) > rule.times:
            lines.popleft()
        sequence.whole = len(lines) == rule.times
        if sequence.whole:
            first = lines[0]
            hit.line, hit.offset, hit.text = first.line, first.offset, first.text
            hit.stamp = first.stamp
            hit.count = rule.times
            lines.clear()
        return sequence.whole

    def _reset(self, rule: Rule, before: Hit, hit: Hit) -> bool:
        """Tell whether the same rank says between two hits that what they tell had passed."""
        if hit.line - before.line > rule.within:
            return True
        between = self._between(before.offset, hit.offset)
        lines = map(read_line, between.replace(b"\r", b"\n").split(b"\n")[1:])
        return any(self.rank_of(line) == hit.rank and rule.reset_by(line.text) for line in lines)

    def _between(self, start: int, end: int) -> bytes:
        """Return the text between two places, as far as it is a recent part."""
        return b"".join(
            part[max(0, start - begin) : max(0, end - begin)] for begin, part in self.recent
        )
