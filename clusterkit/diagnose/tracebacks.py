"""Exceptions of which Python says that it goes on after them: at its end, in a destructor."""

from __future__ import annotations

from collections.abc import Iterable

IGNORED = (b"Exception ignored ", b"Error in atexit._run_exitfuncs:")
"""What stands before such a traceback (CPython Python/errors.c, Modules/atexitmodule.c)."""
_HEADS = tuple(head.decode() for head in IGNORED)
_TRACEBACK = "Traceback (most recent call last):"
_CHAINS = ("During handling of the above exception,", "The above exception was the direct cause")


def ignored(exception: str, before: Iterable[str]) -> bool:
    """Tell whether Python ignored an exception; `before` are the lines before it, the last first.

    Processes that end together print theirs at once: of the same exception as often as it stands
    there, so often there has to be a head.
    """
    heads = 1
    chained = False
    for line in before:
        if line.startswith(_HEADS):
            heads -= 1
            if not heads:
                return True
        elif line.startswith(_CHAINS):
            chained = True
        elif line and not line.startswith((" ", "\t", _TRACEBACK)):
            if line != exception and not chained:
                return False
            heads += not chained
            chained = False
    return False
