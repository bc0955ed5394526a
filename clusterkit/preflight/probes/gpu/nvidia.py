"""What all NVIDIA probes share: how they are asked, and how a cell is read."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import lru_cache
from typing import TypeVar

from clusterkit.core import untrusted
from clusterkit.core.data import read_snippet, read_table
from clusterkit.core.untrusted import real
from clusterkit.preflight.probes.gpu import for_gpu_jobs
from clusterkit.transport.probe import PreflightJob, Probe, Unparsed

T = TypeVar("T")

LANE = "nvidia"
"""The driver answers one caller at a time; a dozen at once only wait for each other."""
TIMEOUT_S = 20.0
"""Without persistence mode the driver initialises every GPU first, about 1-2 s each."""

_CACHED = 1 << 14
"""Cells of thousands of GPUs hold the same few hundred texts."""


def words_of(what: str) -> frozenset[str]:
    """Return the words of nvidia-smi for something; `nvidia_words.tsv` lists them."""
    rows = read_table(__file__, "nvidia_words.tsv")
    return frozenset(row["words"] for row in rows if row["of"] == what)


_NOT_SUPPORTED = words_of("no-value")


def nvidia(body: str) -> Callable[[PreflightJob], str]:
    """Return the snippet `body` for machines with an NVIDIA GPU; others are passed over.

    In `body`, `broken` ends the snippet as "does not apply" unless NVIDIA hardware can be seen.
    """
    return for_gpu_jobs(read_snippet("nvidia_guard") + body)


def nvidia_probe(
    name: str, body: str, parse: Callable[[str], T], *, exit_codes: Collection[int] = (0,)
) -> Probe[T]:
    """Return a probe that asks the driver, as `nvidia` does; see `Probe`."""
    return Probe(
        name=name,
        command=nvidia(body),
        parse=parse,
        timeout_s=TIMEOUT_S,
        lane=LANE,
        exit_codes=frozenset(exit_codes),
    )


@lru_cache(maxsize=_CACHED)
def cell(text: str) -> str | None:
    """Return a cell of nvidia-smi; None where the driver does not say (`[N/A]` and its kin)."""
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    return None if not text or text in _NOT_SUPPORTED else text


@lru_cache(maxsize=_CACHED)
def number(text: str | None) -> float | None:
    """Return the figure of a cell such as `81559 MiB`, `16x` or `28`.

    Raises:
        Unparsed: it does not begin with a figure.
    """
    if text is None:
        return None
    return real(text.split(" ", 1)[0].removesuffix("x").removesuffix("%"))


@lru_cache(maxsize=_CACHED)
def whole(text: str | None) -> int | None:
    """Return the whole number of a cell; raises `Unparsed` as `number` does."""
    value = number(text)
    if value is None:
        return None
    if not value.is_integer():
        raise Unparsed(f"no whole number: {(text or '')[:40]!r}")
    return int(value)


@lru_cache(maxsize=_CACHED)
def switch(text: str | None) -> bool | None:
    """Return whether a cell says Enabled, Yes or Active; raises `Unparsed` on any other word."""
    if text is None:
        return None
    if text in {"Enabled", "Yes", "Active"}:
        return True
    if text in {"Disabled", "No", "Not Active"}:
        return False
    raise Unparsed(f"neither yes nor no: {text[:40]!r}")


def mask(text: str | None) -> int | None:
    """Return a bit mask such as `0x0000000000000004`; raises `Unparsed` where it is none."""
    return None if text is None else untrusted.whole(text, base=16)
