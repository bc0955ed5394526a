"""Read again what stands around a line that was found: its time, its context, torchrun's report."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import dropwhile, islice, pairwise, takewhile
from pathlib import Path

from clusterkit.core.data import read_table
from clusterkit.core.records import row_of
from clusterkit.observe.diagnose.hits import STARTS, Hit
from clusterkit.observe.diagnose.lines import (
    CHAINS,
    LONGEST,
    TRACEBACK,
    Line,
    ended_thread,
    form_of,
    of_agent,
    of_thread,
    rank_in,
    read_line,
    time_of,
)
from clusterkit.observe.diagnose.open_log import WINDOW, Excerpts, NotALogError, open_log, read_part

_NEAR = 40
"""Lines around one without a time within which another's time is taken for its own."""
_AROUND = 120
"""Lines of the same rank on each side of one that may tell more of it: its traceback, and the
exceptions that it led to."""
_LONGEST_TRACEBACK = 400
"""Lines of a traceback through libraries, above which its first frame is not looked for."""
_FRAME = 12
"""Lines above an exception within which the last file of its traceback stands."""
_MESSAGE = 4
"""Lines of a message below that of its exception which may be a find of their own."""
_RAISED = re.compile(r"(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception)(?::|$)")
_MOST_ASKED = 16_000
"""Characters of a message, and of the lines around it, in which it is looked for a next step."""
_BLOCK = 24
"""Lines below an exception within which its message ends."""
_GOES_ON = re.compile(r":$|\d validation errors? for \w+$")
"""How the first line of a message of several ends."""
_OF_SERVICE = re.compile(r"(?:Reason|RequestId|ErrorCode|Status|HTTP response \w+) ?:")
"""How the second line of what a service has answered begins."""
_NO_MESSAGE = re.compile(
    r"Traceback \(|(?:The above|During handling)|srun:|slurm|mpi|pr(?:te|un)|[=-]{20}"
    r"|[EWIF]\d{4,8} |\[[\w.-]{1,60}:\d|\[[EWIF]\d{3}|\S{1,60}:\d+:\d+ \["
    r"|(?:[\w.]{1,99})?(?:Error|Exception): "
)
"""What begins in a line that is of another error, or of a launcher."""
_OF_LAUNCHER = re.compile(r"srun|slurm|mpi|prte|[\[\d-]|[EWIF]\d{4} |Process \d")
FRAME_AT = re.compile(r'\s+File "([^"]{1,400})", line (\d{1,7})')
"""A frame of a traceback: file and line."""


@dataclass(frozen=True, slots=True)
class _Doing:
    """What a program is in the midst of where a frame of its traceback looks so."""

    frame: re.Pattern[str]
    words: str
    look: str


_DOING = tuple(row_of(_Doing, row) for row in read_table(__file__, "doing.tsv"))


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStep:
    """What an error says, and what to do then."""

    says: re.Pattern[str]
    of: str
    """Rules that have this step instead of their own, where lines around it say so as well; nothing
    for all up to GENERIC; `unknown` for those that know nothing of what is said; and `class` for
    what to look at, where neither the words nor a frame of the traceback tell."""
    example: str
    """What a library prints; a backslash and an n stand for the end of a line."""
    do: str


NEXT_STEPS = tuple(row_of(NextStep, row) for row in read_table(__file__, "next_steps.tsv"))
LIBRARY = re.compile(
    r"-packages/|/lib(?:64)?/python\d|^<|\.p(?:yx|xi|xd):|^/usr/lib|/bin/[\w-]+:\d|^[A-Z]:/(?>.*?/Lib/)"
    r"|/torchinductor_"
)
"""Code that the user has not written: of a package, of Python itself, also on Windows, or compiled.
"""
_JAVA_AT = re.compile(
    r"\s+at (?:[\w.@]{1,60}/)?(?P<path>[\w$.]+)\.[\w$<>]+\((?P<file>[\w$-]+\.\w+):(?P<line>\d+)\)"
)
_IN_JAVA = re.compile(r"\s+(?:at |\.\.\. \d+ )|Caused by: ")
_OF_JVM = re.compile(
    r"(?:java|javax|jdk|kotlin|scala|sun|py4j"
    r"|com\.(?:google|fasterxml|sun)|io\.netty|ml\.dmlc|org\.(?:apache|eclipse|spark_?project))\."
)
"""Packages of Java, Scala, Spark and what they bring."""
_HANDLER = "/utils/data/_utils/signal_handling.py:"
"""Where PyTorch tells of the end of a data-loader worker, in the midst of anything."""
_OF_WINDOWS = re.compile(r'\s+File "[A-Za-z]:\\')
_MODULE_AT = re.compile(r'\s+File "([^"]{1,400})", line \d{1,7}, in <module>')
_IN_BOX = re.compile(r"(?:\u2771 +\d+ [\u2502 ]*(.*)| +\d+\b|[\u2502\u256d\u2570])")
"""A line of source in a box of rich, the one that was called with its text, or of a box in it."""
_NOTEBOOK_AT = re.compile(r"File (\S{1,400}):(\d{1,7}), in (\S.*)")
_IN_NOTEBOOK = re.compile(r" |File |-|\d|Input |Cell ")
_NOTEBOOK_CODE = re.compile(r"-+> ?\d{1,7} (.*)")
_BOXED_AT = re.compile(r"(\S[^\n]{0,400}?): ?(\d{1,7}) +in *(\S+)$")
_LONGEST_TOLD = 240
_OF_PLACE = re.compile(r"\s*(?:Detected at |Node: |Source (?:code )?file: |MPI rank: |Image {6})")
_ORNAMENT = re.compile(r"^(?:PETSC ERROR: )?[\W_]+(?=\s)|\s+[\W_]+$|^\W+$|^\s+")
"""What boxes and pictures have before and behind their words."""
_SAID_AT_END = re.compile(
    r"Traceback \(|Terminating remaining|Primary job |MPI_ABORT|a non-zero exit code"
    r"|processes have sent help|^NOTE|[Ww]arning|no version information"
)
"""What launchers print of the end, which is no program's last word."""
_REPORT = re.compile(r"^\s*(time|host|rank|exitcode)\s+: (\S+)(?: \(local_rank: (\d{1,4})\))?")
_NO_OTHERS = b"<NO_OTHER_FAILURES>"
_HEADING = 200
"""Bytes before torchrun's word about the first rank within which it tells of the others."""
_HEAD = 1 << 20
_PROGRESS = re.compile(
    r"(?i)(?:^|\]|\b(?:train\w*|epoch|steps?|iter\w*)\b[^%|]{0,48}?) *\d{1,3}%(?:\|[^|]*\|)?"
    r" +(?:0/\d+|(\d+)/\d+) \[[\d:]+<"
    r"|\b(?:epoch|eval|iter|train|test|step)\w*\W[^\[]{0,12}(?:\[ *\d+\] *)?\[ *(\d+)"
    r"/ *\d+(?:\]| \(\d)"
    r"|^ *\d+/\d+ +[\d.]+[GM] .*[| ](\d+)/\d+ "
    r"|^ *(\d+)/\d+ +(?:\[[=>.]|[\u2500\u2501\u2578])"
    r"|\b(?<!\*{3} |job )"
    r"(?:(?:(?:global|current|train|training)_)?(?:step|iter|iteration|epoch)s?(?:_num)?"
    r"|samples_count|consumed[ _](?:train[ _])?samples)['\"]?[ :=/#\[]{0,12}(\d[\d.]*)"
)
"""A step: of a bar of tqdm (one without a word, or of training: others have one for files that are
read or written; a copied log has all of a bar in one line), of the ImageNet example, OpenMMLab and
DETR, of YOLO, of Keras, or a counted word.

Not `save_steps=500`: frameworks print their settings. Nor a bar of which nothing is done, nor a
step of Slurm (`*** STEP 7.0 ON n1 CANCELLED`).
"""
_BAR = re.compile(
    r"(?P<bar>[A-Z][\w -]{1,60}): {1,3}\d{1,3}%\|[^|]*\| (?P<done>\d+)/(?P<of>\d+) \["
)
"""A bar of tqdm with words before it, of files or samples as well as of training."""
_BAD = re.compile(
    r"(?i)^\s|^[\W_]*$|traceback|error|exception|fail|abort|terminat|frame #|signal|kill|lost|warn"
    r"|time[d-]? ?out|refused|unable|cannot|could not|(?:return|exit) ?code"
)
"""What stands in a line that belongs to a failure, and in those around it."""
_NOT_BAD = re.compile(
    r"(?i)\b(?:if|no|0|zero|without(?: any)?) (?:\w{1,30} ){0,2}(?:error|fail)(?:ed|s|ures?)?\b"
    r"|^\W{0,9}warning: (?!.*(?:error|fail|abort|exception)).*"
    r"|^\S{1,99} \[\d{1,3}\] NCCL INFO .*"
    r"|^.{0,99}\bprocess group has not been destroyed before we destruct .*"
)
"""What only speaks of a failure, or warns of what goes on all the same."""
_EVALUATES = re.compile(r"(?i)\b(?:eval|valid|test)")
_OF_SHELL = re.compile(
    r"\S{1,300}: line \d+: |\S{0,300}sh: \d+: "
    r"|CommandNotFoundError: |CondaError: |Lmod has detected "
)
_ENDED = re.compile(r"(?:Terminated|Killed|Aborted|Segmentation fault)\b|\S+: error: ")
"""What a shell says of a process that a signal ended, and argparse before it ends its own."""
_REFUSED = ": error: "
_REFUSES = re.compile(r"(\S+\.py): error: ")
_WARNS = re.compile(r"\.py:\d+: \w*Warning: ")
_SIDE_STEP_UNTIL = 50
_MANY = 300
"""Good lines after which what had failed among the first ones was no part of the job."""
_LATER = 150
"""Good lines after an exception that are of a later process: the one that raised it has ended."""
_SOON = 30
"""Good lines before another exception that are of the program after one that never began."""
_RESTARTED = 10
"""Good lines after a program has started again, by which it got further than the run before."""
_BEGUN = 3
"""Good lines before an exception in another script, or that stood at the beginning of the file."""
_ANEW = 8
"""Good lines after the end of a script in which it says that it is started again."""
_BEGINNING = 1 << 14
"""Bytes of a file in which a script says what it says as it starts."""
_CONTINUED = 2
"""Good lines after a Ctrl-C of a program that did not end, or of the next one."""
_IN_WORDS = re.compile(r", in __(?:repr|str|format)__$")
"""The end of a frame of what makes text of an object."""
_BESIDE = re.compile(
    r'  File "[^"]{0,400}/(?:bin|Scripts)/(?:wandb|huggingface-cli|hf|conda|mamba|pip[\d.]*|aws'
    r'|gsutil|gdown|mlflow|dvc|kaggle|nvitop|gpustat|tensorboard|jupyter)"'
)
"""The first frame of a command that trains nothing, in whose script pip has put it."""
_STARTED = re.compile("|".join(map(re.escape, STARTS[1:-1])).encode())
"""Not by hand, and not wandb."""
_LABELLED = re.compile(
    rb"^(?: {0,5}\d{1,6}: |\[\d{1,6},\d{1,6}\](?:<std(?:out|err)>)?:|\[\d{1,6}\]<std(?:out|err)>:"
    rb"|\[node-\d{1,6}(?: [\w.:-]{1,63})?\] )",
    re.MULTILINE,
)
"""What srun, mpirun, horovodrun and `clusterkit logs` put before all that ranks print."""
_OF_TRACEBACK = re.compile(r"\s|$|Traceback \(most recent|During handling of|The above exc")
_LAST = 10
_IN_TURN = 20
"""Lines alike but for their numbers that are of as many things that a program goes through."""
WENT_ON = 5
"""Different steps that nobody takes after what ended a job: others stop at the next collective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """Which rank failed first, in the words of torchrun."""

    node: str | None
    rank: int
    local: str
    """Its local rank; empty where that is not told."""
    exit_code: int | None
    """Negative for a signal."""
    time: float | None
    """Seconds since the epoch, of the clock of that node."""
    alone: bool
    """Whether it tells of no other rank."""


def time_near(hit: Hit) -> float | None:
    """Return about when a line without a time was printed: that of a line nearby."""
    year = year_of(hit.file)
    lines = (*reversed(_before(hit, _NEAR, rank=None)), *_after(hit, _NEAR, rank=None))
    times = (time_of(line.dated, year=year) for line in lines)
    return next((found for found in times if found is not None), None)


def year_of(path: Path) -> int:
    """Return the year in which a file was last written to."""
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, tz=UTC).year
    except OSError:
        return datetime.now(tz=UTC).year


def next_step(hit: Hit, said: str, of: str) -> tuple[str, Mapping[str, str]]:
    """Return what to do where a line says so, and the groups of what says it.

    Both are empty where its words ask for nothing that is known; `of` as in `NextStep`.
    """
    steps = [step for step in NEXT_STEPS if of == step.of or of in step.of.split(",")]
    if not steps:
        return "", {}
    own = f"{said} {' '.join(message_below(hit))}" if of != "class" else said
    if of not in {"", "unknown", "class"}:
        own = " ".join((own, *lines_before(hit, _FRAME), *lines_after(hit, _FRAME)))
    found = ((step.do, match) for step in steps if (match := step.says.search(own[:_MOST_ASKED])))
    do, match = next(found, ("", None))
    return do, {} if match is None else {k: v for k, v in match.groupdict().items() if v}


def message_below(hit: Hit) -> tuple[str, ...]:
    """Return the lines below an exception, as far as they are its message."""
    if not hit.line:
        return ()
    if not _GOES_ON.search(hit.text) and not any(map(_OF_SERVICE.match, lines_after(hit, 1))):
        return ()
    return tuple(takewhile(lambda line: not _NO_MESSAGE.match(line), lines_after(hit, _BLOCK)))


def lines_before(hit: Hit, count: int) -> tuple[str, ...]:
    """Return up to `count` lines before the hit's; of the same rank where its line names one."""
    return tuple(line.text for line in _before(hit, count, rank=hit.rank))


def lines_around(hit: Hit) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the lines before a hit and those after it, as they stand there."""
    if not hit.line:
        return (), ()
    hit = replace(hit, rank=hit.before)
    return lines_before(hit, _AROUND), lines_after(hit, _AROUND)


def raised_in(hit: Hit) -> tuple[str, ...]:
    """Return the line of a traceback that names where the exception of a hit was raised."""
    before = reversed(lines_before(hit, _FRAME)) if hit.line else ()
    inside = takewhile(lambda line: line.startswith("  "), before)
    frames = (_with_slashes(line) for line in inside if line.startswith('  File "'))
    return tuple(islice(frames, 1))


def traceback_of(hit: Hit) -> tuple[str, ...]:
    """Return the lines of the traceback of the exception of a hit, the innermost first."""
    before = reversed(lines_before(hit, _LONGEST_TRACEBACK)) if hit.line else ()
    return tuple(map(_with_slashes, takewhile(_indented, before)))


def told_badly(hit: Hit) -> bool:
    """Tell whether an exception came up only as the words for another one were put together."""
    if not any(_IN_WORDS.search(frame) for frame in raised_in(hit)):
        return False
    return any(line.startswith(CHAINS[0]) for line in lines_before(hit, _LONGEST_TRACEBACK))


def _with_slashes(frame: str) -> str:
    """Return a frame of a traceback with the slashes of other systems in a path of Windows."""
    return frame.replace("\\", "/") if _OF_WINDOWS.match(frame) else frame


def script_of(hit: Hit) -> str:
    """Return the script at the top of the traceback of an exception; nothing where none is known.

    Of one that refused its arguments it is the name.

    Programs of an environment, such as launchers, are no scripts.
    """
    if hit.line and (refused := _REFUSES.match(hit.text)):
        return refused[1]
    above = lines_before(hit, _LONGEST_TRACEBACK) if hit.line else ()
    before = reversed(_unboxed(above) or above)
    frames = [frame for line in takewhile(_indented, before) if (frame := _MODULE_AT.match(line))]
    return "" if not frames or LIBRARY.search(f"{frames[-1][1]}:1") else frames[-1][1]


def of_traceback(hit: Hit) -> Mapping[str, str]:
    """Return what the traceback of an exception tells of it, as fields for the texts of a rule.

    `place` is the innermost line of code that is of no library, the line of a library that it had
    called, and what for; `look` says what to look at then. `message` is the code that raised an
    exception that says nothing, and `then` the last of the exceptions that it led to.
    An exception that the script itself raised is looked up where it does, whatever its class.
    """
    above = lines_before(hit, _LONGEST_TRACEBACK)
    above = _unboxed(above) or _of_notebook(above) or above
    upward = _of_message(hit.text, tuple(reversed(above)))
    inside = tuple(takewhile(_indented, upward))
    frames: list[tuple[str, str]] = []
    doing: _Doing | None = None
    code = ""
    for line in inside:
        if (frame := FRAME_AT.match(_with_slashes(line))) is None:
            code = line.strip(" ^~") or code
            continue
        frames.append((f"{frame[1]}:{frame[2]}", code))
        if not line.endswith(", in <module>"):  # there the file itself is only imported
            doing = doing or next((one for one in _DOING if one.frame.search(frame.string)), None)
        code = ""
    frames = frames or _of_java(hit)
    inner = frames[0][0] if frames else ""
    if _HANDLER in inner:
        frames, inner = [], ""  # it says nothing of what the process was doing then
    own = next((place for place, _ in frames if not LIBRARY.search(place)), "")
    own = own or (_own_around(upward[len(inside) :]) if inside else "")
    if not own and hit.last > hit.offset:
        return of_traceback(replace(hit, offset=hit.last))  # the chained one, of whoever called it
    packages, _, library = inner.rpartition("-packages/")
    called = f"in {library}" if own and packages else ""
    if packages and not own:
        begun = next((at for at in map(_in_library, frames[:0:-1]) if at), "")
        called = f"started by {begun}, {_NO_OWN}" if begun else ""
    parts = (own or (library if called else inner), called, doing.words if doing else "")
    then = _led_to(lines_after(hit, _AROUND))
    look = doing.look if doing and not _OF_CODE.match(hit.text) else ""
    if own and own == inner and frames[0][1].startswith(("raise ", "assert ")):
        look = "" if frames[0][1].startswith("assert ") else look
        look = look or f"The script raised it itself, at {own}: see which check stands before it."
    return {
        "place": f"(at {', '.join(filter(None, parts))})" if inner else "",
        "own": own or called,
        "look": look,
        "message": frames[0][1] if frames else "",
        "then": f"; that led to {then}" if then else "",
    }


_NO_OWN = "all of it in libraries"
_OF_CODE = re.compile(
    r"(?:Name|UnboundLocal|Syntax|Indentation|Tab|Recursion|Import|ModuleNotFound)Error\b"
)
"""Exceptions that lie in the code, whatever it was about to read."""


def _of_java(hit: Hit) -> list[tuple[str, str]]:
    """Return where the frames of a Java exception below it are that its user has written."""
    inside = takewhile(_IN_JAVA.match, lines_after(hit, _LONGEST_TRACEBACK) if hit.line else ())
    frames = filter(None, map(_JAVA_AT.match, inside))
    user = (at for at in frames if not _OF_JVM.match(at["path"]))
    return [(f"{at['file']}:{at['line']}", "") for at in user]


def _in_library(frame: tuple[str, str]) -> str:
    """Return where in a library a frame is, by the path below the folder of all; else nothing."""
    return frame[0].partition("-packages/")[2]


def _indented(line: str) -> bool:
    return line.startswith("  ")


def _of_message(text: str, upward: tuple[str, ...]) -> tuple[str, ...]:
    """Return the lines above the exception in whose message of several lines a text stands."""
    if _RAISED.match(text) or _OF_LAUNCHER.match(text):
        return upward
    first = next((n for n, line in enumerate(upward[:_MESSAGE]) if _RAISED.match(line)), None)
    return upward if first is None else upward[first + 1 :]


def _own_around(upward: Sequence[str]) -> str:
    """Return the innermost line of no library in the traceback that quotes another as its message.

    So do those of a distributed checkpoint, which has one of each rank, and of data-loader workers.
    """
    if len(upward) < 2 or TRACEBACK not in upward[0] or not _RAISED.match(upward[1]):
        return ""
    frames = map(FRAME_AT.match, takewhile(_indented, upward[2:]))
    places = (f"{frame[1]}:{frame[2]}" for frame in frames if frame is not None)
    return next((place for place in places if not LIBRARY.search(place)), "")


def _unboxed(above: Sequence[str]) -> tuple[str, ...]:
    """Return a traceback that rich has put into a box just above a line as Python prints it."""
    if not above or not above[-1].startswith("\u2570"):
        return ()
    box = takewhile(lambda line: line.startswith("\u2502"), reversed(above[:-1]))
    lines: list[str] = []
    place = ""
    for line in reversed([inside[2:].removesuffix("\u2502").rstrip() for inside in box]):
        if (code := _IN_BOX.match(line)) is not None:
            lines += [f"    {code[1]}"] if code[1] else []
            place = ""
        elif (frame := _BOXED_AT.match(place := place + line if line else "")) is not None:
            lines.append(f'  File "{frame[1]}", line {frame[2]}, in {frame[3]}')
            place = ""
    return tuple(lines)


def _of_notebook(above: Sequence[str]) -> tuple[str, ...]:
    """Return a traceback that IPython prints just above a line as Python prints it."""
    lines: list[str] = []
    for line in reversed(above):
        if TRACEBACK[:-1] in line:
            return tuple(reversed(lines))
        if (frame := _NOTEBOOK_AT.match(line)) is not None:
            lines.append(f'  File "{frame[1]}", line {frame[2]}, in {frame[3]}')
        elif (code := _NOTEBOOK_CODE.match(line)) is not None:
            lines.append(f"    {code[1]}")
    return ()


def words_around(hit: Hit) -> Mapping[str, str]:
    """Return what is said just above a line and just below it, as fields for the texts of a rule.

    Frames, lines of dashes, and the place that a program names before its message are left out.
    """
    above = reversed(list(_spoken(lines_before(hit, _FRAME))))
    below = list(_spoken(lines_after(hit, _AROUND)))
    told = [line for line in _spoken(message_below(hit)) if line]
    reasons = [after for line, after in pairwise(told) if line.endswith(":")]
    last = next((said for said in above if said and not _SAID_AT_END.search(said)), "")
    return {
        "above": last.rstrip("."),
        "below": " ".join(
            dict.fromkeys(
                (*islice(filter(None, below), 2 if _announces(below) else 1), *reasons[-1:])
            )
        ),
    }


def _spoken(lines: Iterable[str]) -> Iterator[str]:
    """Yield what lines say, but for frames of tracebacks and the line of source below each."""
    source = False
    for line in lines:
        frame = FRAME_AT.match(line) is not None
        if not (frame or source or _OF_PLACE.match(line) or line.endswith(TRACEBACK)):
            yield _said(line)
        source = frame


def unwrapped(hit: Hit) -> str:
    """Return the line of a hit, with what rich wrapped of it, which fits below its box."""
    width = next((len(line) for line in lines_before(hit, 1) if line.startswith("\u2570")), 0)
    text = last = hit.text
    for line in lines_after(hit, _FRAME) if width else ():
        if len(f"{last} {line.partition(' ')[0]}") <= width:
            break
        text, last = f"{text} {line}", line
    return text


def _announces(below: Iterable[str]) -> bool:
    """Tell whether the first that is said is of the next: `Can not open file:`, or a key."""
    return re.search(r":$|^[\w.]+$", next(filter(None, below), "")) is not None


def _said(line: str) -> str:
    said = _ORNAMENT.sub("", line)[:_LONGEST_TOLD]
    return said if re.search(r"[A-Za-z]{3}", said) else ""


def _led_to(after: Iterable[str]) -> str:
    last, chained = "", False
    for line in after:
        if line.startswith(CHAINS):
            chained = True
        elif line.startswith(TRACEBACK) and not chained:
            break
        elif last.endswith(":") and not line.startswith(TRACEBACK):
            last = f"{last} {line.strip()}"[:_LONGEST_TOLD]
        elif chained and TRACEBACK[:-1] not in line and not _IN_NOTEBOOK.match(line):
            last, chained = line[:_LONGEST_TOLD], False
    return last


def raised_while_handling(hit: Hit) -> str:
    """Return the exception with words of its own that code raised as it handled that of a hit.

    Nothing where there is none, or where another raises it `from` the first.
    """
    code, chained = "", False
    for line in lines_after(replace(hit, offset=hit.last), _AROUND):
        if line.startswith(CHAINS[0]):
            chained = True
        elif line and not chained:
            break
        elif line.startswith("    "):
            code = code if set(line) <= set(" ^~") else line.strip()
        elif line.startswith('  File "'):
            code = ""
        elif line and not line.startswith(TRACEBACK):
            deliberate = code.startswith("raise ") and _OF_WORDS.match(line)
            return line if deliberate else ""
    return ""


_OF_WORDS = re.compile(
    r"(?!(?:Key|Index|Attribute|Type|Name)Error\b)(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): "
    r"(?:\S+ ){2}\S"
)


def printed_by_library(hit: Hit) -> bool:
    """Tell whether a library printed a traceback itself, as one does that goes on afterwards.

    That of what ends a process begins where the program does. Of a chain the last counts.
    """
    above = takewhile(_indented, reversed(lines_before(hit, _LONGEST_TRACEBACK)))
    head, chained = next(iter(tuple(above)[::-1]), ""), False
    for line in lines_after(replace(hit, offset=hit.last), _AROUND) if head else ():
        if line.startswith(CHAINS):
            chained = True
        elif line.startswith(TRACEBACK):
            if not chained:
                break
            head, chained = "", False
        head = head or (line if line.startswith('  File "') else "")
    return "-packages/" in head and not head.endswith("<module>")


def dealt_with(hit: Hit) -> bool:
    """Tell whether a library printed an exception of its own, in which no code of a user was."""
    return printed_by_library(hit) and of_traceback(hit)["own"].endswith(_NO_OWN)


def rank_below(hit: Hit) -> int | None:
    """Return the rank that PyTorch puts before the traceback just below the last line like a hit's.

    What native code prints before it has no such prefix. None where other ranks print there too.
    """
    after = _after(replace(hit, offset=hit.last), _FRAME, rank=None)
    ranks = {line.before for line in after if line.before is not None}
    head = (
        bool(after)
        and not of_agent(hit.text)
        and (not raised_in(hit) or _repeated(hit))
        and after[0].before is not None
        and after[0].text.startswith(TRACEBACK)
    )
    return ranks.pop() if head and len(ranks) == 1 else None


def _repeated(hit: Hit) -> bool:
    """Tell whether PyTorch prints the exception of a hit once more, with the rank before it."""
    after = _after(replace(hit, offset=hit.last), _AROUND, rank=None)
    return any(line.text == hit.text for line in after if line.before is not None)


def lines_after(hit: Hit, count: int) -> tuple[str, ...]:
    """Return up to `count` lines after the hit's; of the same rank where its line names one."""
    return tuple(line.text for line in _after(hit, count, rank=hit.rank))


def _before(hit: Hit, count: int, *, rank: int | None) -> tuple[Line, ...]:
    begin = max(0, hit.offset - WINDOW)
    part = read_part(hit.file, hit.excerpts, begin, hit.offset - begin)
    raw = part.replace(b"\r", b"\n").split(b"\n")
    lines = _lines_of(reversed(raw[1:-1] if begin else raw[:-1]), rank, hit.learnt)
    return tuple(reversed(list(islice(lines, count))))


def _after(hit: Hit, count: int, *, rank: int | None) -> tuple[Line, ...]:
    raw = read_part(hit.file, hit.excerpts, hit.offset, WINDOW).replace(b"\r", b"\n").split(b"\n")
    return tuple(islice(_lines_of(iter(raw[1:]), rank, hit.learnt), count))


def went_on(hit: Hit, size: int) -> bool:
    """Tell whether whoever printed the last line like the hit's took more steps after it.

    They stand in what follows, or at the end of the file of `size` bytes. Of a thread one is
    enough; one that only lost a connection had no more to do.
    """
    after = _afterwards(hit, size)
    thread = of_thread(hit.text)
    if thread and not ended_thread(after):
        return True
    steps: set[str] = set()
    for text in after:
        steps.update(steps_in(text))
        if len(steps) >= (1 if thread else WENT_ON):
            return True
    return False


def shell_went_on(hit: Hit) -> bool:
    """Tell whether a shell's own error ended nothing: work was done before it, or went on after it.

    Before it a program took steps, or its bar came to its end, and its last words were good ones;
    after it Python warns of something.
    """
    if not hit.line or not _OF_SHELL.match(hit.text):
        return False
    if any(_WARNS.search(line) for line in lines_after(replace(hit, offset=hit.last), _AROUND)):
        return True
    before = [line for line in lines_before(hit, WINDOW) if re.search(r"\w", line)]
    if not before or _BAD.search(before[-1]):
        return False
    bars = (bar for line in before for bar in _BAR.finditer(line))
    steps = {step for line in before for step in steps_in(line)}
    return len(steps) >= WENT_ON or any(bar["done"] == bar["of"] for bar in bars)


def passed(hit: Hit, size: int, well: Callable[[str], bool]) -> bool:
    """Tell whether as many lines of the same rank as of steps say that all was well again."""
    return sum(map(well, _afterwards(hit, size))) >= WENT_ON


def _afterwards(hit: Hit, size: int) -> tuple[str, ...]:
    """Return what follows the last line like the hit's, and the end of a file of `size` bytes."""
    after = lines_after(replace(hit, offset=hit.last), WINDOW)
    if size - hit.last > WINDOW:
        end = max(hit.last + WINDOW, size - WINDOW)
        after = (*after, *lines_after(replace(hit, offset=end), WINDOW))
    return after


def next_run(path: Path, excerpts: Excerpts | None, start: int) -> float:
    """Return how many bytes stand before where steps are taken again after byte `start`.

    That is infinite where none are near. What sums a run up names some as well, and so does what
    evaluates the model after the last step.
    """
    at, steps = start, set[str]()
    for raw in read_part(path, excerpts, start, _HEAD).split(b"\n")[1:]:
        at += len(raw) + 1
        text = read_line(raw).text
        steps |= set() if _EVALUATES.search(text) else steps_in(text)
        if len(steps) >= WENT_ON:
            return at
    return math.inf


def only_printed(hit: Hit, size: int) -> bool:
    """Tell whether a program raised nothing that a line tells of, and went on well to its end.

    It did so for a while after the last such line, or between it and the first.
    """
    last = at_last(hit)
    if any(raised_in(one) or _RAISED.match(one.text) for one in (hit, last)):
        return False
    first = replace(hit, last=hit.offset)
    went_on = _many_good_after(hit, _SOON) or (
        _many_good_after(hit, 1) and _many_good_after(first, _SOON, last.offset)
    )
    return went_on and ends_well(hit, size, 1)


def told_before(hit: Hit, size: int) -> bool:
    """Tell whether a program said the same before, took steps then, and did so after a hit, too.

    It ended with a good word.
    """
    before = lines_before(hit, WINDOW) if hit.line else ()
    form = form_of(hit.text)
    since = list(dropwhile(lambda line: form_of(line) != form, before))
    steps = {step for line in since for step in steps_in(line)}
    return len(steps) >= WENT_ON and steps_after(hit)[None] > 0 and ends_well(hit, size, 1)


def side_step(hit: Hit) -> bool:
    """Tell whether a line among the first of a file is followed by hundreds of good ones."""
    return 0 < hit.line <= _SIDE_STEP_UNTIL and _many_good_after(hit)


def _many_good_after(hit: Hit, many: int = _MANY, until: float = math.inf) -> bool:
    return sum(1 for _ in islice(_good_after(hit, until), many)) == many


def _good_after(hit: Hit, until: float) -> Iterator[str]:
    size = int(min(_HEAD, until - hit.last))
    part = read_part(hit.file, hit.excerpts, hit.last, size).replace(b"\r", b"\n")
    lines = (read_line(raw).text for raw in part.split(b"\n")[1:])
    return (line for line in lines if not (line.startswith("wandb: ") or _BAD.search(line)))


def well_until(hit: Hit, ending: int, *, at_once: bool) -> bool:
    """Tell whether a program went on well after a find, until it said at byte `ending` that it was.

    Where it is known to have said so itself, it may have been at once.
    """
    return hit.last < ending and _many_good_after(hit, 1 if at_once else _SOON, ending)


def of_snippet(hit: Hit) -> bool:
    """Tell whether an exception is of a command beside the training.

    Of one in `_BESIDE`, or of code that a script of the shell gave Python to read.
    """
    *_, called, first = ("", "", *filter(FRAME_AT.match, traceback_of(hit)))
    if first.startswith('  File "<string>"'):
        return "/multiprocessing/" not in called  # so does Python start processes itself
    return first.startswith('  File "<stdin>"') or _BESIDE.match(first) is not None


def ranks_began(path: Path, excerpts: Excerpts | None, until: int) -> float:
    """Return how many bytes stand before the first line that a launcher has put a rank before.

    That is infinite where none is among those that are read, up to byte `until`.
    """
    found = _LABELLED.search(read_part(path, excerpts, 0, min(_HEAD, until)))
    return math.inf if found is None else found.start()


def launcher_began(path: Path, excerpts: Excerpts | None, until: int) -> float:
    """Return how many bytes stand before the first line of a launcher that starts ranks."""
    found = _STARTED.search(read_part(path, excerpts, 0, min(_HEAD, until)))
    return math.inf if found is None else found.start()


def labelled(hit: Hit) -> bool:
    """Tell whether a launcher put a rank before the last line like a hit's."""
    return _LABELLED.match(read_part(hit.file, hit.excerpts, hit.last, LONGEST)) is not None


def well_between(hit: Hit, later: Hit) -> bool:
    """Tell whether lines between two finds, but those of tracebacks, tell of nothing wrong."""
    good = _good_after(hit, later.offset)
    return sum(not _OF_TRACEBACK.match(line) for line in good) >= _CONTINUED


def stepped_between(hit: Hit, later: Hit) -> bool:
    """Tell whether steps were taken between the exception of a rank and a later one.

    Others stop at the next collective. They stand in lines of that rank or of none, as those do of
    a program to whose tracebacks alone PyTorch adds the rank.
    """
    if not raised_in(hit):
        return False
    lines = lines_between(hit.last, later)
    taken = {frozenset(steps_in(line.text)) for line in lines if line.rank in {None, hit.rank}}
    return len(taken - {frozenset()}) >= WENT_ON


def began_after_report(hit: Hit, later: Hit, roots: Iterable[int]) -> bool:
    """Tell whether torchrun told of an end between two finds, and a program worked well after it.

    `roots` are how many bytes stand before each such report.
    """
    between = [root for root in roots if hit.last < root < later.offset]
    if not between:
        return False
    good = (line.text for line in lines_between(max(between), later) if not _BAD.search(line.text))
    return sum(1 for _ in islice(good, _RESTARTED)) == _RESTARTED


def lines_between(start: int, later: Hit) -> Iterator[Line]:
    """Yield the lines from the one after byte `start` to a later find."""
    size = min(_HEAD, later.offset - start)
    part = read_part(later.file, later.excerpts, start, size).replace(b"\r", b"\n")
    return (read_line(raw, later.learnt) for raw in part.split(b"\n")[1:])


def left_behind(hit: Hit, until: float = math.inf) -> bool:
    """Tell whether another program was started after a process of nobody's rank had ended.

    Whoever raised it, refused its arguments or was killed says no more; hundreds of good lines
    after it, up to byte `until`, are of a later run, or of the next program of the script. Of one
    that refused its arguments, or trains nothing, fewer will do: no rank of it had begun to work.
    """
    ended = _ENDED.match(hit.text)
    if hit.rank is not None or not (ended or raised_in(hit)):
        return False
    refused = ended is not None and ended[0].endswith(_REFUSED)
    soon = until < math.inf and (refused or _BESIDE.match("".join(traceback_of(hit)[-1:])))
    return _many_good_after(hit, _SOON if soon else _LATER, until)


def began_again(hit: Hit, startups: Iterable[tuple[str, int]], size: int) -> bool:
    """Tell whether a program that had started before a find did so after it, and went on well.

    `startups` are what tells of a start, and how many bytes stand before it.
    """
    starts = list(startups)
    before = {words for words, at in starts if at < hit.offset}
    again = any(words in before for words, at in starts if at > hit.last)
    well = again and hit.rank is None and _many_good_after(hit, _RESTARTED)
    return well and ends_well(hit, size, _LAST // 2)


def other_script_after(hit: Hit, later: Hit) -> bool:
    """Tell whether another script, which had begun to work, raised the later exception.

    A parent whose child has failed says that at once, and nothing else before. Who still imports
    has started no child that could have refused its arguments.
    """
    first, then = script_of(hit), script_of(later)
    other = "" != first != then != "" and Path(first).name != Path(then).name
    if other and _REFUSES.match(hit.text) and _importing(later):
        return True
    return other and _many_good_after(hit, _BEGUN, later.offset)


def _importing(hit: Hit) -> bool:
    """Tell whether a script was ended as it still imported what it needs."""
    code = traceback_of(hit)[-2:-1]
    return bool(code) and code[0].lstrip().startswith(("import ", "from "))


def same_script_after(hit: Hit, later: Hit) -> bool:
    """Tell whether the script that had ended was started again, and raised the later exception.

    It said some of what the file begins with. Whoever refuses its arguments does so in all its
    processes, so what is raised later is of the next run.
    """
    first, then = script_of(hit), script_of(later)
    if not first or Path(first).name != Path(then).name:
        return False
    good = [form_of(line) for line in islice(_good_after(hit, later.offset), _ANEW)]
    if _REFUSES.match(hit.text):
        return bool(good) and not _REFUSES.match(later.text)
    head = read_part(hit.file, hit.excerpts, 0, min(_BEGINNING, hit.offset)).split(b"\n")
    known = {form_of(read_line(raw).text) for raw in head}
    return len(good) >= _BEGUN and not known.isdisjoint(good)


def at_last(hit: Hit) -> Hit:
    """Return the last line like a hit's as a hit of its own."""
    raw = read_part(hit.file, hit.excerpts, hit.last, LONGEST).replace(b"\r", b"\n")
    text = read_line(raw.split(b"\n")[0], hit.learnt).text
    return replace(hit, line=hit.last_line, offset=hit.last, text=text, count=1)


def survived(hit: Hit, size: int) -> bool:
    """Tell whether a bar of any name was under way before a hit, and came to its end after it.

    Another process may have one like it, so nothing at the end of the file may tell of a failure.
    """
    said = (hit.text, *lines_before(hit, _FRAME)) if hit.line else ()
    found = (bar for text in said for bar in _BAR.finditer(text))
    bars = {bar["bar"]: bar["of"] for bar in found if bar["done"] != bar["of"]}
    if not bars or not ends_well(hit, size):
        return False
    after = (bar for text in _afterwards(hit, size) for bar in _BAR.finditer(text))
    return any(bars.get(bar["bar"]) == bar["of"] == bar["done"] for bar in after)


def ends_well(hit: Hit, size: int, count: int = _LAST) -> bool:
    """Tell whether the last `count` lines of a file of `size` bytes tell of no failure.

    What a program says of many things in turn, before a good last word, is none of its own.
    """
    last = lines_after(replace(hit, offset=max(hit.last, size - WINDOW)), WINDOW)
    told = [line for line in _but_warnings(last) if re.search(r"\w", line)][-count:]
    bad = {form_of(line) for line in told if _tells_of_failure(line)}
    if not bad:
        return True
    forms = Counter(form_of(line) for line in last)
    return not _tells_of_failure(told[-1]) and all(forms[form] >= _IN_TURN for form in bad)


def _tells_of_failure(line: str) -> bool:
    """Tell whether one of the last lines does: programs indent tables, and pip what it did."""
    said = _NOT_BAD.sub("", line).strip()
    return FRAME_AT.match(line) is not None or (said != "" and _BAD.search(said) is not None)


def _but_warnings(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines that are not of a warning of Python, nor of the source below one."""
    warned = False
    for line in lines:
        of_warning = _WARNS.search(line) is not None
        if not of_warning and not (warned and line.startswith(" ")):
            yield line
        warned = of_warning


def good_after(hit: Hit) -> int:
    """Return how many lines after a hit belong to no failure."""
    after = _after(replace(hit, offset=hit.last), WINDOW, rank=None)
    return sum(not _BAD.search(line.text) for line in after)


def steps_after(hit: Hit) -> Mapping[int | None, int]:
    """Return how many steps each rank took after the last line like the hit's; None: anybody."""
    steps: dict[int | None, set[str]] = {None: set()}
    for line in _after(replace(hit, offset=hit.last), WINDOW, rank=None):
        taken = steps_in(line.text)
        steps[None] |= taken
        steps.setdefault(line.rank, set()).update(taken)
    return {rank: len(taken) for rank, taken in steps.items()}


def took_steps(text: bytes) -> bool:
    """Tell whether a part of a log tells of a step."""
    return any(steps_in(read_line(raw).text) for raw in text.replace(b"\r", b"\n").split(b"\n"))


def steps_in(text: str) -> set[str]:
    """Return the steps that a line tells of, as it writes them."""
    return {match[match.lastindex] for match in _PROGRESS.finditer(text) if match.lastindex}


def root_at(path: Path, excerpts: Excerpts | None, offset: int) -> Root | None:
    """Return what torchrun reports from byte `offset` on; None where that is not whole."""
    found: dict[str, str] = {}
    local = ""
    raw = read_part(path, excerpts, offset, WINDOW).split(b"\n")
    for text in islice((read_line(line).text for line in raw[1:]), 12):
        if (match := _REPORT.match(text)) is not None:
            found.setdefault(match[1], match[2])
            local = local or match[3] or ""
    rank = rank_in(found.get("rank", ""))
    if rank is None:
        return None
    code = found.get("exitcode", "")
    return Root(
        node=found.get("host"),
        rank=rank,
        local=local,
        exit_code=int(code) if re.fullmatch(r"-?\d{1,3}", code) else None,
        time=time_of(found.get("time", "").replace("_", " "), year=year_of(path)),
        alone=_NO_OTHERS in read_part(path, excerpts, max(0, offset - _HEADING), _HEADING),
    )


def reported_at(hit: Hit) -> float | None:
    """Return when the rank ended of whose end a line in a report of torchrun tells."""
    fields = (_REPORT.match(line) for line in reversed(lines_before(hit, _FRAME)))
    times = (field[2] for field in fields if field is not None and field[1] == "time")
    return time_of(next(times, "").replace("_", " "), year=year_of(hit.file))


def nodes_named(path: Path) -> frozenset[str]:
    """Return the nodes that prefixes in the beginning of a file name."""
    try:
        with open_log(path) as log:
            lines = log.read(_HEAD).split(b"\n")
    except (NotALogError, OSError):
        return frozenset()
    return frozenset(node for line in lines if (node := read_line(line[:200]).node) is not None)


def _lines_of(
    raw: Iterator[bytes], rank: int | None, learnt: re.Pattern[str] | None
) -> Iterator[Line]:
    for line in (read_line(one, learnt) for one in raw):
        if line.text and (rank is None or line.rank == rank):
            yield line
