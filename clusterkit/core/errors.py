"""Errors that clusterkit raises on purpose; anything else that escapes is a bug.

A `UserError` is the user's turn: it carries every problem found, each with the place it was
found at and what to type next. A `RemoteError` means that the world did not answer (a scheduler
refused, a host was unreachable). Both end a command with exit code 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from clusterkit.core.text import in_line, wrapped

_HINT_WIDTH = 80 - len("hint: ")

_LONGEST = 1000
"""Characters of a message, or of the line that it is about, that are of use to anybody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A place in a text that the user wrote; lines and columns count from 1."""

    source: str
    line: int | None = None
    column: int | None = None
    text: str | None = None
    """The whole source line, shown above the caret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong, where it is, and what to type next."""

    message: str
    hint: str | None = None
    key: str | None = None
    """Dotted path of the value in its document, such as `clusters.a100.partition`."""
    position: Position | None = None

    def __str__(self) -> str:
        lines = [_shortened(self.message)]
        if self.position is not None:
            lines += _locate(self.position, self.key)
        elif self.key is not None:
            lines[0] += f" ({_shortened(self.key)})"
        if self.hint is not None:
            lines.append(f"hint: {_shortened(self.hint)}")
        return "\n".join(lines)


class ClusterkitError(Exception):
    """Base of everything that clusterkit raises on purpose."""


class UserError(ClusterkitError):
    """Input that cannot be used: one or several problems, all reported at once."""

    def __init__(
        self,
        message: str = "",
        *,
        hint: str | None = None,
        key: str | None = None,
        position: Position | None = None,
        problems: Sequence[Problem] = (),
    ) -> None:
        """Hold `problems`, or the single problem that the other arguments describe."""
        self.problems: tuple[Problem, ...] = tuple(problems) or (
            Problem(message=message, hint=hint, key=key, position=position),
        )
        super().__init__("\n\n".join(str(problem) for problem in self.problems))


class RemoteError(ClusterkitError):
    """Something outside clusterkit refused or did not answer."""

    def __init__(self, message: str, *, node: str | None = None, hint: str | None = None) -> None:
        """Name the node that failed, if one did, and what to try next."""
        self.message = message
        self.node = node
        self.hint = hint
        where = f"{node}: " if node else ""
        super().__init__(f"{where}{message}" + (f"\nhint: {hint}" if hint else ""))


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def did_you_mean(word: str, known: Iterable[str], *, alike: float = 0.6) -> str | None:
    """Return the hint `did you mean 'x'?` for the known word closest to `word`, if one is close.

    `alike` is how much of them has to be the same, of 1.
    """
    matches = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=alike)
    return f"did you mean {matches[0]!r}?" if matches else None


def choices_hint(word: str, known: Iterable[str]) -> str:
    """Return `did you mean`, or the list of everything that would have been accepted."""
    names = sorted(known)
    listed = wrapped(f"known: {', '.join(names) or 'none'}", rest="  ", width=_HINT_WIDTH)
    return did_you_mean(word, names) or "\n".join(listed)


def _locate(position: Position, key: str | None) -> list[str]:
    where = position.source
    if position.line is not None:
        where += f":{position.line}"
        if position.column is not None:
            where += f":{position.column}"
    lines = [f"  --> {where}" + (f"  ({_shortened(key)})" if key else "")]
    if position.text is not None and position.line is not None:
        gutter = f"{position.line} | "
        # A file may hold terminal escape sequences; each becomes one harmless character.
        shown = in_line(_shortened(position.text))
        lines.append(gutter + shown)
        if position.column is not None and position.column <= _LONGEST:
            lines.append(" " * (len(gutter) - 2) + "| " + " " * (position.column - 1) + "^")
    return lines
