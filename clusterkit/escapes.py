"""The escape sequences with which programs colour what they print, move cursors and set titles."""

from __future__ import annotations

import re

ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|.)")
"""One sequence, as ECMA-48 has it; a title that nothing ends goes to the end of its line."""
ESCAPES_IN_BYTES = re.compile(ESCAPES.pattern.encode())
