"""Quoting as a type: words that cannot be misread by a POSIX shell, and secrets that do not print.

Everything interpolated into a rendered script passes through `quote`; there is no other way in.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusterkit.core.model import Word


def quote(word: Word) -> str:
    r"""Return `word` as one shell word: literal text quoted, runtime references expanded there.

    >>> quote("it's")
    "'it'\"'\"'s'"
    >>> quote(("--node-rank=", Ref("CK_NODE_RANK")))
    '--node-rank="${CK_NODE_RANK}"'
    """
    if isinstance(word, str):
        return shlex.quote(word)
    if isinstance(word, tuple):
        return "".join(quote(part) for part in word if part != "") or "''"
    return f'"${{{word.name}}}"'


def quote_path(path: str) -> str:
    r"""Return a path on another machine as one shell word; `~/` is the home of who logs in there.

    >>> quote_path("~/my venv/bin/python")
    '"$HOME"/\'my venv/bin/python\''
    """
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


def resolve(word: Word, values: Mapping[str, str]) -> str:
    """Return `word` with its references replaced by `values`.

    Raises:
        KeyError: a reference has no value.
    """
    if isinstance(word, str):
        return word
    if isinstance(word, tuple):
        return "".join(resolve(part, values) for part in word)
    return values[word.name]


class Secret:
    """A value that never prints: `repr`, `str` and formatting give `***`."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        """Wrap `value`."""
        self._value = value

    def reveal(self) -> str:
        """Return the value itself; the only caller is the writer of the 0600 file."""
        return self._value

    def __repr__(self) -> str:
        return "***"

    __str__ = __repr__
