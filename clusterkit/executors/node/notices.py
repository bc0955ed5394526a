"""Notices of a cloud that it is about to take this machine, as its metadata service gives them.

AWS gives 120 s (Amazon EC2, Spot Instance interruption notices; IMDSv2), Azure at least 30 s
(Scheduled Events, 2020-07-01), GCP 30 s (Compute Engine, preemptible and Spot VMs). The service is
asked only where the firmware says that the machine is of that cloud, without credentials. An answer
that is late, too long or makes no sense is none.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

from clusterkit.core import dmi, files
from clusterkit.core.bounds import Moment
from clusterkit.core.errors import UserError
from clusterkit.core.metadata import ask
from clusterkit.core.records import record_of, text_of, texts_of
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
    look = cloud_of(dmi.machine_root())
    if look is not None:
        threading.Thread(target=_watch, args=(run, me, look), daemon=True).start()
    return look is not None


def cloud_of(root: Path) -> Callable[[], tuple[str, float] | None] | None:
    """Return what asks the cloud of the machine with these files for a notice; None without one."""
    return _LOOKS.get(dmi.cloud_of(root) or "")


def _watch(run: RunFolder, me: Identity, look: Callable[[], tuple[str, float] | None]) -> None:
    while True:
        found = look()
        if found is not None and abs(found[1] - time.time()) <= _AHEAD_S:
            notice = Notice(node=me.name, what=found[0], at=found[1])
            with suppress(UserError):  # a disk that takes no more may do so in time
                files.create_text(run.notice(me.attempt), json.dumps(files.plain(notice)))
                return
        time.sleep(_POLL_S)


def _aws() -> tuple[str, float] | None:
    token = ask("/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, method="PUT")
    headers = {"X-aws-ec2-metadata-token": token} if token is not None else {}
    event = _object(ask("/latest/meta-data/spot/instance-action", headers))
    at = _moment(text_of(event, "time"))
    return ("AWS takes back the Spot instance", at) if at is not None else None


def _gcp() -> tuple[str, float] | None:
    headers = {"Metadata-Flavor": "Google", "Host": "metadata.google.internal"}
    said = ask("/computeMetadata/v1/instance/preempted", headers)
    taken = said is not None and said.strip() == "TRUE"
    return ("GCP takes back the Spot VM", time.time() + _SOON_S) if taken else None


def _azure() -> tuple[str, float] | None:
    headers = {"Metadata": "true"}
    said = _object(ask("/metadata/scheduledevents?api-version=2020-07-01", headers))
    events = said.get("Events")
    mine = [
        (f"Azure announces {kind}", at)
        for event in (events if isinstance(events, list) else ())
        if isinstance(event, dict)
        and (kind := text_of(event, "EventType")) in _AZURE_ENDS
        and (at := _moment(text_of(event, "NotBefore"), soon=event.get("EventStatus"))) is not None
        and _azure_name(headers) in texts_of(event, "Resources")
    ]
    return min(mine, key=lambda event: event[1], default=None)


def _azure_name(headers: Mapping[str, str]) -> str | None:
    path = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
    return ask(path, headers)


_AZURE_ENDS = frozenset({"Preempt", "Reboot", "Redeploy", "Terminate"})
"""Of the others, `Freeze` stops the machine for some seconds."""

_LOOKS = {"aws": _aws, "gcp": _gcp, "azure": _azure}


def _object(text: str | None) -> dict[str, object]:
    document = files.parse_json(text.encode()) if text is not None else None
    return document or {}


def _moment(text: str | None, *, soon: object = None) -> float | None:
    """Return seconds since the epoch of ISO 8601 or RFC 1123; now where an event has `Started`."""
    if text is None or soon == "Started":
        return time.time() if soon == "Started" else None
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            at = read(text).timestamp()
        except (ValueError, OverflowError, OSError):
            continue
        return at if math.isfinite(at) else None
    return None
