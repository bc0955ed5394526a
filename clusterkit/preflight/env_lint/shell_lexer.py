"""Split a shell script into commands and words, as far as a lint needs it; never raises.

Quotes, escapes, comments, continued lines, here-documents (their bodies are passed over),
`$( )`, separators. Not a shell: what it cannot follow becomes a word of unknown value.
Source: POSIX.1-2017, Shell Command Language, 2.2 (quoting) and 2.3 (tokens).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_SEPARATORS = ";&|()"
_HEREDOC = re.compile(r"<<(-?)[ \t]*(['\"\\]?)([A-Za-z_][\w.-]*)['\"]?")
_DEFAULT = re.compile(r"\$\{[A-Za-z_]\w*:?-([^${}`\"']+)\}")
_EXPANSION = re.compile(r"\$(?:\{[^{}]*\}|\w+|[@*#?$!-])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """One word, with its quotes taken away."""

    text: str
    line: int
    known: bool = True
    """False where the text depends on an expansion."""
    quoted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """The words up to a separator or the end of the line."""

    words: tuple[Word, ...]
    first_line: int
    last_line: int
    """Differ where lines are continued."""
    end: str = "\n"
    """What ended it: a line end or one of `;&|()`."""


def split_commands(text: str) -> tuple[tuple[Command, ...], int | None]:
    """Return the commands of a script in order, those inside `( )` and after `&&` as well.

    Beside them, the first line that opens a quote or a bracket which nothing closes, if any. Such
    a script is read as if each ended in its line: else one quote would hide all that follows.
    """
    text = text.replace("\r\n", "\n")
    scanner = _Scanner(text)
    commands = tuple(scanner.commands())
    if scanner.unclosed is not None:
        scanner = _Scanner(text, by_line=True)
        commands = tuple(scanner.commands())
    return commands, scanner.unclosed


class _Scanner:
    def __init__(self, text: str, *, by_line: bool = False) -> None:
        self.text = text
        self.by_line = by_line
        self.unclosed: int | None = None
        self.at = 0
        self.line = 1
        self.pending: list[tuple[str, bool]] = []  # here-documents that begin on this line

    def commands(self) -> Iterator[Command]:
        words: list[Word] = []
        first = self.line
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t":
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self.at += 2
                self.line += 1
            elif char == "#":
                self._to_line_end()
            elif char == "\n" or char in _SEPARATORS:
                if words:
                    yield Command(
                        words=tuple(words), first_line=first, last_line=self.line, end=char
                    )
                words = []
                self.at += 1
                if char == "\n":
                    self.line += 1
                    self._pass_heredocs()
                first = self.line
            elif (heredoc := _HEREDOC.match(self.text, self.at)) and not self._here_string():
                self.pending.append((heredoc[3], bool(heredoc[1])))
                self.at = heredoc.end()
            else:
                first = first if words else self.line
                words.append(self._word())
        if words:
            yield Command(words=tuple(words), first_line=first, last_line=self.line)

    def _here_string(self) -> bool:
        return self.text.startswith("<<<", self.at)

    def _to_line_end(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def _pass_heredocs(self) -> None:
        while self.pending:
            word, indented = self.pending.pop(0)
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                body = self.text[self.at : end]
                self.at = min(end + 1, len(self.text))
                self.line += 1
                if (body.lstrip("\t") if indented else body) == word:
                    break

    def _word(self) -> Word:
        line = self.line
        parts: list[str] = []
        known, quoted = True, False
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\n" or char in _SEPARATORS:
                break
            if char == "'":
                parts.append(self._until("'"))
                quoted = True
            elif char == '"':
                inner, sure = _expanded(self._double_quoted())
                parts.append(inner)
                known, quoted = known and sure, True
            elif char == "\\":
                follower = self.text[self.at + 1 : self.at + 2]
                self.at += 2
                self.line += follower == "\n"
                parts.append("" if follower == "\n" else follower)
            elif char in "$`":
                inner, sure = _expanded(self._expansion())
                parts.append(inner)
                known = known and sure
            else:
                parts.append(char)
                self.at += 1
        return Word(text="".join(parts), line=line, known=known, quoted=quoted)

    def _limit(self) -> int:
        """Return how far what opens here may reach."""
        end = self.text.find("\n", self.at) if self.by_line else -1
        return len(self.text) if end < 0 else end

    def _left_open(self) -> None:
        self.unclosed = self.unclosed or self.line

    def _until(self, quote: str) -> str:
        limit = self._limit()
        end = self.text.find(quote, self.at + 1, limit)
        return self._inner(end if end >= 0 else limit, limit)

    def _double_quoted(self) -> str:
        end, limit = self.at + 1, self._limit()
        while end < limit and self.text[end] != '"':
            end += 2 if self.text[end] == "\\" else 1
        return self._inner(min(end, limit), limit).replace("\\\n", "").replace('\\"', '"')

    def _inner(self, end: int, limit: int) -> str:
        """Return what stands before the quote at `end`; there is none at `limit`."""
        if end == limit:
            self._left_open()
        inner = self.text[self.at + 1 : end]
        self.line += inner.count("\n")
        self.at = end if end == limit else end + 1
        return inner

    def _expansion(self) -> str:
        start = self.at
        opened = self.text[self.at + 1 : self.at + 2]
        if self.text[self.at] == "`":
            self._until("`")
        elif opened in {"(", "{"}:
            self._balanced(opened, ")" if opened == "(" else "}")
        else:
            simple = _EXPANSION.match(self.text, self.at)
            self.at = simple.end() if simple else self.at + 1
        return self.text[start : self.at]

    def _balanced(self, opening: str, closing: str) -> None:
        depth, limit, line = 0, self._limit(), self.line
        while self.at < limit:
            char = self.text[self.at]
            self.line += char == "\n"
            self.at += 1
            depth += (char == opening) - (char == closing)
            if depth == 0 and char == closing:
                return
        self.unclosed = self.unclosed or line


def _expanded(text: str) -> tuple[str, bool]:
    """Return `text` with `${NAME:-VALUE}` as VALUE, and whether no other expansion is left."""
    plain = _DEFAULT.sub(r"\1", text)
    return plain, "`" not in plain and not re.search(r"\$[\w{(@*#?$!-]", plain)
