"""What clouds announce of a machine: that they take it, or its maintenance.

AWS gives 120 s (Amazon EC2, Spot Instance interruption notices; scheduled events), Azure at least
30 s (Scheduled Events, 2020-07-01), GCP 30 s for a Spot VM and no time for maintenance (Compute
Engine, host maintenance events). Where that stands in the metadata service is in `metadata.tsv`;
`preflight` and the nodes of a job read it alike.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from clusterkit.core.files import parse_json
from clusterkit.core.records import text_of, texts_of
from clusterkit.core.text import harmless

TELLS = frozenset({"spot", "events", "name"})
"""Rows of `metadata.tsv` that tell of announcements, or of whom they are."""
_LONGEST = 120
_GCP_EVENT = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """What a cloud announces of a machine."""

    what: str
    when: str = ""
    """In the cloud's own words; empty where it does not say."""
    at: float | None = None
    """Seconds since the epoch; None where the cloud does not say, or nobody can read it."""
    soon: bool = False
    """Whether that is a matter of minutes, whatever it says of the time."""


def read_announcements(cloud: str, told: Mapping[str, str]) -> tuple[Announcement, ...] | None:
    """Return what a cloud announces by its answers to `TELLS`; None where it does not say.

    Raises:
        ValueError: an answer makes no sense, as a page of somebody else's does.
    """
    read = _READ.get(cloud)
    found = tuple(read(told)) if read else ()
    return found if found or told.get("events") else None


def _aws(told: Mapping[str, str]) -> Iterator[Announcement]:
    if action := told["spot"]:
        when = text_of(parse_json(action.encode()) or {}, "time") or ""
        if _moment(when) is None:
            raise ValueError(f"no moment: {action[:40]!r}")
        yield _announcement("AWS takes back the Spot instance", when, soon=True)
    for event in _events('{"Events": ' + (told["events"] or "[]") + "}"):
        if event.get("State") == "active":
            yield _announcement(f"AWS plans {_text(event, 'Code')}", text_of(event, "NotBefore"))


def _azure(told: Mapping[str, str]) -> Iterator[Announcement]:
    for event in _events(told["events"] or '{"Events": []}'):
        kind = _text(event, "EventType")
        if kind != "Freeze" and told["name"] in texts_of(event, "Resources"):  # of some seconds
            now = time.time() if event.get("EventStatus") == "Started" else None
            when, soon = text_of(event, "NotBefore"), kind == "Preempt"
            yield _announcement(f"Azure announces {kind}", when, at=now, soon=soon)


def _gcp(told: Mapping[str, str]) -> Iterator[Announcement]:
    if told["spot"].strip() == "TRUE":
        yield _announcement("GCP takes back the Spot VM", None, soon=True)
    if (event := told["events"].strip()) not in {"", "NONE"}:
        if not event.isascii() or not event.replace("_", "").isalnum():
            raise ValueError(f"no event: {event[:40]!r}")
        soon = event.startswith("TERMINATE")  # of GPUs, which no VM takes along to another host
        yield _announcement(f"GCP announces {event[:_GCP_EVENT]}", None, soon=soon)


_READ = {"aws": _aws, "azure": _azure, "gcp": _gcp}


def _announcement(
    what: str, when: str | None, *, at: float | None = None, soon: bool = False
) -> Announcement:
    said = harmless(when or "")[:_LONGEST]
    return Announcement(what=what, when=said, at=_moment(said) if at is None else at, soon=soon)


def _events(text: str) -> list[Mapping[str, Any]]:
    found = (parse_json(text.encode()) or {}).get("Events")
    if not isinstance(found, list) or not all(isinstance(event, dict) for event in found):
        raise ValueError(f"no list of events: {text[:40]!r}")
    return found


def _text(document: Mapping[str, Any], key: str) -> str:
    return harmless(text_of(document, key) or "")[:_LONGEST]


def _moment(text: str) -> float | None:
    """Return seconds since the epoch of ISO 8601 or RFC 1123."""
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 - seldom is anything announced

    for read in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            at = read(text).timestamp()
        except (ValueError, OverflowError, OSError):
            continue
        return at if math.isfinite(at) else None
    return None
