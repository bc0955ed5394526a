"""Split a shell script into commands and words, as far as a lint needs it; never raises.

Quotes, escapes, comments, continued lines, here-documents (their bodies are passed over),
`$( )`, separators. Not a shell: what it cannot follow becomes a word of unknown value.
Source: POSIX.1-2017, Shell Command Language, 2.2 (quoting) and 2.3 (tokens).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

_SEPARATORS = "\n;&|()"
_GAP = re.compile(r"(?:[ \t]|\\\n|#[^\n]*)*+")
_HEREDOC = re.compile(r"<<(?!<)(-?)[ \t]*(['\"\\]?)([A-Za-z_][\w.-]*)['\"]?")
_DEFAULT = re.compile(r"\$\{[A-Za-z_]\w*:?-([^${}`\"']+)\}")
_EXPANSION = re.compile(r"\$(?:\w+|[@*#?$!-])?")


def _parts(within: str, end: str) -> re.Pattern[str]:
    """Return what finds the parts of a word; `within` may stand in quotes, which end at `end`."""
    # (?>(?:...)*) and not (?:...)*+, which in Python 3.11.2 (Debian 12) takes the quote as well
    return re.compile(
        rf"(?P<plain>[^ \t\n;&|()'\"\\$`]+)|\\(?P<escaped>[\s\S]?)"
        rf"|(?P<opened>'(?P<single>(?>(?:(?!'){within})*))"
        rf"|\"(?P<double>(?>(?:\\{within}|(?![\"\\]){within}|\\)*))"
        rf"|`(?>(?:(?!`){within})*))(?P<closed>['\"`]|{end})"
    )


_PARTS = _parts(r"[\s\S]", r"\Z")
_PARTS_BY_LINE = _parts(r"[^\n]", r"(?=\n)|\Z")


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
    last_line: int
    """Another one than that of the first word where lines are continued."""
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
        self.ends = [found.start() for found in re.finditer("\n", text)]

    def commands(self) -> Iterator[Command]:
        words: list[Word] = []
        pending: list[re.Match[str]] = []  # here-documents that begin on this line
        at = self._past_gap(0)
        while at < len(self.text):
            char = self.text[at]
            if char in _SEPARATORS:
                if words:
                    yield Command(words=tuple(words), last_line=self._line(at), end=char)
                words = []
                at += 1
                if char == "\n":
                    at = self._past_heredocs(pending, at)
                    pending = []
            elif heredoc := _HEREDOC.match(self.text, at):
                pending.append(heredoc)
                at = heredoc.end()
            else:
                word, at = self._word(at)
                words.append(word)
            at = self._past_gap(at)
        if words:
            yield Command(words=tuple(words), last_line=self._line(len(self.text)))

    def _line(self, at: int) -> int:
        return bisect_left(self.ends, at) + 1

    def _past_gap(self, at: int) -> int:
        gap = _GAP.match(self.text, at)
        return gap.end() if gap else at

    def _past_heredocs(self, pending: list[re.Match[str]], at: int) -> int:
        for heredoc in pending:
            tabs = r"\t*" if heredoc[1] else ""
            end = re.compile(rf"^{tabs}{re.escape(heredoc[3])}$", re.MULTILINE)
            found = end.search(self.text, at)
            at = found.end() + 1 if found else len(self.text)
        return at

    def _word(self, at: int) -> tuple[Word, int]:
        """Return the word at a place, and where it ends."""
        line, texts, known, quoted = self._line(at), [], True, False
        pattern = _PARTS_BY_LINE if self.by_line else _PARTS
        while at < len(self.text) and self.text[at] not in " \t" + _SEPARATORS:
            part = pattern.match(self.text, at)
            if part and not part["closed"] and part["opened"]:
                self._left_open(at)
            start, at = at, part.end() if part else self._past_expansion(at)
            if part and part["plain"]:
                texts.append(part["plain"])
            elif part and part["escaped"] is not None:
                texts.append(part["escaped"].strip("\n"))
            elif part and part["single"] is not None:
                texts.append(part["single"])
                quoted = True
            else:
                double = part["double"] if part else None
                quoted = quoted or double is not None
                whole = self.text[start:at] if double is None else double
                plain = whole if double is None else whole.replace("\\\n", "").replace('\\"', '"')
                text, sure = _expanded(plain)
                texts.append(text)
                known = known and sure
        return Word(text="".join(texts), line=line, known=known, quoted=quoted), at

    def _left_open(self, at: int) -> None:
        self.unclosed = self.unclosed or self._line(at)

    def _past_expansion(self, start: int) -> int:
        """Return where `$NAME`, `${...}` or `$(...)` ends."""
        bracket = self.text[start + 1 : start + 2]
        if bracket not in {"(", "{"}:
            simple = _EXPANSION.match(self.text, start)
            return simple.end() if simple else start + 1
        limit = self.text.find("\n", start) if self.by_line else -1
        limit = len(self.text) if limit < 0 else limit
        depth, closing = 0, ")" if bracket == "(" else "}"
        for found in re.compile(f"[{bracket}{closing}]").finditer(self.text, start, limit):
            depth += 1 if found[0] == bracket else -1
            if depth == 0:
                return found.end()
        self._left_open(start)
        return limit


def _expanded(text: str) -> tuple[str, bool]:
    """Return `text` with `${NAME:-VALUE}` as VALUE, and whether no other expansion is left."""
    plain = _DEFAULT.sub(r"\1", text)
    return plain, "`" not in plain and not re.search(r"\$[\w{(@*#?$!-]", plain)
