"""Links of a page that stands elsewhere on the site than in the repository."""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

_LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")
_FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
FILES = "files"
"""Folder of the site that has what links lead to and is no page, such as a script."""


def relocated(text: str, *, origin: str, page: str, homes: Mapping[str, str]) -> str:
    """Return the text of file `origin` as that of `page`, with links that lead where they led.

    `homes` are the paths of the site's pages by those of their files in the repository.
    """

    def moved(link: re.Match[str]) -> str:
        target = _from_root(origin, link[2])
        home = homes.get(target) or f"{FILES}/{target}"
        start = str(PurePosixPath(page).parent)
        return link[1] + os.path.relpath(home, start) + link[3]

    parts = _FENCED.split(text)
    return "".join(
        part if index % 2 else _LINK.sub(moved, part) for index, part in enumerate(parts)
    )


def targets(text: str, *, origin: str) -> Iterator[str]:
    """Yield what the links of a file lead to, as paths from the root of the repository."""
    for part in _FENCED.split(text)[::2]:
        for link in _LINK.finditer(part):
            yield _from_root(origin, link[2])


def _from_root(origin: str, target: str) -> str:
    return os.path.normpath(str(PurePosixPath(origin).parent / target))
