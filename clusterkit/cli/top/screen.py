"""How `top` shows a snapshot: on the whole screen of a terminal, or as plain text."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from clusterkit.cli.frame import console
from clusterkit.core.text.escapes import harmless
from clusterkit.observe.top.snapshot import Snapshot
from clusterkit.observe.top.table import lines_of

Show = Callable[[Snapshot], None]


def say(snapshot: Snapshot, *, verbose: bool) -> None:
    """Print a snapshot, all of it."""
    for line in lines_of(snapshot, width=_width(), verbose=verbose):
        if line.style in {"bold", "dim", ""}:
            text = getattr(console, line.style)(line.text) if line.style else line.text
            console.say(text)
        else:
            console.say(console.coloured(line.text, line.style))


@contextmanager
def plain(*, verbose: bool) -> Iterator[Show]:
    """Print snapshot after snapshot, an empty line between them."""
    first = True

    def show(snapshot: Snapshot) -> None:
        nonlocal first
        if not first:
            console.say()
        first = False
        say(snapshot, verbose=verbose)
        sys.stdout.flush()

    yield show


@contextmanager
def screen(*, verbose: bool) -> Iterator[Show]:
    """Draw each snapshot over the one before, on a screen that is gone afterwards."""
    terminal = Console(highlight=False)
    with Live(console=terminal, screen=True, auto_refresh=False) as live:
        live.update(Text("asking the nodes", style="dim"), refresh=True)

        def show(snapshot: Snapshot) -> None:
            width, height = terminal.size
            lines = lines_of(snapshot, width=width, height=height, verbose=verbose)
            texts = ((harmless(line.text), line.style) for line in lines[:height])
            drawn = (Text(text, style=style, no_wrap=True) for text, style in texts)
            live.update(Group(*drawn), refresh=True)

        yield show


def _width() -> int:
    return shutil.get_terminal_size().columns
