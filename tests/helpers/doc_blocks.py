"""What stands in the pages of the documentation: blocks of code, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docs.generate.verbs import commands
from tests.helpers.paths import ROOT

PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("[!.]*/README.md")]

_BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?:^|\n\n)((?:    [^\n]*(?:\n|$))+)")
_INLINE = re.compile(r"`([^`]+)`")
_ENDS = frozenset({"|", "||", "&&", ";", ">", ">>", "<", ":"})
"""What is behind a command; `:` in the tables of benchmarks, which compare it with others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command line of clusterkit in a page, without its first word."""

    page: str
    words: tuple[str, ...]


def blocks(page: Path, *languages: str) -> Iterator[str]:
    """Yield the fenced blocks of a page in some languages."""
    for language, text in _BLOCK.findall(page.read_text()):
        if language in languages:
            yield text


def command_lines(page: Path) -> Iterator[Command]:
    """Yield every command line of clusterkit in a page: in blocks, and among the text."""
    text = page.read_text()
    prose = _BLOCK.sub("", text)
    shown = [*blocks(page, "", "console", "bash", "sh", "text"), *_INDENTED.findall(prose)]
    for block in shown:
        for line in block.replace("\\\n", " ").splitlines():
            yield from _commands(page, line.strip().removeprefix("$ "))
    for span in _INLINE.findall(_INDENTED.sub("\n\n", prose)):
        yield from _commands(page, " ".join(span.split()))


def _commands(page: Path, line: str) -> Iterator[Command]:
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # prose with an apostrophe, in the output of a command
        return
    for start, word in enumerate(words):
        if word == "clusterkit" and (
            start == 0 or "=" in words[start - 1] or _before(words, start)
        ):
            rest = words[start + 1 :]
            end = next((k for k, other in enumerate(rest) if other in _ENDS), len(rest))
            yield Command(page=str(page.relative_to(ROOT)), words=tuple(rest[:end]))


def _before(words: list[str], start: int) -> bool:
    """Tell whether what stands before a word starts it as a command."""
    return words[start - 1] in _ENDS | {"--", "train"} or words[0] in {"salloc", "exec", "sudo"}


def wrong_with(command: Command) -> str | None:
    """Return what the program would have against a command line: its verb, or a flag of it."""
    words = list(command.words)
    while words and words[0].startswith("-"):
        words.pop(0)  # of the program as a whole, which have no values in our pages
    if not words or not re.fullmatch(r"[a-z][a-z-]*", words[0]):
        return None  # a placeholder, or the name alone
    name = words[0]
    if name not in commands():
        return f"no verb {name}"
    below = getattr(commands()[name], "commands", None)
    if below and len(words) > 1 and re.fullmatch(r"[a-z][a-z-]*", words[1]):
        name = f"{name} {words.pop(1)}"
        if name not in commands():
            return f"no verb {name}"
    verb = commands()[name]
    return next(_wrong_flags(verb, words[1:]), None)


def _wrong_flags(verb: Any, words: list[str]) -> Iterator[str]:
    options = {
        name: param for param in verb.params for name in (*param.opts, *param.secondary_opts)
    }
    to_the_end = verb.context_settings.get("allow_interspersed_args") is False
    rest = iter(words)
    for word in rest:
        name, equals, _ = word.partition("=")
        if word == "--":
            return  # a command of the user's; what follows is its own
        if name.startswith("--") and len(name) > 2:
            if name not in options and name != "--help":
                yield f"{verb.name} has no {name}"
            elif not equals and name in options and not getattr(options[name], "is_flag", False):
                next(rest, None)
        elif re.fullmatch(r"-[a-z]", word):
            if word not in options and word != "-h":
                yield f"{verb.name} has no {word}"
            elif word in options and not getattr(options[word], "is_flag", False):
                next(rest, None)
        elif to_the_end and not word.startswith("-"):
            return  # the script; what follows is its own
