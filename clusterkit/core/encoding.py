"""Names of files are bytes, and scripts, plans and logs are UTF-8: whatever the locale."""

from __future__ import annotations

import os
import sys


def require_utf8() -> None:
    """Begin this process anew in Python's UTF-8 mode, where the locale gives names another one.

    There (PYTHONUTF8=0 with LC_ALL=C, or a locale of Latin-1) Python cannot open a file that a
    configuration in UTF-8 names, and writes other bytes into a script than the name has. To be
    called before anything was done: it is the same process, and has all arguments.
    """
    if sys.getfilesystemencoding() != "utf-8" and not sys.flags.utf8_mode:
        argv = [sys.executable, "-X", "utf8", *sys.orig_argv[1:]]
        os.execv(sys.executable, argv)  # noqa: S606 - it is this very program
