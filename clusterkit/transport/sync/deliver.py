"""Make a folder of a node hold what a manifest says, and send only what differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from clusterkit.core.errors import UserError
from clusterkit.transport.sync.helper import Helper
from clusterkit.transport.sync.manifest import Entry, Manifest

_FIELDS = ("path", "size", "mode", "sha256", "link")
_CHUNK = 1 << 18
PRIVATE = 0o700


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """What was sent."""

    files: int
    size: int
    """Bytes."""
    folder: str
    """Where they are, as the node knows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where files go on a node; paths may begin with `~/`."""

    folder: str
    only: bool = True
    """Whether everything else is removed from it."""
    snapshot: str | None = None
    """A copy of the whole, made unless it is there: what is sent later does not change it."""
    folders: tuple[str, ...] = ()
    """Folders in it that are made as well."""
    folder_mode: int = 0o755


@dataclass(frozen=True, slots=True, kw_only=True)
class _WantedFiles:
    """the numbers of the files that it wants."""

    wanted: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Delivered:
    """the folder where they are."""

    folder: str


def deliver(
    helper: Helper,
    manifest: Manifest,
    place: Place,
    *,
    on_sent: Callable[[int, int], None] | None = None,
) -> Delivered:
    """Bring the files of a manifest to a node; what it has already is not sent again.

    `on_sent` is told after each 256 KiB, or file, how many bytes have been sent, and of how many.

    Raises:
        RemoteError: the node cannot take them (a full disk, no right to write).
        UserError: a file has vanished or has changed since its checksum was taken.
    """
    answer = helper.ask_for(
        _WantedFiles,
        "receive",
        folder=place.folder,
        only=place.only,
        snapshot=place.snapshot,
        folders=place.folders,
        folder_mode=place.folder_mode,
        fields=_FIELDS,
        entries=[[getattr(entry, field) for field in _FIELDS] for entry in manifest.entries],
    )
    numbers = set(answer.wanted)
    if len(numbers) < len(answer.wanted) or not numbers <= set(range(len(manifest.entries))):
        raise helper.nonsense("it wants files that there are not, or one of them twice")
    missing = [manifest.entries[index] for index in answer.wanted]
    size, sent = sum(entry.size for entry in missing), 0
    for entry in missing:
        for data in _pieces(manifest, entry):
            helper.send(data)
            sent += len(data)
            if on_sent is not None:
                on_sent(sent, size)
    return Delivered(
        files=len(missing),
        size=size,
        folder=helper.answer_of(_Delivered).folder,
    )


def _pieces(manifest: Manifest, entry: Entry) -> Iterator[bytes]:
    """Yield the contents of a file; a link has none."""
    if entry.link is not None:
        return
    try:
        stream = manifest.open(entry)
    except OSError as error:
        raise _changed(entry, "has vanished") from error
    with stream:
        left = entry.size
        while left:
            data = stream.read(min(left, _CHUNK))
            if not data:
                raise _changed(entry, "has become shorter")
            yield data
            left -= len(data)


def _changed(entry: Entry, what: str) -> UserError:
    return UserError(
        f"{entry.path!r} {what} while it was sent",
        hint="try again; what changes all the time is better named in .gitignore",
    )
