"""Read what the nodes of a run print, as it comes, and keep the lines that tell its throughput."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.jobs.logs import LogReader, ranks_of
from clusterkit.observe.bench.scaling.rates import Reading
from clusterkit.observe.throughput import read

_LONGEST = 1 << 16
_ENDS = re.compile("[\r\n]")
"""A progress bar begins each of its states with a carriage return."""


class ThroughputLog:
    """The throughput lines of a run so far.

    Nodes may all tell the rate of the job. The first that tells one is listened to, and no other.
    """

    def __init__(self, run: RunFolder) -> None:
        """Read nothing yet."""
        self.readings: list[Reading] = []
        self._run = run
        self._readers: dict[int, LogReader] = {}
        self._begun: dict[int, str] = {}
        """Of each node, the line that has no end yet."""
        self._speaker: int | None = None

    def read(self, now_s: float, *, over: bool = False) -> None:
        """Read on; when the job is `over`, also lines that have no end."""
        for rank in ranks_of(self._run) if self._speaker is None else (self._speaker,):
            for line in self._lines(rank, over=over):
                found = read(line)
                if found is not None:
                    self._speaker = rank
                    self.readings.append(Reading(at_s=now_s, throughput=found))
            if self._speaker is not None:
                break

    def _lines(self, rank: int, *, over: bool) -> Iterator[str]:
        """Yield the lines that have ended since, and with `over` the last one as well."""
        if rank not in self._readers:
            self._readers[rank] = LogReader(self._run.log(rank))
        reader, begun = self._readers[rank], self._begun.pop(rank, "")
        for piece in chain(reader.pieces(), reader.rest()):
            *lines, begun = _ENDS.split(begun + piece)
            begun = begun[-_LONGEST:]
            yield from lines
        if over:
            yield begun
        else:
            self._begun[rank] = begun
