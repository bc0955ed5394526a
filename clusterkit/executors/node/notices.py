"""Notices of a cloud that it is about to take this machine, as its metadata service gives them.

The service is asked only where the firmware says that the machine is of that cloud, without
credentials. An answer that is late, too long or makes no sense is none.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from clusterkit.core import files, metadata
from clusterkit.core.announcements import TELLS, read_announcements
from clusterkit.core.bounds import Moment
from clusterkit.core.errors import UserError
from clusterkit.core.records import record_of
from clusterkit.core.timing import scaled
from clusterkit.executors.node.identity import Identity
from clusterkit.executors.run import runfolder
from clusterkit.executors.run.runfolder import RunFolder

_POLL_S = scaled(5.0, 1.0)
_AHEAD_S = 180.0
"""An event that is announced for later (maintenance in two weeks), or is long over, is none."""
_SOON_S = 30.0
"""How long a machine has of which the notice does not say when."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What stands in `notice-ATTEMPT.json`: which node of the job the cloud takes, and when."""

    node: str
    what: str
    at: Moment
    """Seconds since the epoch."""

    @property
    def text(self) -> str:
        """Return it in words."""
        return f"{self.node}: {self.what} at {datetime.fromtimestamp(self.at).astimezone():%X}"


def read_notice(run: RunFolder, attempt: int) -> Notice | None:
    """Return the first notice that a node of this attempt was given; None while there is none."""
    path = run.notice(attempt)
    if path.name not in runfolder.listed(run.path):
        return None
    return record_of(Notice, files.read_json(path))


def begin(run: RunFolder, me: Identity) -> bool:
    """Look for notices from now on, in a thread, where this machine is of a cloud; tell whether."""
    cloud = announcing_cloud(metadata.machine_root())
    if cloud is not None:
        threading.Thread(target=_watch, args=(run, me, cloud), daemon=True).start()
    return cloud is not None


def announcing_cloud(root: Path) -> str | None:
    """Return the cloud of the machine with these files; None for none, or one without notices."""
    cloud = metadata.cloud_of(root)
    return cloud if any(row["tells"] in TELLS for row in metadata.questions(cloud)) else None


def look(cloud: str) -> tuple[str, float] | None:
    """Return what a cloud announces of this machine for the next minutes, and when it comes.

    The moment is in seconds since the epoch. None where nothing is announced, or nothing that
    makes sense.
    """
    try:
        announced = read_announcements(cloud, metadata.answers(cloud, TELLS)) or ()
    except ValueError:
        return None
    now = time.time()
    soon = (
        (one.what, now + _SOON_S if one.at is None and one.soon else one.at) for one in announced
    )
    near = [(what, at) for what, at in soon if at is not None and abs(at - now) <= _AHEAD_S]
    return min(near, key=lambda notice: notice[1], default=None)


def _watch(run: RunFolder, me: Identity, cloud: str) -> None:
    while True:
        if (found := look(cloud)) is not None:
            notice = Notice(node=me.name, what=found[0], at=found[1])
            with suppress(UserError):  # a disk that takes no more may do so in time
                files.create_text(run.notice(me.attempt), json.dumps(files.plain(notice)))
                return
        time.sleep(_POLL_S)
