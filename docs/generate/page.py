"""A page, and the Markdown that pages are made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_SPECIAL = re.compile(r"([\\*_<>\[\]|#$~])")
_FLAG = re.compile(r"(?<![\w-])(--[a-z][a-z-]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of the site."""

    path: str
    """Below the sources of the site, such as `reference/exit-codes.md`."""
    text: str


def blocks(*texts: str) -> str:
    """Return texts as blocks of a page, with a blank line between."""
    return "\n\n".join(text.rstrip("\n") for text in texts if text.strip()) + "\n"


def prose(text: str) -> str:
    """Return plain text as Markdown: nothing but its `code` means anything there.

    Flags become code, too.
    """
    parts = text.split("`")
    if len(parts) % 2 == 0:  # a backtick that nothing closes
        return _plain(text).replace("`", "\\`")
    return "`".join(part if index % 2 else _plain(part) for index, part in enumerate(parts))


def _plain(text: str) -> str:
    parts = _FLAG.split(text)
    return "".join(
        code(part) if index % 2 else _SPECIAL.sub(r"\\\1", part) for index, part in enumerate(parts)
    )


def code(text: str) -> str:
    """Return text as a word of code; an empty text stays empty."""
    if not text:
        return ""
    fence = "``" if "`" in text else "`"
    return f"{fence} {text} {fence}" if "`" in text else f"{fence}{text}{fence}"


def fenced(text: str, language: str = "text") -> str:
    """Return a block of code."""
    return f"```{language}\n{text.rstrip()}\n```"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of cells that are Markdown already; "" where it has no rows."""
    lines = [_row(row) for row in rows]
    if not lines:
        return ""
    return "\n".join((_row(head), _row(["---"] * len(head)), *lines))


def anchor(name: str) -> str:
    """Return the line that gives what comes next a name for links."""
    return f"({name})="


def _row(cells: Sequence[str]) -> str:
    # A bar ends a cell even within code; prose has its own escaped already.
    whole = (re.sub(r"(?<!\\)\|", r"\\|", " ".join(cell.split())) for cell in cells)
    return "| " + " | ".join(whole) + " |"
