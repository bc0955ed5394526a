"""Read `nvidia-smi -q` and turn it into the columns of `--query-gpu`.

The text is a tree by indentation. Sections moved and were renamed over the years (Clocks Throttle
Reasons became Clocks Event Reasons with 535, Power Readings became GPU Power Readings); what is
not there is not reported.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

from clusterkit.core.data import read_snippet, read_table
from clusterkit.preflight.probes.gpu.nvidia import cell, switch, whole
from clusterkit.transport.probe import Unparsed

SLOWDOWN = "slowdown_temp"
"""Column of ours: the temperature at which clocks are cut; `--query-gpu` has none for it."""
SLOWDOWN_TLIMIT = "slowdown_tlimit"
"""Column of ours: the T.Limit margin at which clocks are cut, 0 or below (Hopper and later)."""

_MARK = "NVSMI LOG"
# A literal beginning is found ten times as fast as `^` with MULTILINE.
_GPU = re.compile(r"\nGPU (.*)")
_PATHS = {row["path"]: row["column"] for row in read_table(__file__, "nvidia_query.tsv")}
_REASONS = {row["reason"]: int(row["bit"], 16) for row in read_table(__file__, "clock_reasons.tsv")}
_ECC = "ECC Errors"
_REASON_SECTIONS = ("Clocks Event Reasons", "Clocks Throttle Reasons")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One `nvidia-smi -q`."""

    driver: str | None
    cuda: str | None
    rows: tuple[dict[str, str], ...]
    """One a GPU, in order, by column of `--query-gpu`; `index` is the place in that order."""


def is_query(text: str) -> bool:
    """Return whether there is an `nvidia-smi -q` in `text`."""
    return _MARK in text


def read_query(text: str) -> Query:
    """Read `nvidia-smi -q`, whole or of some sections (`-d`).

    Raises:
        Unparsed: it is none, or has not as many GPUs as it says are attached.
    """
    _, found, body = text.partition(_MARK)
    if not found:
        raise Unparsed("no NVSMI LOG")
    above, *blocks = _GPU.split("\n" + body.partition("\n")[2])
    head = _tree(above)
    attached, count = head.get("Attached GPUs"), len(blocks) // 2
    if attached is None or whole(attached) != count:
        raise Unparsed(f"{count} GPUs in the text, {attached or 'none'} attached")
    by_gpu = zip(blocks[::2], blocks[1::2], strict=True)
    return Query(
        driver=cell(head.get("Driver Version", "")),
        cuda=cell(head.get("CUDA Version", "")),
        rows=tuple(
            {"index": str(index), "pci.bus_id": bus_id.strip(), **_row(block)}
            for index, (bus_id, block) in enumerate(by_gpu)
        ),
    )


def _tree(text: str) -> dict[str, str]:
    """Return path -> value; the heading of a section has an empty value."""
    values: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    for line in text.splitlines():
        name = line.strip()
        if not name:
            continue
        indent = len(line) - len(line.lstrip())
        while above and above[-1][0] >= indent:
            above.pop()
        key, colon, value = name.partition(" : ")
        key = key.rstrip()
        path = f"{above[-1][1]}/{key}" if above else key
        above.append((indent, path))
        values.setdefault(path, value.strip() if colon else "")
    return values


@lru_cache(maxsize=1 << 14)
def _row(text: str) -> Mapping[str, str]:
    """Read what stands below one GPU; thousands of them say the same."""
    block = _tree(text)
    row: dict[str, str] = {}
    for path, value in block.items():
        column = _PATHS.get(path)
        if column is not None:
            row.setdefault(column, value)
    row.update(_reasons(block))
    row.update(_uncorrected(block))
    if "gpu_recovery_action" not in row and "reset_required" in row:
        required = switch(cell(row["reset_required"]))
        row["gpu_recovery_action"] = {True: "Reset", False: "None", None: "N/A"}[required]
    return MappingProxyType(row)


def _reasons(block: dict[str, str]) -> dict[str, str]:
    for section in _REASON_SECTIONS:
        if section not in block:
            continue
        reasons = {r: block[f"{section}/{r}"] for r in _REASONS if f"{section}/{r}" in block}
        mask = sum(_REASONS[r] for r, value in reasons.items() if switch(cell(value)))
        return {"clocks_event_reasons.active": f"{mask:#x}"} if reasons else {}
    return {}


def _uncorrected(block: dict[str, str]) -> dict[str, str]:
    """Add up uncorrectable errors by memory; older drivers print a total of double-bit ones."""
    if _ECC not in block:
        return {}
    columns = {}
    for kind in ("Volatile", "Aggregate"):
        prefix = f"{_ECC}/{kind}/"
        parts = [
            cell(value)
            for path, value in block.items()
            if path.startswith(prefix)
            and ("Uncorrectable" in path or path == f"{prefix}Double Bit/Total")
        ]
        counted = [whole(part) or 0 for part in parts if part is not None]
        if counted:
            columns[f"ecc.errors.uncorrected.{kind.lower()}.total"] = str(sum(counted))
    return columns


_OLD_NAMES = {"clocks_throttle_reasons.active": "clocks_event_reasons.active"}


def ask_for(columns: Iterable[str]) -> str:
    """Return a snippet that puts those of `columns` which the driver knows into `$ask`."""
    return read_snippet("nvidia_columns", columns=" ".join(columns))


def read_gpu_table(text: str, *, needed: Collection[str]) -> tuple[dict[str, str], ...]:
    """Read `--format=csv` with its header: one row per GPU, by column, under today's names.

    Raises:
        Unparsed: it is no such table, lacks a column that is `needed`, or has no row.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        header, *rows = csv.reader(lines, skipinitialspace=True, strict=True)
    except (csv.Error, ValueError) as error:
        raise Unparsed(f"no csv table: {error}") from None
    names = _names(tuple(header))
    if not set(needed) <= set(names):
        raise Unparsed(f"no header of a GPU query: {lines[0][:60]!r}")
    if not rows or any(len(row) != len(names) for row in rows):
        raise Unparsed("a row has not as many cells as the header")
    return tuple(dict(zip(names, row, strict=True)) for row in rows)


@lru_cache(maxsize=1 << 10)
def _names(header: tuple[str, ...]) -> tuple[str, ...]:
    # Units stand in the header, in brackets: "memory.total [MiB]".
    names = (name.strip().split(" [", 1)[0] for name in header)
    return tuple(_OLD_NAMES.get(name, name) for name in names)
