"""The escape sequences with which programs colour what they print, move cursors and set titles."""

from __future__ import annotations

import re

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
