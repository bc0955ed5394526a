"""How a job is doing: its state, and the speed that its log tells."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from clusterkit.jobs.document import name_of
from clusterkit.jobs.logs import LogReader, ranks_of
from clusterkit.jobs.watch import Observer
from clusterkit.runfolder import RunFolder
from clusterkit.throughput import Throughput, read
from clusterkit.top.snapshot import JobNow

_TAIL = 200
"""Lines of each log that are read at first."""
_HISTORY = 40


class Training:
    """Look at a job again and again; only what its log has got since is read."""

    def __init__(self, run: RunFolder) -> None:
        """Look at the job in `run`."""
        self._observer = Observer(run)
        self._readers: dict[int, LogReader] = {}
        self._told: dict[int, Throughput] = {}
        self._history: deque[float] = deque(maxlen=_HISTORY)

    @property
    def over(self) -> bool:
        """Whether the job has ended, or nothing more will be learnt of it."""
        return self._observer.over

    def look(self) -> JobNow:
        """Return what is known now."""
        job = self._observer.look()
        run = self._observer.run
        for rank in ranks_of(run):
            if rank not in self._readers:
                self._readers[rank] = LogReader(run.log(rank), tail=_TAIL)
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
            history=tuple(self._history),
        )


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
    pieces = list(reader.pieces())
    # A progress bar may not end its line for hours; its last state may not be whole yet.
    pieces += [piece.rpartition("\r")[0] for piece in reader.rest()]
    for piece in reversed(pieces):
        yield from reversed(piece.splitlines())
