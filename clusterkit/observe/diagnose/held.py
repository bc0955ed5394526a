"""How much of a GPU others hold, by what PyTorch tells of one that had too little. Pure."""

from __future__ import annotations

import re

_SIZE = r"(\d{1,7}(?:\.\d{1,3})? [KMGT]iB)"
_NOW = re.compile(
    rf"(?P<gpu>GPU \d{{1,3}}) has a total capac\w{{1,5}} of {_SIZE} of which {_SIZE} is free\."
    rf".{{0,400}}?\bthis process has {_SIZE} memory in use"
)
_LISTED = re.compile(
    rf"(?P<gpu>GPU \d{{1,3}}) has a total capac\w{{1,5}} of {_SIZE} of which {_SIZE} is free"
    rf"(?:\. Process \d{{1,9}} has {_SIZE} memory in use){{2,16}}"
    rf"\. Of the allocated memory {_SIZE} is allocated by PyTorch, and {_SIZE} is reserved"
)
"""In a container, where PyTorch knows no process of the list for itself."""
_BEFORE = re.compile(
    rf"\((?P<gpu>GPU \d{{1,3}}); {_SIZE} total capacity; (?P<own>{_SIZE}) already allocated;"
    rf" {_SIZE} free; {_SIZE} (?P<kind>reserved|cached)"
)
_GIB = {"K": 2.0**-20, "M": 2.0**-10, "G": 1.0, "T": 2.0**10}
_MUCH = 0.25
"""The part of a GPU from which on it is no more what CUDA itself takes in a process."""


def held_by_others(text: str) -> str:
    """Say what others hold of the GPU that the message names; nothing where that is little."""
    if (match := _NOW.search(text)) is not None:
        _, total, free, own = match.groups()
        sizes = _gib(total), _gib(free), _gib(own)
    elif (match := _LISTED.search(text)) is not None:
        _, total, free, _, own, kept = match.groups()
        sizes = _gib(total), _gib(free), _gib(own) + _gib(kept)
    elif (match := _BEFORE.search(text)) is not None:
        _, total, _, own, free, kept, kind = match.groups()
        mine = _gib(own) + _gib(kept) if kind == "cached" else max(_gib(own), _gib(kept))
        sizes = _gib(total), _gib(free), mine
    else:
        return ""
    total_gib, free_gib, own_gib = sizes
    others = total_gib - free_gib - own_gib
    if others < _MUCH * total_gib:
        return ""
    return (
        f" This process holds {own_gib:.1f} GiB of the {total_gib:.1f} GiB of {match['gpu']},"
        f" other processes hold about {others:.0f} GiB."
    )


def _gib(size: str) -> float:
    number, unit = size.split()
    return float(number) * _GIB[unit[0]]
