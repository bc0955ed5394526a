"""The last lines of a node's output that tell why it failed, read from the end of its log."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from clusterkit.core.reading import open_regular
from clusterkit.core.text.escapes import ESCAPES

LINES = 20
SIZE = 4096
"""Bytes of all lines together, as UTF-8: they go into a small file, and through one call to the
first node of a job over ssh."""
_WIDTH = 400
_WINDOW = 1 << 18
"""How much of the log is looked at: ranks print at once, and launchers report at length."""

_OF_RANK = re.compile(r"\[rank\d+\]:")
_REPORT = re.compile(
    r"\btorch/distributed/elastic/\S+\.py:\d+\]|\[launch\.py:\d+:sigkill_handler\]"
)
"""Lines with which torchrun and DeepSpeed's launcher begin to report that a rank has failed."""
_MARKS = re.compile(r"[ ~^]+")
"""What Python prints below a line of source."""
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\ud800-\udfff]")


def last_words(
    log: Path, *, since: int = 0, until: tuple[int, int] | None = None, rank: int | None = None
) -> tuple[str, ...]:
    """Return the last lines of a log from byte `since` on; empty where it cannot be read.

    They end at the size in `until`, where the inode there is that of the log.

    Of a known rank they end where its launcher begins to report. They are its own traceback where
    PyTorch printed one (its lines begin with `[rankR]: `), and else without those of other ranks.
    """
    lines = [_clean(line) for line in _read_end(log, since, until).split("\n")]
    lines = [line for line in lines if line and not _MARKS.fullmatch(_OF_RANK.sub("", line))]
    if rank is not None:
        lines = _before_report(lines)
        prefix = f"[rank{rank}]: "
        own = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
        told = any(line.startswith("Traceback (most recent call last)") for line in own)
        others = [line for line in lines if not _OF_RANK.match(line) or line.startswith(prefix)]
        lines = own if told else others
    return bounded(lines)


def cut(text: str, size: int) -> str:
    """Return `text` without what a terminal would act on, and not longer than `size`."""
    clean = _CONTROL.sub(" ", ESCAPES.sub("", text)).rstrip()
    return clean if len(clean) <= size else clean[: size - 1] + "…"


def _read_end(log: Path, since: int, until: tuple[int, int] | None) -> str:
    try:
        with os.fdopen(open_regular(log), "rb") as stream:
            about = os.fstat(stream.fileno())
            end = about.st_size
            if until is not None and until[0] == about.st_ino:
                end = min(end, until[1])
            begin = max(since, end - _WINDOW, 0)
            stream.seek(begin)
            data = stream.read(max(0, end - begin))
    except OSError:
        return ""
    if begin > since:
        data = data.partition(b"\n")[2]  # the first line is not whole
    return data.decode(errors="replace")


def _clean(line: str) -> str:
    """Return what a terminal would show of a line: of a progress bar, its last state."""
    states = [state for state in line.split("\r") if state.strip()]
    return cut(states[-1].expandtabs(4), _WIDTH) if states else ""


def _before_report(lines: Sequence[str]) -> list[str]:
    at = next((n for n in range(len(lines), 0, -1) if _REPORT.search(lines[n - 1])), None)
    if at is None:
        return list(lines)
    while at and _REPORT.search(lines[at - 1]):
        at -= 1
    return list(lines[:at])


def bounded(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the last of `lines`, as many as may be kept of a node."""
    kept: list[str] = []
    room = SIZE
    for line in reversed(lines[-LINES:]):
        room -= len(line.encode()) + 1
        if room < 0:
            break
        kept.append(line)
    return tuple(reversed(kept))
