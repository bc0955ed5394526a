"""One raw line of a log: what it says, of which rank and node it is, and when it was printed.

Launchers and schedulers put prefixes before the lines of their processes; each form is named where
it is read. Times are local and of the clock that printed them, in seconds since the epoch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from clusterkit.core.text import ESCAPES

LONGEST = 4096
"""Bytes of a line that are looked at; the rest of a longer one is somebody's data."""

_NUMBERS = re.compile(r"[0-9.]+")
TRACEBACK = "Traceback (most recent call last):"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]+")
_TRACE = (
    r"(?=\[[Rr]ank:? ?\d|Traceback \(most|  File \"|    |"
    r"(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception)(?::|$))"
)
"""What only a process itself prints: behind it a word that may be one of a sentence is a prefix."""
_AFTER_BAR = (
    rf"(?:{_TRACE}|(?=(?:Killed|Terminated|Aborted|Segmentation fault)\b|\[rank: \d"
    r"|slurmstepd[\w.-]*: ))"
)
"""What a shell or a framework prints of the end of a process, whose bar has no end of line."""
_NOT_TENSORS = r"(?!\[[A-Za-z][^\s,\[\]]*+(?:, [^\s,\[\]]++)*+(?: \.\.\.)?\]$)"
"""Horovod lists the tensors for which it waits behind the rank that has not given them."""
_SPACE = r"(?: (?! File \"| {3}\S))?"
"""A space that a launcher puts behind its prefix, and none of those of a traceback."""
_HOST = r"[a-z][a-z0-9.-]{0,62}|\d{1,3}(?:\.\d{1,3}){3}"
_PREFIXES = tuple(
    re.compile(text)
    for text in (
        r"\[[Rr]ank:? ?(?P<rank>\d{1,6})\]:? ?",  # PyTorch
        rf"\[\d+,(?P<rank>\d{{1,6}})\](?:<std(?:out|err)>)?:{_SPACE}",  # mpirun --tag-output
        rf"\[(?P<rank>\d{{1,6}})\](?:<std(?:out|err)>)?:{_SPACE}",  # horovodrun
        r"\[(?P<rank>\d{1,6})\](?: (?=\S)|(?=PETSC ERROR:))",
        # Determined
        r"(?:<\w*> +)?\[[^\[\]]{8,40}\] [\w.-]{1,63} \[rank=(?P<rank>\d{1,6})\] \|\| ?",
        rf" {{0,5}}(?P<rank>\d{{1,6}}): {_NOT_TENSORS}",  # srun --label
        rf"(?P<node>(?:\d{{1,3}}\.){{3}}\d{{1,3}}) \[(?P<rank>\d{{1,6}})\]{_SPACE}",  # torch_xla
        r"\[node-\d{1,6} (?P<node>[\w.:-]{1,63})\] ",  # clusterkit logs, where it knows the host
        r"\[(?P<node>node-\d{1,6})\] ",
        r"\((?:\w[\w.<>]* )?pid=(?:\d+|runtime_env)(?:, ip=(?P<node>[\w.:-]+))?\) ?",  # Ray
        r"\[(?:default|trainer|worker)(?P<local>\d{0,4})(?:\|\d*)?\]:",  # torchrun --tee
        rf"(?P<node>[a-z][\w.-]{{0,62}}\d) {{1,12}}\| {_TRACE}",  # docker compose
        rf"(?:[\w.-]{{1,62}}/\d{{1,6}} |\[?std(?:out|err)\]?:? ){_TRACE}",  # torchx, Dask
        r"[\w.-]{1,62}/\d{1,6} (?=\[(?:default|trainer|worker)\d{1,4}\]:)",  # torchx, of torchrun
        rf"\[(?P<node>[a-z][\w.-]{{0,40}}\d)\]: {_TRACE}",
        rf"(?:ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[\w.]{{1,60}}:\d+\] {_TRACE}",  # vLLM
        rf"[^\[\]]{{1,160}}\[[^\[\]]{{0,60}}(?:it/s|s/it)[^\[\]]{{0,999}}\] ?{_AFTER_BAR}",  # tqdm
        rf"(?!slurmstepd-)(?P<node>{_HOST}): (?=\S|  File \"|    \S)",  # pdsh
    )
)
_NO_NODE = re.compile(
    r"(?:batch|cpu|cuda|device|epoch|fold|gpu|iter|layer|level|local|phase|rank|stage|step)\d*$"
    r"|(?!localhost$)[^0-9]*$|.*\.(?:error|py|sh)$|enroot-\w+$|(?:i?python|perl|pypy|pip)[\d.]+$"
)
"""Words that stand before a colon as well, also of exceptions (cv2.error) and of scripts; a node's
name in front of a line has a number, or is `localhost` where DeepSpeed starts on it by pdsh."""
_MOST_PREFIXES = 4
_STEPD = re.compile(r"slurmstepd-(?P<node>[A-Za-z][\w.-]{0,62}): ")
_JSON = re.compile(
    r"\{(?:\"log\": ?\"(?P<log>(?:[^\"\\]|\\.)*+)\", ?\"stream\":"
    r"|(?>.{0,400}?\"(?:message|msg)\":) ?\"(?P<message>(?:[^\"\\]|\\.)*+)\")"
)
"""A line that Docker's json-file, or a logger that writes JSON, has put into an object."""
_SEVERE = re.compile(r"\"(?:level|level_?name|severity)\": ?\"(?i:error|critical|fatal)\"")
_BARE = re.compile(r" {0,5}\d{1,6}: |\[\d{1,6}\] ")
_NUMBERED = re.compile(rb"^(?: {0,5}(\d{1,6}): |\[(\d{1,6})\] )", re.MULTILINE)
_FEWEST_STEPS = 3
_CLOCK = (
    r"\[?(?:\d{4}-\d\d-\d\d[T ]|[A-Z][a-z]{2} [ \d]\d |\d\d/\d\d/\d\d )?"
    r"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z| ?[+-]\d\d:?\d\d)?\]?(?: std(?:out|err) [FP])?"
)
_DATED = re.compile(rf"{_CLOCK}(?= |$)")
_STAMP = re.compile(
    r"【\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[^【】]{0,16}】 ?|"
    r"(?:[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}(?=\[(?:\d+,)?\d{1,6}\]<std)|"
    rf"(?: {{0,4}}\| )?{_CLOCK}"
    r"(?: - [\w.]{1,40} - [A-Z]{4,8} -| [-|]|:)? +"
    r"(?:(?=\[(?:\d+,)?\d{1,6}\]<std(?:out|err)>:|\(\w{1,40} pid=\d"
    rf"|(?:\d{{1,3}}\.){{3}}\d{{1,3}} \[\d{{1,6}}\](?: |$))|{_TRACE}))"
)
"""A time that a tool put before the prefix of a rank: horovodrun, ts, kubectl, containerd, others.

Only before those that are nothing else, but for one in Chinese brackets: a number behind a time is
one of a process mostly.
"""
_NCCL = re.compile(r"(?:^|\] )(?P<node>[A-Za-z][\w.-]*):\d+:\d+ \[\d+\] ")
_OF_MPI = re.compile(
    r"(?:\[\d{5,12}\.\d+\] )?\[(?P<hydra>proxy(?::\d+:\d+)?@)?(?P<node>[A-Za-z][\w.-]{0,62}+)"
    r"(?(hydra)\]|(?::\d{2,10} {0,4}(?::\w+){0,2}\]|\](?=\[\[\d+,\d+\],\d)))"
)
"""What Open MPI, UCX and Hydra's proxies put before what they print themselves."""
_OF_SPARK = re.compile(r"\(TID \d+(?:\) \(|, )(?P<node>[\w.-]+)(?:,? executor \w+)?\): ")
"""The node of a task, as Spark names it where the task was lost."""
_NOT_OF_MPI = re.compile(rf"{_NO_NODE.pattern}|.*\.(?:cc?|cpp|cu|go|h|hpp|java|rs|scala|[fF]\d\d)$")
_TWICE = re.compile(
    r"(?P<kind>(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception))"
    r"(?P=kind): : (?P<said>.+)"
)
_FRAME = re.compile(r'File "[^"]{1,400}", line \d{1,7}, in \S')
"""A frame of Python whose two spaces were lost as a log was copied, or put through a logger."""
_SEE_ABOVE = " (see above for traceback):"
_OF_AGENT = re.compile(r"failed \(exitcode: -?\d{1,3}\) local_rank: ")
_RANK_INSIDE = re.compile(r"\[(?:PG [^][]{0,80}|[Rr]ank (\d{1,6}))\]")
"""A rank as PyTorch names it in what it says; one of a process group counts in that group alone."""

_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?"
)
_GLOG = re.compile(r"(?:^|[\[ ])[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?")
_SYSLOG = re.compile(r"(?:^|[\[ >])([A-Z][a-z]{2})  ?(\d{1,2}) (\d\d):(\d\d):(\d\d)\b")
_SPARK = re.compile(r"(?:^| )(\d\d)/(\d\d)/(\d\d) (\d\d):(\d\d):(\d\d)\b")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_YEARS = range(1970, 2200)
_RANK = re.compile(r"[0-9]{1,6}")
_STAMP_WITHIN = 120
"""Characters from the beginning of a line within which its time stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line without its prefixes."""

    text: str
    node: str | None = None
    rank: int | None = None
    before: int | None = None
    """The rank that a prefix names: the text may name another."""
    bare: bool = False
    """Whether the rank is no more than a number before the line, which may be one of a step."""
    stamp: str = ""
    """The time that a tool put before its prefixes."""
    local: str = ""
    """The local rank, where a prefix tells no more."""

    @property
    def dated(self) -> str:
        """The text with its time before it, where that is not in it."""
        return f"{self.stamp} {self.text}" if self.stamp else self.text


def rank_in(text: str) -> int | None:
    """Return the rank that a word is; None where it can be none."""
    return int(text) if _RANK.fullmatch(text) else None


_TIME = f"{_CLOCK} "
_MOST_LEARNT = 8
_LONGEST_LEARNT = 100
_HARMLESS = re.compile(r"(?i)warn|debug|retry|ignor")


class Learnt:
    """What else stands before the lines of a log, as it does before the head of a traceback."""

    def __init__(self) -> None:
        self._shapes: dict[str, None] = {}
        self.pattern: re.Pattern[str] | None = None

    def learn_times(self, head: bytes) -> None:
        """Take a time for a prefix where a tool put one before each line of a log's beginning."""
        lines = filter(None, map(clean, head.splitlines()))
        if _DATED.match(next(lines, "")) and all(map(_DATED.match, lines)):
            self._shapes[_TIME] = None
            self.pattern = re.compile(_TIME)

    def learn(self, text: str) -> None:
        """Take what is before a traceback's head for a prefix; its numbers differ by line."""
        prefix = re.split(r"\[[Rr]ank:? ?\d|Traceback \(", text, maxsplit=1)[0]
        shape = re.sub(r"[0-9]+", "[0-9]++", re.escape(prefix))
        if not 0 < len(prefix) <= _LONGEST_LEARNT or _HARMLESS.search(prefix):
            return
        if len(self._shapes) < _MOST_LEARNT and shape not in self._shapes:
            self._shapes[shape] = None
            shapes = sorted(self._shapes, key=lambda one: (one != _TIME, one), reverse=True)
            self.pattern = re.compile("|".join(shapes))


def form_of(text: str) -> str:
    """Return a text without its numbers: lines of one form differ in nothing else."""
    return _NUMBERS.sub("", text)


def read_line(raw: bytes, learnt: re.Pattern[str] | None = None) -> Line:
    """Return what a line says, and of whom its prefixes say it is."""
    text = clean(raw)
    if text.startswith("{"):
        text = _of_object(text)
    node: str | None = None
    rank: int | None = None
    bare = False
    stamp = local = ""
    for _ in range(_MOST_PREFIXES):
        if not stamp and (time := _STAMP.match(text)) is not None:
            stamp, text = time[0].strip(), text[time.end() :]
        match = next((m for prefix in _PREFIXES if (m := prefix.match(text))), None)
        if match is None and learnt is not None and (match := learnt.match(text)) is not None:
            learnt = None
            stamp = stamp or match[0].strip()
        groups = match.groupdict() if match is not None else {}
        if match is None or _NO_NODE.match(groups.get("node") or "n0"):
            break
        if rank is not None and _BARE.match(match[0]):
            break  # `[0]<stderr>:1: [w]` tells of another rank
        node = groups.get("node") or node
        local = groups.get("local") or local
        if groups.get("rank"):
            rank, bare = int(groups["rank"]), _BARE.match(match[0]) is not None
        text = text[match.end() :]
    if (daemon := _STEPD.match(text)) is not None:
        node, text = daemon["node"], "slurmstepd: " + text[daemon.end() :]
    if text.startswith("slurmstepd: "):
        rank = None  # of the node, in whichever task's output srun put it
    before = rank
    node, rank = _named_inside(text, node, rank)
    text = _once(f"  {text}" if _FRAME.match(text) else text)
    return Line(text=text, node=node, rank=rank, before=before, bare=bare, stamp=stamp, local=local)


def _once(text: str) -> str:
    """Return the end of a traceback as one process of today prints it.

    Two print theirs at once, and into each other; TensorFlow 1 puts a hint into it.
    """
    text = text.replace(_SEE_ABOVE, ":", 1)
    match = _TWICE.match(text)
    if match is None:
        return text
    said = match["said"]
    half = len(said) // 2
    return f"{match['kind']}: {said[:half]}" if said[:half] == said[half:] else text


def _named_inside(text: str, node: str | None, rank: int | None) -> tuple[str | None, int | None]:
    """Return the node and the rank that a line without its prefixes names itself."""
    if of_agent(text):
        rank = None
    inside = _NCCL.search(text, 0, _STAMP_WITHIN) or _OF_MPI.match(text)
    if (spark := _OF_SPARK.search(text, 0, _STAMP_WITHIN + LONGEST // 8)) is not None:
        node = spark["node"]
    elif inside is not None and (inside.re is _NCCL or not _NOT_OF_MPI.match(inside["node"])):
        node = inside["node"]
    if rank is None and (named := _RANK_INSIDE.search(text)) is not None and named[1]:
        rank = int(named[1])
    return node, rank


def of_agent(text: str) -> bool:
    """Tell whether torchrun tells of a rank's end: what stands before it is of the task it is."""
    return _OF_AGENT.search(text) is not None


def _of_object(text: str) -> str:
    match = _JSON.match(text)
    if match is None or (match["log"] is None and not _SEVERE.search(text)):
        return text
    try:
        said = str(json.loads(f'"{match["log"] or match["message"] or ""}"', strict=False))
    except ValueError:
        return text
    lines = [_CONTROL.sub(" ", line) for line in said.splitlines()] or [""]
    return lines[-1 if TRACEBACK in said else 0].rstrip()


def counts_steps(head: bytes) -> bool:
    """Tell whether the numbers before the lines of a log are of steps: they only ever grow.

    Ranks come again.
    """
    numbers = [int(match[1] or match[2]) for match in _NUMBERED.finditer(head)]
    return len(numbers) >= _FEWEST_STEPS and all(a < b for a, b in pairwise(numbers))


def clean(raw: bytes) -> str:
    """Return bytes as text without colours and control characters, bounded in length."""
    text = raw[:LONGEST].decode("utf-8", errors="replace")
    if "\x1b" in text:
        text = ESCAPES.sub("", text)
    return _CONTROL.sub(" ", text).rstrip()


def time_of(text: str, *, year: int) -> float | None:
    """Return the time in a line's beginning; None where it has none, or one that cannot be.

    glog and syslog write no year: it is `year`, that of the file's last change.
    """
    head = text[:_STAMP_WITHIN]
    try:
        return _iso(head) or _yearless(head, year)
    except (ValueError, OverflowError, OSError):  # 99:99:99, the 31st of February
        return None


def _iso(head: str) -> float | None:
    match = _ISO.search(head)
    if match is not None:
        *numbers, fraction, zone = match.groups()
        moment = _moment(*map(int, numbers))
        if zone is not None:
            moment = datetime.fromisoformat(moment.isoformat() + zone.replace("Z", "+00:00"))
        return moment.timestamp() + _fraction(fraction)
    match = _SPARK.search(head)
    if match is None:
        return None
    year, *rest = map(int, match.groups())
    return _moment(2000 + year, *rest).timestamp()


def _yearless(head: str, year: int) -> float | None:
    match = _GLOG.search(head)
    if match is not None:
        *numbers, fraction = match.groups()
        month, day, *clock = map(int, numbers)
    else:
        match = _SYSLOG.search(head)
        if match is None or match[1] not in _MONTHS:
            return None
        month, day = _MONTHS.index(match[1]) + 1, int(match[2])
        clock, fraction = [int(part) for part in match.groups()[2:]], None
    moment = _moment(year, month, day, *clock)
    if moment - datetime.now() > timedelta(days=2):  # noqa: DTZ005
        moment = moment.replace(year=year - 1)  # a file of January about New Year's Eve
    return moment.timestamp() + _fraction(fraction)


def _moment(*parts: int) -> datetime:
    year, month, day, hour, minute, second = parts
    if year not in _YEARS:
        raise ValueError(f"no clock is at the year {year}")
    return datetime(year, month, day, hour, minute, second)  # noqa: DTZ001


def _fraction(digits: str | None) -> float:
    return float(f"0.{digits}") if digits else 0.0


_ENDING = (
    b"Exception ignored ",
    b"Error in atexit._run_exitfuncs:",
    b"--- Logging error ---",
    b"Failed to send resource request for ",
    b"Failed to get reserved resources for ",
    b"Failed to cancel resource request for ",
)
"""What stands before such a traceback: CPython Python/errors.c, atexitmodule.c, logging; and of Ray
Train autoscaling_coordinator_client.py and elastic.py, which warn where its coordinator is slow.
"""
_SHARER = "/multiprocessing/resource_sharer.py"
_FINALIZERS = ", in _run_finalizers"
"""multiprocessing/util.py prints what a finalizer raises at the end of a process, and continues."""
_TASK = "Task exception was never retrieved"
"""asyncio (Lib/asyncio/tasks.py) prints this of a task that nobody waited for, and continues."""
_FUTURE = "future: <"
_FIRST_FRAME = ", in _bootstrap_inner"
"""The first frame of a thread: where more of them print at once, the heads stand elsewhere."""
IGNORED = (
    *(*_ENDING, b"Exception in thread ", b"in _pin_memory_loop", _FIRST_FRAME.encode()),
    *(_SHARER.encode(), _FINALIZERS.encode(), _TASK.encode()),
)
"""Without any of these before it, no exception is one."""
_HEADS = tuple(head.decode() for head in _ENDING)
_THREAD = re.compile(r'Exception in thread (?!")|, in _pin_memory_loop$')
"""What stands before the traceback of a thread (CPython Lib/threading.py), or in one of PyTorch's.

It may follow a progress bar. Java has names in quotes, and tells of what ended the process as well.
"""
_OF_PROCESS = re.compile(
    r"\b(?:CUDA|HIP|NCCL)\b|OutOfMemory|out of memory|MemoryError|\[Errno (?:28|122)\]"
)
"""What a thread has met of memory, GPUs and disks, the others meet as well."""
_WORKER_KILLED = "is killed by signal: Killed"
"""A handler of PyTorch raises it in the midst of anything, which is at the end of a process too."""
_LOST = re.compile(
    r"(?:\w+\.)*(?:Connection\w*Error|BrokenPipeError|EOFError)\b|OSError: handle is closed$"
    r"|FileNotFoundError: \[Errno 2\] No such file or directory$"
)
"""The process at the other end of a pipe or a socket of this machine is no more."""
CHAINS = ("During handling of the above exception,", "The above exception was the direct cause")


def ignored(exception: str, before: Iterable[str]) -> bool:
    """Tell whether a line is of a traceback after which its process went on.

    `before` are the lines before it, the last first. Processes that end together print theirs at
    once: of the same exception as often as it stands there, so often there has to be a head.
    A data-loader worker that was lost has a rule of its own, and none for the exception.
    """
    if _WORKER_KILLED in exception:
        return False
    wanted, heads, frames = 1, 0, 0
    chained = False
    lost = _LOST.match(exception) is not None
    threads = not _OF_PROCESS.search(exception)
    for line in before:
        if any(head in line for head in _HEADS) or (
            threads and (_TASK in line or _THREAD.search(line))
        ):
            heads += 1
        elif threads and line.endswith(_FIRST_FRAME):
            frames += 1
        elif (lost and _SHARER in line) or line.endswith(_FINALIZERS):
            return True
        elif line.startswith(CHAINS):
            chained = True
        elif line and not line.startswith((" ", "\t", TRACEBACK, _FUTURE)):
            if line != exception and not chained:
                return False
            wanted += not chained
            chained = False
        if max(heads, frames) == wanted:
            return True
    return False


def of_thread(line: str) -> bool:
    """Tell whether a line begins the traceback of a thread that Python continues without."""
    return _THREAD.search(line) is not None


def ended_thread(after: Iterable[str]) -> bool:
    """Tell whether what stands below such a line ends with an exception, of no lost connection."""
    begun = False
    for line in after:
        if line.startswith(TRACEBACK):
            begun = True
        elif begun and not line.startswith((" ", "\t")) and not of_thread(line):
            return _LOST.match(line) is None
    return False
