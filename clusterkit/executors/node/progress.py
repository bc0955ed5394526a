"""Whether a job makes progress, and how long it may make none.

What a script tells counts: a line with a step, a bar that moves, the time of the heartbeat file.
How long it may be silent is learned from its own longest silence (`Patience`); why what processors
and disks do counts for less is told in docs/how-to/hangs.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from clusterkit.core.model import HANG_AFTER_S
from clusterkit.core.processes import PROC
from clusterkit.core.reading import open_regular
from clusterkit.core.text import ESCAPES
from clusterkit.core.throughput import read, step_of
from clusterkit.core.timing import scaled


@dataclass(frozen=True, slots=True, kw_only=True)
class HangTimes:
    """Every waiting time of the hang watch."""

    look_s: float = scaled(5.0, 0.5)
    moved_s: float = scaled(30.0, 3.0)
    """How long after they wrote or read much, processes count as at work."""
    stacks_s: float = 60.0
    """For the stacks of all ranks of a node; each rank gets ten seconds of it."""
    dumps_s: float = scaled(5.0, 2.0)
    """And then for dumps of their flight recorders: once a second ranks look who wants one."""
    ras_s: float = scaled(15.0, 3.0)
    """For the answer of NCCL, which gives each part of a job a third of it."""
    others_s: float = scaled(20.0, 5.0)
    """How long a node that ends the job waits for the stacks of the others."""


TIMES = HangTimes()
_LEARNED = 2.0
"""So many times its longest silence a job may be silent."""
_ONCE, _FEW = 12.0, 3.0
"""So many times the least after the first sign, and while there were few: they may be far apart,
and between the first steps things are compiled."""
_WARM_UP = 3
"""Silences that count as those of a warm-up."""
_FORGET_AFTER = 10
"""After so many silences, those of the warm-up do not count."""
_AT_WORK = 3.0
"""How much longer a job that writes or reads may be silent."""


class Patience:
    """How long a job may be silent: a floor, and twice its longest silence so far.

    All times are of a clock that only goes forward.
    """

    def __init__(
        self, now: float, *, least_s: float = HANG_AFTER_S, moved_s: float = TIMES.moved_s
    ):
        """Know nothing of the job; `least_s` is the floor."""
        self.least_s = least_s
        self.signs = 0
        """How often the script told progress."""
        self._moved_s = moved_s
        self._heard_at = self._active_at = now
        self._moved_at = -moved_s
        self._longest = self._longest_early = 0.0

    def hear(self, now: float, signs: int = 1) -> None:
        """Note that the script has told progress, so often since the last look."""
        if self.signs > _WARM_UP:
            self._longest = max(self._longest, now - self._heard_at)
        elif self.signs:
            self._longest_early = max(self._longest_early, now - self._heard_at)
        self.signs += signs
        self._heard_at = self._active_at = now

    def see(self, now: float, *, active: bool, moved: bool) -> None:
        """Note what processes do: whether one is at work at all, and reads or writes much."""
        if active or moved:
            self._active_at = now
        if moved:
            self._moved_at = now

    @property
    def seconds(self) -> float:
        """How long the job may be silent now."""
        factor = 1.0 if self.signs > _WARM_UP else _FEW if self.signs > 1 else _ONCE
        return max(self.least_s * factor, self._learned_s)

    @property
    def _learned_s(self) -> float:
        early = self._longest_early if self.signs - 1 <= _FORGET_AFTER else 0.0
        return _LEARNED * max(self._longest, early)

    def silent_s(self, now: float) -> float:
        """Return for how long there was no progress."""
        return now - (self._heard_at if self.signs else self._active_at)

    def must_look(self, now: float) -> bool:
        """Tell whether what processes do matters now."""
        return self.signs <= _WARM_UP or self.silent_s(now) >= self.seconds / 2

    def is_over(self, now: float) -> bool:
        """Tell whether the job hangs.

        In its warm-up, nobody knows how far apart its signs are: then it is enough that processes
        are idle for the least. Afterwards they may be busy waiting; only one that reads or writes
        much has some more time.
        """
        idle_s = now - self._active_at
        if self.signs <= _WARM_UP and idle_s >= max(self.least_s, self._learned_s):
            return True
        silent_s = now - self._heard_at
        if not self.signs or silent_s < self.seconds:
            return False
        at_work = now - self._moved_at < self._moved_s
        return not at_work or silent_s >= _AT_WORK * self.seconds


_MOST_READ = 1 << 16
"""Bytes of new output that are looked at each time: its end tells enough."""
_LONGEST_LINE = 1 << 12
_BAR = re.compile(r"(?<!\d)(\d{1,18})/\d{1,18}\s*\[\d+:\d\d")
"""A bar of tqdm, also of an evaluation: it moves."""


class Signs:
    """What a script tells of its progress, in its output and by the heartbeat file."""

    def __init__(self, log: Path, heartbeat: Path, *, since: int = 0):
        """Look at the log from byte `since` on."""
        self.step: int | None = None
        self.by = "activity"
        self.grew = False
        """Whether there was output since the last look."""
        self._log = log
        self._at = self._size = since
        self._heartbeat = heartbeat
        self._beat = _time_of(heartbeat)
        self._mark = ""

    def look(self) -> int:
        """Return how often the script has told progress since the last look, up to some."""
        beat = _time_of(self._heartbeat)
        beats = beat is not None and beat != self._beat
        self._beat = beat
        found = self._read()
        self.by = "heartbeat" if beats and not found else "steps" if found else self.by
        return found or int(beats)

    def _read(self) -> int:
        """Read what is new from its end on, until enough steps were seen; ranks repeat them."""
        marks: dict[str, None] = {}
        for line in reversed(self._new_text().split("\n")):
            if mark := _mark_of(line[-_LONGEST_LINE:]):
                marks[mark] = None
            if len(marks) > _WARM_UP:
                break
        before, self._mark = self._mark, next(iter(marks), self._mark)
        told = re.fullmatch(r"step (\d+)", self._mark)
        self.step = int(told[1]) if told else self.step
        return len(marks.keys() - {before})

    def _new_text(self) -> str:
        try:
            with os.fdopen(open_regular(self._log), "rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                self.grew = size > self._size
                self._size = size
                self._at = min(self._at, size)  # somebody may have emptied it
                start = max(self._at, size - _MOST_READ)
                stream.seek(start)
                data = stream.read(_MOST_READ)
        except OSError:
            self.grew = False
            return ""
        torn = len(data) - data.rfind(b"\n") - 1
        self._at = start + len(data) - (torn if torn <= _LONGEST_LINE else 0)
        return data.decode(errors="replace")


def _mark_of(line: str) -> str:
    """Return what tells this progress from another; empty where the line tells none."""
    if line.startswith("clusterkit: "):
        return ""  # it is ours, and tells the last step
    step = step_of(line)
    if step is not None:
        return f"step {step}"
    if read(line) is not None:
        return line
    bars = _BAR.findall(ESCAPES.sub("", line).rpartition("\r")[2])
    return f"bar {bars[-1]}" if bars else ""


def _time_of(path: Path) -> int | None:
    """Return when a file of our own, or of root in a container, was changed; it is never read."""
    try:
        about = path.lstat()
    except OSError:
        return None
    own = about.st_uid in {os.getuid(), 0}
    return about.st_mtime_ns if own and path.is_file() and not path.is_symlink() else None


_BUSY = 0.05
"""Share of a processor: a rank that waits for others without spinning takes less than 1 %, also
with a progress server and a logger beside it."""
_MUCH = 1 << 20
"""Bytes read and written from look to look: loggers and monitors write some KB."""
_TICKS = os.sysconf("SC_CLK_TCK")
_CHARS = re.compile(rb"^[rw]char: (\d{1,19})$", re.MULTILINE)


class Activity:
    """What the processes of a job do between two looks."""

    def __init__(self) -> None:
        """Have looked at nothing yet."""
        self._seen: dict[int, tuple[int, int]] = {}
        self._at: float | None = None

    def look(self, pids: Iterable[int], now: float) -> tuple[bool, bool]:
        """Tell whether one of them is at work, and whether together they read or write much.

        The first look compares with nothing, and sees them at work.
        """
        before, at = self._seen, self._at
        self._seen = {pid: taken for pid in pids if (taken := _taken(pid)) is not None}
        self._at = now
        if at is None or now <= at:
            return True, False
        known = [(taken, before[pid]) for pid, taken in self._seen.items() if pid in before]
        ticks = max((now_[0] - then[0] for now_, then in known), default=0)
        chars = sum(max(0, now_[1] - then[1]) for now_, then in known)
        started = len(self._seen.keys() - before.keys()) > 0
        return started or ticks / _TICKS / (now - at) > _BUSY, chars >= _MUCH


def _taken(pid: int) -> tuple[int, int] | None:
    """Return the processor time of a process, and the bytes that it read and wrote."""
    place = PROC / str(pid)
    try:
        fields = (place / "stat").read_bytes().rpartition(b")")[2].split()
        ticks = int(fields[11]) + int(fields[12])  # utime and stime, proc(5)
    except (OSError, IndexError, ValueError):
        return None
    try:
        chars = sum(map(int, _CHARS.findall((place / "io").read_bytes())))
    except OSError:  # of another user, in a container
        chars = 0
    return ticks, chars
