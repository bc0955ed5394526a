"""One POSIX-sh script for all probes of a node, and the frames in which their output comes back.

Every line that comes back carries a token of this run, the number of the task and the name of the
probe, so that banners, the message of the day and probes that run side by side are told apart.
Whose answer it is tells only who hands it over (an ssh connection, srun's label), for a node could
name another one.

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

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from clusterkit.core.bounds import LATEST_S
from clusterkit.core.data import read_template
from clusterkit.core.shell import quote
from clusterkit.core.untrusted import real, whole
from clusterkit.transport.probe import Output, PreflightJob, Probe

_LINE = 3800
_KILL_AFTER_S = 2.0
_BEAT_S = 2
PROBES_VARIABLE = "CLUSTERKIT_PROBES"
"""In the environment of all that a script starts, so that it can be ended with it."""


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
    """What has come back from one node."""

    outputs: Mapping[str, Output]
    complete: bool
    """Whether all probes had ended."""
    clock: float | None = None
    """The node's clock when the script started, seconds since the epoch."""
    host: str = ""
    """What the node calls itself: Slurm's name for it, else `uname -n`."""


def new_token() -> str:
    """Return a word of letters and digits that nothing else on a node prints."""
    return f"ck{os.urandom(8).hex()}"


def compose(
    probes: Iterable[Probe[Any]], job: PreflightJob, *, token: str, together: bool = False
) -> Compound:
    """Return the script that runs those of `probes` that have something to ask for this job."""
    used = [(probe, snippet) for probe in probes if (snippet := probe.snippet(job)) is not None]
    lanes: dict[str, list[tuple[Probe[Any], str]]] = {}
    for probe, snippet in used:
        lanes.setdefault(probe.lane or f"only {probe.name}", []).append((probe, snippet))
    steps = (
        "\n".join(f"P {p.name} {p.timeout_s:g} {quote(snippet)}" for p, snippet in lane)
        for lane in lanes.values()
    )
    marks = {
        "TOKEN": token,
        "LINE": f"{_LINE}",
        "KILL": f"{_KILL_AFTER_S:g}",
        "BEAT": f"{_BEAT_S:g}",
        "LANES": "\n".join(f'{{\n{lane}\n}} &\nj="$j $!"' for lane in steps),
    }
    program = re.sub(r"(?m)^#.*\n", "", read_template("programs/probes/run_all.sh"))
    return Compound(
        script=re.sub(r"@([A-Z]+)@", lambda mark: marks[mark[1]], program),
        token=token,
        names=tuple(probe.name for probe, _ in used),
        timeout_s=max(
            (sum(p.timeout_s + _KILL_AFTER_S for p, _ in lane) for lane in lanes.values()),
            default=0.0,
        ),
        together=together,
    )


MOST_OF_LINE = 64 << 10
"""Bytes; our lines have at most `_LINE`, and a login may print longer ones before."""
MOST_OF_PROBE, MOST_OF_NODE = 2 << 20, 4 << 20


@dataclass(slots=True)
class _Frame:
    out: bytearray = field(default_factory=bytearray)
    err: bytearray = field(default_factory=bytearray)
    exit_code: int | None = None
    seconds: float = 0.0

    def add(self, kind: bytes, rest: bytes) -> None:
        if self.exit_code is not None:
            return  # it has ended: what comes now is not its own
        if kind == b"o":
            self.out += rest + b"\n"
        elif kind == b"e":
            self.err += rest + b"\n"
        elif kind == b"=":
            with suppress(ValueError):  # cut off in the middle: as if it had not ended
                code, began, ended = rest.decode().split()
                took_s = max(0.0, real(ended, minimum=0) - real(began, minimum=0))
                self.exit_code, self.seconds = whole(code, maximum=255), round(took_s, 2)

    def output(self) -> Output:
        return Output(
            stdout=self.out.decode(errors="replace"),
            stderr=self.err.decode(errors="replace"),
            exit_code=self.exit_code,
            seconds=self.seconds,
        )


class AnswerReader:
    """Reads what one node says while it comes, and keeps no more of it than an answer may have.

    What is no frame of ours is left out. A probe that has not ended has an output without exit
    code; one that never began has none.
    """

    def __init__(self, compound: Compound) -> None:
        """Nothing has come yet."""
        self._token = compound.token.encode()
        self._names = {name.encode(): name for name in compound.names}
        self._frames: dict[str, _Frame] = {}
        self._rest = b""
        self._count = 0
        self._clock: float | None = None
        self._host: str | None = None
        self.noise = bytearray()
        """The beginning of what is no frame: a login that says why it ends."""
        self.has_begun = False
        self.is_over = False
        """Whether all probes have ended."""
        self.excess = ""
        """Why nothing more is read; empty while the node keeps within its limits."""

    def feed(self, data: bytes) -> None:
        """Read the next piece; nothing where the answer is over, or too large."""
        self.skip(len(data))
        if self.is_over or self.excess:
            return
        *lines, rest = (self._rest + data).rsplit(b"\n", 1)
        for whole_lines in lines:  # all of them in one piece, or none
            if self._token in whole_lines:
                for line in whole_lines.split(b"\n"):
                    self._read(line)
            else:  # quickly, as somebody may send nothing else
                self._hear(whole_lines)
        self._rest = rest
        if len(rest) > MOST_OF_LINE and not self.excess:
            self.excess = f"sent a line of more than {_size(MOST_OF_LINE)}"

    def skip(self, count: int) -> None:
        """Count bytes that the node sent on another stream."""
        self._count += count
        if self._count > MOST_OF_NODE and not self.is_over:
            self.excess = f"answered with more than {_size(MOST_OF_NODE)}"

    def answer(self) -> Answer | None:
        """Return what has come by now; None where no frame has."""
        if self._rest:
            self._read(self._rest)  # cut off behind it
            self._rest = b""
        if not self.has_begun:
            return None
        if self.excess:
            self._frames.clear()  # of many such nodes it would be much
        return Answer(
            outputs={name: frame.output() for name, frame in tuple(self._frames.items())},
            complete=self.is_over,
            clock=self._clock,
            host=self._host or "",
        )

    def _read(self, line: bytes) -> None:
        if self.is_over or self.excess:
            return
        # A banner without a line end may stand before the first frame.
        at = line.find(self._token + b" ")
        fields = line[at:].split(b" ", 4) if at >= 0 else ()
        if len(fields) < 5:
            self._hear(line)
            return
        _, _, name, kind, rest = fields
        self.has_begun = True
        if name == b"-":
            self._note(kind, rest)
        elif name in self._names:
            frame = self._frames.setdefault(self._names[name], _Frame())
            frame.add(kind, rest[:_LINE].rstrip(b"\r"))
            if len(frame.out) + len(frame.err) > MOST_OF_PROBE:
                more = f"more than {_size(MOST_OF_PROBE)}"
                self.excess = f"answered {self._names[name]} with {more}"

    def _hear(self, noise: bytes) -> None:
        if len(self.noise) < _NOISE:
            self.noise += noise[:_NOISE] + b"\n"

    def _note(self, kind: bytes, rest: bytes) -> None:
        if kind == b"=":
            self.is_over = True
        elif kind == b"@" and self._host is None:
            epoch, _, self._host = rest[:_NOISE].decode(errors="replace").partition(" ")
            # A `date` without %N tells the second that has begun; half of it has passed on average.
            first, _, fraction = epoch.partition(".")
            with suppress(ValueError):
                self._clock = (
                    real(epoch, minimum=0, maximum=LATEST_S)
                    if fraction.isdigit()
                    else whole(first, maximum=int(LATEST_S)) + 0.5
                )


_NOISE = 4096


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"
