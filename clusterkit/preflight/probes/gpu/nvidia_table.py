"""Tables of `nvidia-smi --query-gpu`: ask for the columns that the driver knows, and read them.

One unknown column makes the whole query fail, and columns come and go with drivers, so a snippet
asks only for what `--help-query-gpu` lists.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable
from functools import lru_cache

from clusterkit.transport.probe import Unparsed

_OLD_NAMES = {"clocks_throttle_reasons.active": "clocks_event_reasons.active"}


def known_columns(columns: Iterable[str]) -> str:
    """Return a snippet that puts those of `columns` which the driver knows into `$ask`."""
    return f"""known=$(nvidia-smi --help-query-gpu 2>/dev/null)
ask=''
for f in {" ".join(columns)}; do
case $f in clocks_throttle*) case $ask in *clocks_event_reasons*) continue ;; esac ;; esac
case $known in *"\\"$f\\""*) ask=$ask${{ask:+,}}$f ;; esac
done
"""


def read_table(text: str, *, needed: Collection[str]) -> tuple[dict[str, str], ...]:
    """Read `--format=csv` with its header: one row a GPU, by column, under today's names.

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
