"""Which interfaces and HCAs a list takes. Source: NCCL src/misc/utils.cc, matchIfList."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What a list takes of the names that are there."""

    exclude: bool
    """The list says which to leave out."""
    taken: tuple[str, ...]
    by_item: Mapping[str, tuple[str, ...]]
    """Item of the list (without its port) -> the names that it matches."""

    @property
    def unmatched(self) -> tuple[str, ...]:
        """Items that match nothing."""
        return tuple(item for item, names in self.by_item.items() if not names)

    @property
    def surprises(self) -> Mapping[str, tuple[str, ...]]:
        """Items that are a name, and match longer names as well."""
        return {
            item: names
            for item, names in self.by_item.items()
            if item in names and any(name[len(item) :].isdigit() for name in names)
        }


def select(value: str, names: Iterable[str], *, exact: bool = False) -> Selection:
    """Apply a list to `names`; with `exact` the library knows neither `^`, `=` nor prefixes."""
    there = tuple(names)
    exclude = not exact and value.startswith("^")
    rest = value[1:] if exclude else value
    if not exact and rest.startswith("="):
        exact, rest = True, rest[1:]
    items = dict.fromkeys(item.partition(":")[0] for item in rest.split(","))
    by_item = {
        item: tuple(n for n in there if (n == item if exact else n.startswith(item)))
        for item in items
        if item
    }
    hit = {name for matched in by_item.values() for name in matched}
    taken = tuple(name for name in there if (name in hit) is not exclude)
    return Selection(exclude=exclude, taken=taken, by_item=by_item)
