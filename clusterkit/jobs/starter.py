"""A detached process that starts queued jobs when their time comes, so that nobody has to watch.

Where no scheduler makes jobs wait (over ssh, and on this machine), `submit` leaves one behind: at
most one for each cluster and user, by a lock on its run folders. It starts and restarts what
clients would (`start_queued.py`), with the same locks, and ends when no job waits any more. Killed
at any moment it leaves jobs as they are: the next client that looks on, or the next starter, goes
on with them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from urllib.parse import quote

from clusterkit.core import files
from clusterkit.core.commands import require_utf8
from clusterkit.core.errors import ClusterkitError
from clusterkit.core.records import record_of
from clusterkit.core.timing import scaled
from clusterkit.executors.base import scrubbed_environment
from clusterkit.executors.run import runfolder
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.executors.run.submit_journal import ProcessId
from clusterkit.jobs.find import list_runs
from clusterkit.jobs.start_queued import may_need_client
from clusterkit.jobs.watch import Watch

MODULE = "clusterkit.jobs.starter"
_LONGEST = 1000
_LOOK_EVERY_S = scaled(1.0, 0.2)
_LIST_EVERY_S = scaled(5.0, 1.0)
"""How often new jobs are looked for."""
_GIVE_UP_S = 14 * 86_400.0
"""For how long the same problem may keep jobs from starting: a client finds them as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Starter(ProcessId):
    """What stands in the file of a starter."""

    problem: str = ""
    """Why a job that may start cannot be started yet."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The jobs of one cluster and user: where their runs are, and the files of their starter."""

    root: Path
    cluster: str

    @classmethod
    def of(cls, run: RunFolder) -> _Place | None:
        """Return the place of a run; None where its submission cannot be read."""
        submission = runfolder.read_submission(run)
        return cls(run.path.parent, submission.cluster) if submission is not None else None

    @property
    def lock(self) -> Path:
        """Locked by the starter; never read, as closing it once would give the lock back."""
        return self._file("lock")

    @property
    def note(self) -> Path:
        """Who the starter is."""
        return self._file("json")

    @property
    def log(self) -> Path:
        """What a starter that broke down has printed."""
        return self._file("log")

    def _file(self, kind: str) -> Path:
        cluster = quote(self.cluster, safe="")
        return self.root / f".starter-{cluster}-{os.geteuid()}.{kind}"

    def waiting(self) -> list[RunFolder]:
        """Return the runs whose start, now or later, is up to a client."""
        found = []
        for run in list_runs([self.root]):
            if run.state.exists() or not may_need_client(run):
                continue
            submission = runfolder.read_submission(run)
            if submission is not None and submission.cluster == self.cluster:
                found.append(run)
        return found


def leave_behind(runs: Iterable[RunFolder]) -> bool:
    """Start a starter for each cluster of which one of these runs is queued; tell whether any was.

    One that finds another at work ends at once. Where none can be started, jobs wait for a client.
    """
    places = {_Place.of(run) for run in runs if run.queued.exists()}
    with suppress(ClusterkitError, OSError):
        for place in places - {None}:
            _spawn(cast("_Place", place))
        return bool(places)
    return False


def _spawn(place: _Place) -> None:
    """Start it in a session of its own, with no stream of this process: it outlives the terminal.

    It needs the agent and the keys of this shell, and nothing of a job in which this runs.
    """
    log = files.open_for_append(place.log)
    with open(log, "ab") as stream:  # noqa: PTH123 - a descriptor
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, str(place.root), place.cluster],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env=scrubbed_environment(),
            start_new_session=True,
        )
    process.returncode = 0  # left on its own; without this Python warns that it still runs


def starter_of(run: RunFolder) -> Starter | None:
    """Return the starter that looks after this run, or None where none is known to live.

    Of one on another machine nobody here can tell; it is taken for alive as long as it is noted.
    """
    place = _Place.of(run)
    found = record_of(Starter, files.read_json(place.note, own=True)) if place else None
    return found if found is not None and (found.lives or not found.here) else None


def main(argv: list[str]) -> int:
    """Start the jobs of a cluster until none waits, unless another process does."""
    root, cluster = argv
    place = _Place(Path(root), cluster)
    while place.waiting():
        with files.locked(place.lock) as mine:
            if not mine:
                return 0
            try:
                stuck = _start_all(place)
            finally:
                with suppress(ClusterkitError, OSError):
                    files.remove(place.note)
        # A job that was queued while the lock was still held has found no starter: look again.
        if stuck:
            return 0
    return 0


def _start_all(place: _Place) -> bool:
    """Start what waits until nothing does; tell whether jobs are left that nobody can start."""
    own = ProcessId.own()
    noted, since = None, 0.0
    while runs := place.waiting():
        watch = Watch(*runs, starts=True)
        listed_at = time.monotonic()
        while True:
            with suppress(ClusterkitError):  # a folder that was removed meanwhile
                watch.look()
            if watch.problem != noted:
                noted, since = watch.problem, time.monotonic()
                note = {**files.plain(own), "problem": noted[:_LONGEST]}
                with suppress(ClusterkitError):
                    files.write_json(place.note, note, mode=files.PRIVATE)
            over = watch.stuck or (bool(watch.jobs) and not watch.open)
            if noted and time.monotonic() - since > _GIVE_UP_S:
                return True
            if over or time.monotonic() - listed_at > _LIST_EVERY_S:
                listed_at, left = time.monotonic(), set(place.waiting())
                if over and left <= set(runs):
                    return bool(left)
                if over or not left <= set(runs) or not left:
                    break
            time.sleep(_LOOK_EVERY_S)
    return False


if __name__ == "__main__":
    require_utf8()
    sys.exit(main(sys.argv[1:]))
