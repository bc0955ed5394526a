"""A topic, the texts about the words of a list, and the helpers that lay text out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from clusterkit.core.data import read_table
from clusterkit.core.text import wrapped


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


def texts(listed: str) -> Mapping[str, str]:
    """Return what `texts.tsv` tells of each word of a list, by the word."""
    rows = read_table(__file__, "texts.tsv")
    return {row["name"]: row["text"] for row in rows if row["list"] == listed}


def one_each(rows: Mapping[str, str], group: str, *more: str) -> Iterator[Topic]:
    """Yield a topic for each word of a list: its text, and paragraphs that all of them share."""
    for name, text in rows.items():
        about = paragraphs(text[:1].upper() + text[1:], *more)
        yield Topic(name=name, summary=first_sentence(text), text=about, group=group)


def paragraphs(*texts: str) -> str:
    """Return texts as paragraphs of at most 80 columns, with a blank line between."""
    return "\n\n".join(filled(text) for text in texts if text)


def table(rows: Iterable[tuple[str, str]]) -> str:
    """Return two aligned columns, the second one wrapped."""
    listed = tuple(rows)
    width = max((len(name) for name, _ in listed), default=0)
    rest = " " * (width + 4)
    return "\n".join(filled(text, f"  {name:<{width}}  ", rest) for name, text in listed)


def summaries(rows: Mapping[str, str]) -> str:
    """Return a table of the first sentence of each text."""
    return table((name, first_sentence(text)) for name, text in rows.items())


def first_sentence(text: str) -> str:
    """Return the part of `text` before its first full stop, colon or semicolon."""
    for index, character in enumerate(text):
        if character in ".:;" and text[index + 1 : index + 2] in {"", " "}:
            return text[:index]
    return text


def filled(text: str, first: str = "", rest: str = "") -> str:
    """Return a text in lines of at most 80 columns, behind these beginnings."""
    return "\n".join(wrapped(text, first, rest))
