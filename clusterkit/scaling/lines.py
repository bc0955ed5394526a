"""Read what the nodes of a run print, as it comes, and keep the lines that tell its throughput."""

from __future__ import annotations

import re
from pathlib import Path

from clusterkit.jobs.logs import ranks_of
from clusterkit.runfolder import RunFolder
from clusterkit.scaling.rates import Reading
from clusterkit.throughput import read

_CHUNK = 1 << 20
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
        self._tails: dict[int, _Tail] = {}
        self._speaker: int | None = None

    def read(self, now_s: float, *, over: bool = False) -> None:
        """Read on; when the job is `over`, also lines that have no end."""
        for rank in ranks_of(self._run) if self._speaker is None else (self._speaker,):
            tail = self._tails.setdefault(rank, _Tail(self._run.log(rank)))
            for line in tail.lines(over=over):
                found = read(line)
                if found is not None:
                    self._speaker = rank
                    self.readings.append(Reading(at_s=now_s, throughput=found))
            if self._speaker is not None:
                break


class _Tail:
    """The lines that are added to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self._rest = ""

    def lines(self, *, over: bool) -> list[str]:
        """Return the lines that have ended since, and with `over` the last one as well."""
        *lines, self._rest = _ENDS.split(self._rest + self._new())
        if over:
            lines, self._rest = [*lines, self._rest], ""
        self._rest = self._rest[-_LONGEST:]
        return lines

    def _new(self) -> str:
        try:
            with self._path.open("rb") as stream:
                if self._path.stat().st_size < self._position:  # begun anew
                    self._position, self._rest = 0, ""
                stream.seek(self._position)
                chunk = stream.read(_CHUNK)
        except OSError:
            return ""
        self._position += len(chunk)
        # Throughput is told in ASCII: a character that is cut in two does no harm.
        return chunk.decode(errors="replace")
