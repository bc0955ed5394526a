"""A topic, and the helpers that lay its text out."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

WIDTH = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """Something that can be explained."""

    name: str
    summary: str
    """What it is, in less than a line."""
    text: str
    """The explanation, laid out for 80 columns."""
    group: str | None = None
    """The topic that lists this one; None for one that is listed by itself."""


def paragraphs(*texts: str) -> str:
    """Return texts as paragraphs of at most 80 columns, with a blank line between."""
    return "\n\n".join(_wrapped(text) for text in texts if text)


def table(rows: Iterable[tuple[str, str]]) -> str:
    """Return two aligned columns, the second one wrapped."""
    listed = tuple(rows)
    width = max((len(name) for name, _ in listed), default=0)
    return "\n".join(
        textwrap.fill(
            text,
            WIDTH,
            initial_indent=f"  {name:<{width}}  ",
            subsequent_indent=" " * (width + 4),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for name, text in listed
    )


def first_sentence(text: str) -> str:
    """Return the part of `text` before its first full stop, colon or semicolon."""
    for index, character in enumerate(text):
        if character in ".:;" and text[index + 1 : index + 2] in {"", " "}:
            return text[:index]
    return text


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)
