"""Text for people: escapes of what a terminal would obey, names in a sentence, tables."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from itertools import zip_longest

WIDTH = 80
"""Columns of what is printed for people."""
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|.)")
"""One sequence, as ECMA-48 has it; a title that nothing ends goes to the end of its line."""
ESCAPES_IN_BYTES = re.compile(ESCAPES.pattern.encode())
NOT_IN_A_LINE = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""What cannot stand in a value of one line: control characters but the tab, ends of lines, and
halves of surrogate pairs, which no file in UTF-8 can hold."""
LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair, which no encoding can write."""
_CSI = re.compile(r"\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]")
_HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Control characters (C0 but tab and line end, DEL, C1), what turns the direction of writing or
is not seen, separators of lines and paragraphs, halves of surrogate pairs, tags."""


_QUOTED = re.compile(r" |[0-9]*\s*\|")
"""How lines begin that show a place in a file."""
_LABEL = re.compile(r"[a-z]{1,10}: +")
_COPIED = re.compile(
    r"`[^`]+`|clusterkit (?!has |is |cannot )(?:--)?[a-z](?:(?![;,)](?: |$)| \().)*"
)
_COMMAND = re.compile(r"\S+ -")
_NO_BREAK = "\x1f"


def harmless(text: str) -> str:
    r"""Return a text that does nothing to a terminal but stand there; lines and tabs stay.

    Only colours and movements of the cursor vanish: the text of a title, or what a sequence without
    an end would swallow, is shown.

    >>> harmless("n1\x1b]0;owned\x07 \x1b[31mred\x9b2J\r")
    'n1?]0;owned? red?2J?'
    """
    if text.isascii() and text.isprintable():
        return text
    return _HARMFUL.sub("?", _CSI.sub("", text))


def some_of(names: Sequence[str], most: int, *, rest: str = "more") -> str:
    """Return the first `most` names with commas, and how many are left: `a, b and 3 more`."""
    left = len(names) - most
    shown = ", ".join(names[:most])
    return f"{shown} and {left} {rest}" if left > 0 else shown


def wrapped(text: str, first: str = "", rest: str = "", *, width: int = WIDTH) -> list[str]:
    """Return the lines of a text behind these beginnings; no word, such as a path, is broken."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def fitted(text: str, width: int, *, before: int = 0) -> str:
    r"""Return a message whose sentences keep to `width`, with what is to be copied in one piece.

    That is what stands in backticks, a command of clusterkit up to the next sign, and what follows
    the last colon, if a line has room for it or it looks like a command. Lines that quote a file
    stay as they are.

    Args:
        text: Lines as an error has them: what is wrong, where, and `hint: ` what to type.
        width: Columns of the terminal.
        before: Columns in front of the first line that are taken.

    >>> print(fitted("no such job\nhint: look which there are: clusterkit status --all", 36))
    no such job
    hint: look which there are:
          clusterkit status --all
    """
    first, *more = text.split("\n")
    return "\n".join([_fitted(first, width, before), *(_fitted(line, width, 0) for line in more)])


def _fitted(line: str, width: int, before: int) -> str:
    if before + len(line) <= width or _QUOTED.match(line):
        return line
    label = _LABEL.match(line)
    indent = before or (len(label[0]) if label else 0)
    whole = _COPIED.sub(lambda found: found[0].replace(" ", _NO_BREAK), line)
    start, colon, last = whole.rpartition(": ")
    if colon and (len(last) <= width - indent or _COMMAND.match(last)):
        whole = f"{start}{colon}{last.replace(' ', _NO_BREAK)}"
    rows = wrapped(whole, " " * before, " " * indent, width=width)
    return "\n".join(rows)[before:].replace(_NO_BREAK, " ")


def in_words(seconds: float) -> str:
    """Return a span of time: `42 s`, `3:25 min`, `7:05 h`, `81 h`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    hours, minutes = whole // 3600, whole % 3600 // 60
    return f"{hours}:{minutes:02} h" if hours < 48 else f"{hours:,} h"


def limit_in_words(seconds: float) -> str:
    """Return a time limit, mostly a round one: `30 min`, `1:30 h`."""
    return in_words(seconds).replace(":00 ", " ")


def size_in_words(size_bytes: int) -> str:
    """Return a size in decimal units: `3 kB`, `812 MB`, `1.4 GB`."""
    if size_bytes < 1e6:
        return f"{size_bytes / 1e3:.0f} kB"
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.0f} MB"


def figure(number: float) -> str:
    """Return a number with three figures, or all that stand before the point."""
    if 0 < number < 1e-4:
        return f"{number:.6f}"
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def cut(text: str, width: int) -> str:
    """Return at most `width` characters of a text, the last an ellipsis where there are more."""
    return text if len(text) <= width else text[: width - 1] + "…"


def without_middle(text: str, width: int) -> str:
    """Return at most `width` characters of a text; of a longer one the end above all.

    >>> without_middle("/shared/project/configs/large.yaml", 20)
    '/shar…igs/large.yaml'
    """
    if len(text) <= width:
        return text
    head = width // 4
    return f"{text[:head]}…{text[head + 1 - width :]}"


def in_line(text: str) -> str:
    """Return a text with a space for each character that a line does not show."""
    return "".join(char if char.isprintable() else " " for char in text)


def table(
    rows: Sequence[Sequence[object]],
    align: str = "",
    *,
    gap: int = 2,
    widths: Sequence[int] = (),
) -> list[str]:
    """Return rows as lines in which each column is as wide as its widest cell.

    Colours take no room. A row may be shorter than others; nothing stands at the end of a line.
    By rich, this would cost each verb that has a table 40 ms of start.

    Args:
        rows: Cells; None is an empty one.
        align: A letter per column, `<` or `>`; `<` for those that are left.
        gap: Spaces between columns.
        widths: What the first columns have at least.

    >>> table([("NODE", "GPUS"), ("n1", 8)], "<>")
    ['NODE  GPUS', 'n1       8']
    """
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    lengths = [[len(ESCAPES.sub("", cell)) for cell in row] for row in cells]
    wide = [max(column) for column in zip_longest(widths, *lengths, fillvalue=0)]
    lines = []
    for row, taken in zip(cells, lengths, strict=True):
        padded = [
            " " * (wide[i] - taken[i]) + cell
            if align[i : i + 1] == ">"
            else cell + " " * (wide[i] - taken[i])
            for i, cell in enumerate(row)
        ]
        lines.append((" " * gap).join(padded).rstrip())
    return lines
