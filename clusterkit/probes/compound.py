"""One POSIX-sh script for all probes of a node, and the frames in which their output comes back.

Every line that comes back carries a token of this run, the number of the task and the name of the
probe, so that banners, the message of the day and probes that run side by side are told apart:

    TOKEN TASK - @ EPOCH HOST        the script has started, the node's clock and its own name
    TOKEN TASK NAME o TEXT           a line of standard output
    TOKEN TASK NAME e TEXT           a line of standard error
    TOKEN TASK NAME = RC BEGAN ENDED the probe has ended; times are seconds since boot
    TOKEN TASK - . - -               it still runs
    TOKEN TASK - = 0 - -             all probes have ended

Lines are cut at `_LINE` bytes, because only up to 4096 (PIPE_BUF on Linux, POSIX `write`) are sure
to stay in one piece in a pipe with several writers. Nothing is written on the node, so one with a
full disk answers too; and what is there when a node is given up on is used.

Nobody tells a script that its client has gone, and probes may take minutes. So it says now and then
that it still runs. Once nobody reads that, and when it is interrupted, it ends its probes, which it
finds by a variable of theirs; otherwise they would keep GPUs, ports and a step of Slurm busy.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from clusterkit.probes.base import Output, PreflightJob, Probe
from clusterkit.shell import quote

_LINE = 3800
_KILL_AFTER_S = 2.0
_BEAT_S = 2
PROBES_VARIABLE = "CLUSTERKIT_PROBES"
"""In the environment of all that a script starts, so that it can be ended with it."""

_BEGIN = r"""main() {
exec 3>&1
LC_ALL=C LANG=C; export LC_ALL LANG; unset LANGUAGE
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; export PATH
CLUSTERKIT_PROBES=@TOKEN@; export CLUSTERKIT_PROBES
T="@TOKEN@ ${SLURM_PROCID:-0}"
echo "$T - @ $(date +%s.%N) ${SLURMD_NODENAME:-$(uname -n)}"
L() { awk -v p="$T $1 $2 " '{ print p substr($0, 1, @LINE@); fflush() }'; }
W() { read -r w _ </proc/uptime; echo "$w"; }
if timeout -k 1 1 true 2>/dev/null
then B() { timeout -k @KILL@ "$@"; }
else B() { shift; "$@"; }
fi
H() {
trap '' PIPE
while :; do
sleep @BEAT@ >/dev/null 2>&1 3>&- || return
echo "$T - . - -" || break
done
kill -s TERM $$
}
X() {
trap '' INT TERM HUP
exec 2>/dev/null
kill -s KILL $h $j
for s in TERM KILL; do
for p in $(grep -zslF CLUSTERKIT_PROBES=@TOKEN@ /proc/[0-9]*/environ); do
p=${p%/environ}; kill -s $s "${p#/proc/}"
done
[ $s = KILL ] || sleep 1
done
exit 130
}
P() {
s=$(W)
r=$({ { { B "$2" sh -c "$3" 2>&4 3>&- 4>&- 5>&-; echo "$?" >&5; } | L "$1" o >&3; } 4>&1 |
L "$1" e >&3; } 5>&1)
echo "$T $1 = $r $s $(W)"
}
"""
_END = """[ -z "$j" ] || wait $j || X
echo "$T - = 0 - -"
{ kill -s KILL "$h"; wait; } 2>/dev/null
}
main </dev/null
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compound:
    """The script of a node, to be fed to `sh` on standard input."""

    script: str
    token: str
    """Starts every line of an answer; letters and digits."""
    names: tuple[str, ...]
    """The probes in it, in order."""
    timeout_s: float
    """How long it runs at most, should every probe need all of its time."""
    together: bool = False
    """Whether the nodes talk to each other, so that all must run it at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What has come back from one task."""

    outputs: Mapping[str, Output]
    complete: bool
    """Whether all probes had ended."""
    clock: float | None = None
    """The node's clock when the script started, seconds since the epoch."""
    host: str = ""
    """What the node calls itself: Slurm's name for it, else `uname -n`."""


def new_token() -> str:
    """Return a word of letters and digits that nothing else on a node prints."""
    return f"ck{secrets.token_hex(8)}"


def compose(
    probes: Iterable[Probe[Any]], job: PreflightJob, *, token: str, together: bool = False
) -> Compound:
    """Return the script that runs those of `probes` that have something to ask for this job."""
    asked = [(probe, snippet) for probe in probes if (snippet := probe.snippet(job)) is not None]
    lanes: dict[str, list[tuple[Probe[Any], str]]] = {}
    for probe, snippet in asked:
        lanes.setdefault(probe.lane or f"only {probe.name}", []).append((probe, snippet))
    begin = _BEGIN.replace("@TOKEN@", token).replace("@LINE@", str(_LINE))
    begin = begin.replace("@KILL@", f"{_KILL_AFTER_S:g}").replace("@BEAT@", f"{_BEAT_S:g}")
    lines = [begin, "H 2>/dev/null &\nh=$! j=\ntrap X INT TERM HUP\n"]
    for lane in lanes.values():
        steps = [f"P {p.name} {p.timeout_s:g} {quote(snippet)}" for p, snippet in lane]
        lines.append("{\n" + "\n".join(steps) + '\n} &\nj="$j $!"\n')
    return Compound(
        script="".join([*lines, _END]),
        token=token,
        names=tuple(probe.name for probe, _ in asked),
        timeout_s=max(
            (sum(p.timeout_s + _KILL_AFTER_S for p, _ in lane) for lane in lanes.values()),
            default=0.0,
        ),
        together=together,
    )


@dataclass(slots=True)
class _Frame:
    out: list[str] = field(default_factory=list)
    err: list[str] = field(default_factory=list)
    exit_code: int | None = None
    seconds: float = 0.0

    def add(self, kind: str, rest: str) -> None:
        if kind == "o":
            self.out.append(rest)
        elif kind == "e":
            self.err.append(rest)
        elif kind == "=":
            try:
                code, began, ended = rest.split()
                self.exit_code, self.seconds = int(code), round(float(ended) - float(began), 2)
            except ValueError:
                return  # cut off in the middle: as if it had not ended

    def output(self) -> Output:
        return Output(
            stdout="".join(line + "\n" for line in self.out),
            stderr="".join(line + "\n" for line in self.err),
            exit_code=self.exit_code,
            seconds=self.seconds,
        )


@dataclass(slots=True)
class _Task:
    frames: dict[str, _Frame] = field(default_factory=dict)
    complete: bool = False
    clock: float | None = None
    host: str = ""

    def note(self, kind: str, rest: str) -> None:
        if kind == "=":
            self.complete = True
        elif kind == "@":
            epoch, _, self.host = rest.partition(" ")
            # A `date` without %N tells the second that has begun; half of it has passed on average.
            whole, _, fraction = epoch.partition(".")
            with suppress(ValueError):
                self.clock = float(epoch) if fraction.isdigit() else int(whole) + 0.5

    def answer(self) -> Answer:
        return Answer(
            outputs={name: frame.output() for name, frame in self.frames.items()},
            complete=self.complete,
            clock=self.clock,
            host=self.host,
        )


def read_answers(text: str, compound: Compound) -> Mapping[str, Answer]:
    """Return the answer of each task (`0` without Slurm); what is no frame of ours is left out.

    A probe that has not ended has an output without exit code; one that never began has none.
    """
    known = frozenset(compound.names)
    tasks: dict[str, _Task] = {}
    start = compound.token + " "
    for line in text.split("\n"):
        # A banner without a line end may stand before the first frame.
        at = line.find(start)
        words = line[at:].split(" ", 4) if at >= 0 else ()
        if len(words) < 5:
            continue
        _, number, name, kind, rest = words
        task = tasks.setdefault(number, _Task())
        if name == "-":
            task.note(kind, rest)
        elif name in known:
            task.frames.setdefault(name, _Frame()).add(kind, rest.rstrip("\r"))
    return {number: task.answer() for number, task in tasks.items()}
