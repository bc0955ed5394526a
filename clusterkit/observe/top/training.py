"""How a job is doing: its state, and the speed that its log tells."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from clusterkit.core import files
from clusterkit.core.reading import open_regular
from clusterkit.core.records import count_of
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.jobs.document import name_of
from clusterkit.jobs.logs import LogReader, ranks_of
from clusterkit.jobs.watch import Watch
from clusterkit.observe.throughput import Throughput, read
from clusterkit.observe.top.snapshot import JobNow

_TAIL = 200
"""Lines of each log that are read at first."""
_TAIL_BYTES = 1 << 20
"""They may be longer than that: a progress bar may never end its line."""
_PIECES = 16
"""Of what a log has got since, the last are looked at; one has about 256 KiB at most."""
_REST_OF_LINE = re.compile(rb"[^\r\n]*")
_HISTORY = 40


class LastLines(LogReader):
    """Read a log that grows from its last lines on, without reading what stands before them."""

    def __init__(self, path: Path) -> None:
        """Read `path` from `_TAIL` lines or `_TAIL_BYTES` before its end, whichever is less."""
        super().__init__(path)
        self._position = _last_lines(path)


def _last_lines(path: Path) -> int:
    try:
        with os.fdopen(open_regular(path), "rb") as stream:
            end = stream.seek(0, os.SEEK_END)
            start = stream.seek(max(0, end - _TAIL_BYTES))
            read = stream.read(end - start)
    except OSError:
        return 0
    lines = read.split(b"\n")
    if len(lines) > _TAIL + 1:
        return start + len(read) - len(b"\n".join(lines[-_TAIL - 1 :]))
    torn = _REST_OF_LINE.match(read) if start else None
    return start + (torn.end() if torn is not None else 0)


class Training:
    """Look at a job again and again; only what its log has got since is read."""

    def __init__(self, run: RunFolder) -> None:
        """Look at the job in `run`."""
        self._watch = Watch(run)
        self._readers: dict[int, LogReader] = {}
        self._told: dict[int, Throughput] = {}
        self._history: deque[float] = deque(maxlen=_HISTORY)
        self._slots = _slots(run)

    @property
    def over(self) -> bool:
        """Whether the job has ended, or nothing more will be learnt of it."""
        return self._watch.over

    def look(self) -> JobNow:
        """Return what is known now."""
        self._watch.look()
        job = self._watch.job
        run = job.run
        for rank in ranks_of(run):
            if rank not in self._readers:
                self._readers[rank] = LastLines(run.log(rank))
            found = latest(self._readers[rank])
            if found is not None:
                self._told[rank] = found
        first = min(self._told) if self._told else None
        speed = self._told[first] if first is not None else None
        if speed is not None and (not self._history or self._history[-1] != speed.rate):
            self._history.append(speed.rate)
        return JobNow(
            job_id=name_of(job),
            name=job.submission.name,
            run_id=run.run_id,
            state=job.status.state,
            speed=speed,
            speed_of=first,
            slots=self._slots,
            history=tuple(self._history),
        )


def _slots(run: RunFolder) -> int | None:
    plan = files.read_json(run.plan) or {}
    return count_of(plan, "processes") or None if plan.get("max_nodes") is None else None


def latest(reader: LogReader) -> Throughput | None:
    """Return the last speed that a log tells since it was looked at before, rather no average."""
    average = None
    for line in _backwards(reader):
        found = read(line)
        if found is not None and not found.average:
            return found
        average = average or found
    return average


def _backwards(reader: LogReader) -> Iterator[str]:
    pieces = deque(reader.pieces(), maxlen=_PIECES)
    # A progress bar may not end its line for hours; its last state may not be whole yet.
    pieces.extend(piece.rpartition("\r")[0] for piece in reader.rest())
    for piece in reversed(pieces):
        yield from reversed(piece.splitlines())
