"""Times, memory sizes and port ranges as people write them. Standard library only."""

from __future__ import annotations

import re

_TIME = re.compile(
    r"(?:(?P<days>\d{1,5})-(?P<d_hours>\d{1,5})(?::(?P<d_minutes>\d{1,5})(?::(?P<d_seconds>\d{1,5}))?)?"
    r"|(?P<hours>\d{1,5}):(?P<h_minutes>\d{1,5}):(?P<h_seconds>\d{1,5})"
    r"|(?P<m_minutes>\d{1,5}):(?P<m_seconds>\d{1,5})"
    r"|(?P<minutes>\d{1,8}))",
    re.ASCII,
)
_WITH_UNIT = re.compile(r"(\d{1,5})\s*([smhd])", re.ASCII | re.IGNORECASE)
_SECONDS = {"days": 86400, "hours": 3600, "minutes": 60, "seconds": 1}
_UNLIMITED = frozenset({"unlimited", "infinite"})
_MEMORY = re.compile(r"(?P<number>\d{1,15})(?P<unit>[KMGTP]?)(?:i?B)?", re.ASCII | re.IGNORECASE)
_PORTS = re.compile(r"(\d{1,5})\s*-\s*(\d{1,5})", re.ASCII)
_BYTES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}

TIME_FORMS = "minutes, MM:SS, HH:MM:SS, D-HH[:MM[:SS]] or UNLIMITED"
MEMORY_FORMS = "a whole number with K, M, G or T, such as 64G"
MOUNT = re.compile(r"[^:\0]+:/[^:\0]*(:r[ow])?")
MOUNT_FORMS = "SOURCE:TARGET or SOURCE:TARGET:ro, TARGET an absolute path"
PORTS_FORMS = "FIRST-LAST between 1024 and 65535, such as 20000-29999"


def parse_time_limit(text: str) -> int | None:
    """Return a Slurm time limit in seconds; None for UNLIMITED.

    The forms are those of `--time` in sbatch(1): `90` is minutes, `1:30` is a minute and a half.

    Raises:
        ValueError: `text` has none of the forms, or the limit is zero.
    """
    if text.strip().lower() in _UNLIMITED:
        return None
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"invalid time limit {text!r}")
    seconds = sum(
        int(number) * _SECONDS[name.rpartition("_")[2]]
        for name, number in match.groupdict().items()
        if number is not None
    )
    if seconds == 0:
        raise ValueError(f"a time limit of {text!r} leaves no time")
    return seconds


def time_hint(text: str) -> str:
    """Return what to write for a time limit that has none of the forms, such as `2m`."""
    match = _WITH_UNIT.fullmatch(text.strip())
    if match is None or not (number := int(match[1])):
        return f"write {TIME_FORMS}"
    minutes, seconds = divmod(number, 60)
    meant = {
        "s": f"{minutes}:{seconds:02} (MM:SS)",
        "m": f"{number} (minutes)",
        "h": f"{number}:00:00 (HH:MM:SS)",
        "d": f"{number}-00 (D-HH)",
    }
    return f"did you mean {meant[match[2].lower()]}?"


def parse_memory(text: str, *, default_unit: str = "M") -> int:
    """Return a memory size in bytes; units are powers of 1024.

    `default_unit` is what a bare number counts: "M" as for sbatch `--mem`, "" for Docker. Slurm's
    `0` (all memory of the node) gives 0.

    Raises:
        ValueError: `text` is no memory size.
    """
    match = _MEMORY.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"invalid memory size {text!r}")
    return int(match["number"]) * _BYTES[match["unit"].upper() or default_unit]


def is_mount(text: str) -> bool:
    """Tell whether a text is `SOURCE:TARGET`, perhaps with `:ro` or `:rw` behind it."""
    return MOUNT.fullmatch(text) is not None


def parse_port_range(text: str) -> tuple[int, int]:
    """Return the first and last port of `FIRST-LAST`.

    Raises:
        ValueError: no such form, a port outside 1024-65535, last before first, or fewer than ten.
    """
    match = _PORTS.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"invalid port range {text!r}")
    first, last = int(match[1]), int(match[2])
    if not 1024 <= first <= 65535 or not 1024 <= last <= 65535:
        raise ValueError(f"{text!r} leaves the ports 1024-65535")
    if first <= last < first + 9:
        raise ValueError(f"{text!r} holds fewer than the ten ports of one job")
    if last < first:
        raise ValueError(f"{text!r} ends before it starts")
    return first, last
