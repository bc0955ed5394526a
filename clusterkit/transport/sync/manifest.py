"""What of a folder is sent to nodes: every file that git would not ignore, with its checksum."""

from __future__ import annotations

import hashlib
import io
import os
import re
import stat
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from pathspec import GitIgnoreSpec

from clusterkit.core.errors import UserError

MIB = 1 << 20
_ALWAYS_OUT = frozenset({".git"})
_SHOWN = 5
_MOSTLY = 0.8
"""A folder is shown by its largest part where that is so much of it."""

_Rules = tuple[tuple[Path, GitIgnoreSpec], ...]
"""The .gitignore files that count in a folder, the nearest last, each with where it stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file or symbolic link."""

    path: str
    """Relative, as `os.fsdecode` has it: any bytes but a zero may be in a name."""
    size: int = 0
    mode: int = 0o644
    sha256: str = ""
    link: str | None = None
    """Where a symbolic link points to; it is sent as it is, and never followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The files of a folder at one moment."""

    folder: Path
    entries: tuple[Entry, ...]
    sources: Mapping[str, Path | bytes] = field(default_factory=dict)
    """What other files hold than those of the folder, or where they are read."""

    def open(self, entry: Entry) -> BinaryIO:
        """Open a file of the manifest; no link is followed.

        Raises:
            OSError: it cannot be read.
        """
        source = self.sources.get(entry.path, self.folder / entry.path)
        if isinstance(source, bytes):
            return io.BytesIO(source)
        return os.fdopen(os.open(source, os.O_RDONLY | os.O_NOFOLLOW), "rb")

    @property
    def size(self) -> int:
        """Bytes in all files."""
        return sum(entry.size for entry in self.entries)

    @property
    def digest(self) -> str:
        """What tells this manifest from those of other contents."""
        whole = hashlib.sha256()
        for entry in self.entries:
            whole.update(repr((entry.path, entry.mode, entry.sha256, entry.link)).encode())
        return whole.hexdigest()


def read_manifest(
    folder: Path, *, limit_mib: int, leave_out: Collection[Path] = (), like_git: bool = True
) -> Manifest:
    """Return what of `folder` is to be sent, in the order of its names.

    The one answer to what a working tree is: for `--sync`, for what goes to a login node, and for
    `--snapshot` (`jobs/submit/snapshot.py`).

    Left out are what a .gitignore names (of the folder, of those in it, and of those above it up
    to the root of the repository), `.git`, the paths `leave_out`, empty folders, and what is
    neither file nor link. A file that vanishes meanwhile is left out as well.

    Raises:
        UserError: there is no such folder, a file cannot be read, or all together are larger than
            `limit_mib`; the largest are named.
    """
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder} to send", hint="--sync DIR")
    found = list(_walk(folder, _rules_above(folder) if like_git else (), frozenset(leave_out)))
    size = sum(entry.size for entry in found)
    if size > limit_mib * MIB:
        raise _too_large(folder, found, size, limit_mib)
    entries = (_hashed(folder / entry.path, entry) for entry in found)
    whole = (entry for entry in entries if entry is not None)
    return Manifest(folder=folder, entries=tuple(sorted(whole, key=lambda entry: entry.path)))


def manifest_of(sources: Mapping[str, Path | bytes]) -> Manifest:
    """Return a manifest of single files under new names, or of what they are to hold.

    Those that are missing are left out.

    Raises:
        UserError: one cannot be read.
    """
    seen = (
        Entry(path=name, size=len(one), mode=0o600, sha256=hashlib.sha256(one).hexdigest())
        if isinstance(one, bytes)
        else _hashed(one, _entry(name, one))
        for name, one in sources.items()
    )
    entries = tuple(entry for entry in seen if entry is not None)
    return Manifest(folder=Path("/"), entries=entries, sources=sources)


def _walk(folder: Path, rules: _Rules, leave_out: frozenset[Path]) -> Iterator[Entry]:
    pending = [(folder, rules)]
    while pending:
        here, above = pending.pop()
        try:
            listed = list(os.scandir(here))
        except OSError as error:
            raise _unreadable(here, error) from error
        own = _rules_of(here)
        rules = (*above, *own)
        for one in listed:
            path = Path(one.path)
            is_folder = one.is_dir(follow_symlinks=False)
            if one.name in _ALWAYS_OUT or path in leave_out or _ignored(path, is_folder, rules):
                continue
            if is_folder:
                pending.append((path, rules))
            elif (entry := _entry(str(path.relative_to(folder)), path)) is not None:
                yield entry


def _entry(name: str, path: Path) -> Entry | None:
    """Return a file without its checksum; None for what has vanished, and for what is none."""
    try:
        about = path.lstat()
        if stat.S_ISLNK(about.st_mode):
            return Entry(path=name, mode=0o777, link=str(path.readlink()))
    except OSError:
        return None
    if not stat.S_ISREG(about.st_mode):
        return None
    return Entry(path=name, size=about.st_size, mode=stat.S_IMODE(about.st_mode) & 0o777)


def _hashed(path: Path, entry: Entry | None) -> Entry | None:
    if entry is None or entry.link is not None:
        return entry
    try:
        with path.open("rb") as stream:
            seen, size = hashlib.file_digest(stream, "sha256"), stream.tell()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, error) from error
    return Entry(path=entry.path, size=size, mode=entry.mode, sha256=seen.hexdigest())


def _rules_above(folder: Path) -> _Rules:
    """Return the .gitignore files above a folder that is a part of a repository."""
    above: list[Path] = []
    here = folder
    while not (here / ".git").exists():
        if here == here.parent:
            return ()
        here = here.parent
        above.append(here)
    return tuple(rule for place in reversed(above) for rule in _rules_of(place))


def _rules_of(folder: Path) -> _Rules:
    path = folder / ".gitignore"
    try:
        lines = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise _unreadable(path, error) from error
    return ((folder, GitIgnoreSpec.from_lines(lines)),)


def _ignored(path: Path, is_folder: bool, rules: _Rules) -> bool:
    """Tell what the last pattern says that matches, in the nearest .gitignore that has one.

    Only patterns for this very name count (gitignore(5)): of an ignored folder nothing is looked
    at, and what is in one that a `!` brings back is not brought back with it.
    """
    for place, spec in reversed(rules):
        name = f"{path.relative_to(place)}{'/' if is_folder else ''}"
        for pattern in reversed(spec.patterns):
            if pattern.regex is not None and _is_meant(pattern.regex.match(name), name):
                return bool(pattern.include)
    return False


def _is_meant(match: re.Match[str] | None, name: str) -> bool:
    """Tell whether a pattern means this name, and not a folder above it.

    pathspec's expressions end behind the folder that they mean, with the group `ps_d`; those of
    `FOLDER/**` without the group, and mean what is in it.
    """
    if match is None:
        return False
    if match.groupdict().get("ps_d"):
        return match.end() == len(name)
    return match.end() < len(name) or not name.endswith("/")


def _unreadable(path: Path, error: OSError) -> UserError:
    return UserError(
        f"cannot read {path}: {error.strerror}",
        hint="make it readable, or leave it out by a line in .gitignore",
    )


def _too_large(folder: Path, entries: Sequence[Entry], size: int, limit_mib: int) -> UserError:
    sizes: Counter[str] = Counter()
    for entry in entries:
        parts = entry.path.split("/")
        for depth in range(1, len(parts) + 1):
            sizes["/".join(parts[:depth])] += entry.size
    tops = Counter({name: size for name, size in sizes.items() if "/" not in name})
    largest = [_largest_part(name, sizes) for name, _ in tops.most_common(_SHOWN)]
    shown = [f"  {sizes[name] / MIB:8.1f} MiB  {name}" for name in largest]
    needed = -(-size // MIB)
    what = f"{folder}: {size / MIB:.1f} MiB to send, more than {limit_mib} MiB"
    return UserError(
        "\n".join((what, *shown)),
        hint=f"name in .gitignore what the job does not need, or allow more: --sync-limit {needed}",
    )


def _largest_part(name: str, sizes: Counter[str]) -> str:
    while True:
        below = {n: s for n, s in sizes.items() if n.rpartition("/")[0] == name}
        largest = max(below, key=lambda one: below[one], default=None)
        if largest is None or below[largest] < _MOSTLY * sizes[name]:
            return name
        name = largest
