"""Regular expressions that few runs use, each compiled when it is first used."""

from __future__ import annotations

import re
from typing import Any, cast


class Late:
    """Stands for a regular expression until one of its methods is wanted."""

    def __init__(self, text: str, flags: int):
        """Compile nothing yet."""
        self._written = text, flags

    def __getattr__(self, name: str) -> Any:
        """Compile it, and keep what is wanted of it here, where Python looks first."""
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self.compiled(), name)
        setattr(self, name, found)
        return found

    def compiled(self) -> re.Pattern[str]:
        """Return the regular expression itself."""
        text, flags = self._written
        return re.compile(text, flags)


def late(text: str, flags: int = 0) -> re.Pattern[str]:
    """Return a constant regular expression that is compiled when it is first used.

    Compiling is a tenth of what a short verb takes, and most verbs use few of those that they
    import. It has the methods and attributes of a pattern, and is none for the module `re`.
    """
    return cast("re.Pattern[str]", Late(text, flags))
