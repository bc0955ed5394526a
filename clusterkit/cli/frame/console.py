"""What a verb prints: answers on stdout, everything else on stderr, colour only on a terminal.

All that is printed passes here, and most of it has parts that somebody else wrote: a node, a log,
a file. No control character of theirs reaches the terminal. Our own colours do, as their escape
characters carry a mark that nobody else can know.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import TYPE_CHECKING, Any

import typer

from clusterkit.core.files import versioned
from clusterkit.core.text import LONE_SURROGATE, fitted, harmless

if TYPE_CHECKING:
    from rich.status import Status

_PLAIN_EVERY_S = 60.0
_NARROWEST = 40
"""Columns; of fewer each line is left to the terminal."""
_MARK = f"\x1b[{10_000_000 + int.from_bytes(os.urandom(8)) % 90_000_000};"
"""How a colour of ours begins until it is printed: as another one, with a number before it."""
_as_json = ContextVar("_as_json", default=False)


def answer_with_json() -> Callable[[], None]:
    """Show no progress from now on, as whoever asks for a document wants none; return what ends it.

    Called by the flag `--json` itself, so that no verb has to think of it.
    """
    before = _as_json.set(True)
    return lambda: _as_json.reset(before)


def say(*lines: str) -> None:
    """Print part of the answer on stdout."""
    for line in lines:
        _print(line, sys.stdout)


def note(*lines: str) -> None:
    """Print something beside the answer (progress, warnings) on stderr."""
    for line in lines:
        _print(line, sys.stderr)


def progress_note(*lines: str) -> None:
    """Print how far it is on stderr, in lines that stay; nothing with `--json`."""
    if not _as_json.get():
        note(*lines)


def warn(text: str) -> None:
    """Print a warning on stderr."""
    _tell("warning: ", "yellow", text)


def error(text: str) -> None:
    """Print an error on stderr."""
    _tell("error: ", "red", text)


def _tell(label: str, colour: str, text: str) -> None:
    """Print a message on stderr; on a terminal its sentences keep to the columns."""
    if sys.stderr.isatty():
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
        if columns >= _NARROWEST:
            text = fitted(text, columns, before=len(label))
    note(_styled(label, fg=colour, bold=True) + text)


def bold(text: str) -> str:
    """Return `text` in bold; plain where the output is no terminal."""
    return _styled(text, bold=True)


def dim(text: str) -> str:
    """Return `text` dimmed; plain where the output is no terminal."""
    return _styled(text, dim=True)


def coloured(text: str, colour: str) -> str:
    """Return `text` in the named ANSI colour; plain where the output is no terminal."""
    return _styled(text, fg=colour)


def _styled(text: str, **style: Any) -> str:
    # What is coloured already stays so.
    parts = (harmless(part) for part in text.split(_MARK))
    return typer.style(_MARK.join(parts), **style).replace("\x1b[", _MARK)


def _print(text: str, stream: Any) -> None:
    shown = "\x1b[".join(harmless(part) for part in text.split(_MARK))
    try:
        typer.echo(shown, file=stream, color=use_colour(stream))
    except UnicodeEncodeError:  # a terminal that knows fewer characters than the text has
        known = shown.encode(stream.encoding or "ascii", errors="replace")
        typer.echo(known.decode(stream.encoding or "ascii"), file=stream, color=use_colour(stream))


@contextmanager
def progress(*, quiet: bool = False, plain: bool = True) -> Iterator[Callable[[str], None]]:
    """Show on stderr how far long work is: each call of what is yielded has it in a few words.

    On a terminal that is one line that moves, gone at the end. Elsewhere it is a line now and then
    (none unless `plain`), as whoever reads a log wants to know that it continues. `quiet`, and
    always with `--json`, it is nothing at all.
    """
    if quiet or _as_json.get():
        yield lambda _: None
        return
    if not sys.stderr.isatty():
        said = time.monotonic()

        def now_and_then(text: str) -> None:
            nonlocal said
            if plain and time.monotonic() - said >= _PLAIN_EVERY_S:
                said = time.monotonic()
                note(text)

        yield now_and_then
        return
    with ExitStack() as shown:
        status: Status | None = None
        making = Lock()  # of several threads each would make a line of its own

        def move(text: str) -> None:
            nonlocal status
            with making:
                if status is None:  # what is over at once needs none, nor the time to load it
                    from rich.console import Console

                    status = shown.enter_context(Console(stderr=True).status(""))
            from rich.text import Text

            status.update(Text(harmless(text), no_wrap=True, overflow="ellipsis"))

        yield move


@contextmanager
def counting(total: int, what: str = "nodes have answered") -> Iterator[Callable[[object], None]]:
    """Show how far it is, as `progress`: each call of what is yielded is one more."""
    with progress() as show:
        yield counter(show, total, what)


def counter(
    show: Callable[[str], None], total: int | None = None, what: str = "nodes have answered"
) -> Callable[[object], None]:
    """Return what shows one more at each call."""
    numbers = itertools.count(1)
    of = f" of {total}" if total is not None else ""
    return lambda _: show(f"{next(numbers)}{of} {what}")


def use_colour(stream: Any) -> bool:
    """Tell whether `stream` is a terminal whose user has not set NO_COLOR.

    NO_COLOR counts when set to anything but the empty string (no-color.org).
    """
    return bool(stream.isatty()) and not os.environ.get("NO_COLOR")


def json_document(document: Mapping[str, Any]) -> None:
    """Print the one JSON document of this run, with its schema number first.

    Infinity and NaN are null: JSON has no words for them. Halves of surrogate pairs,
    which many readers refuse, are replaced.
    """
    document = versioned(document)
    try:
        text = _json(document)
    except ValueError:  # rare, so that large documents are not looked through each time
        text = _json(_known_to_json(document))
    if "\\ud" in text:
        text = _json(_known_to_json(document))
    say(text)


def _json(document: Any) -> str:
    # ASCII alone: what a node has said may hold anything, and a terminal is to show it.
    return json.dumps(document, indent=2, allow_nan=False)


def _known_to_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {_known_to_json(key): _known_to_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_known_to_json(item) for item in value]
    if isinstance(value, str):
        return LONE_SURROGATE.sub("\ufffd", value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
