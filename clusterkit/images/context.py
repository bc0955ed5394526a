"""What a build sees: the folder that is put together for one image in one variant."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from clusterkit.core import files
from clusterkit.core.data import data_dir
from clusterkit.core.errors import UserError
from clusterkit.images.catalogue import Image, Variant
from clusterkit.images.locks import lock_command, lock_path, source_lock_path
from clusterkit.transport.sync.wheel import WHEEL_NAME, pack_wheel

_NOT_SENT = frozenset({"lock", "README.md"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The files of a build by their names in it, and which of them are programs."""

    files: Mapping[str, bytes]
    programs: frozenset[str]

    def digest(self) -> str:
        """Return the SHA-256 of names, contents and modes."""
        whole = hashlib.sha256()
        for name, data in sorted(self.files.items()):
            mode = "x" if name in self.programs else "-"
            whole.update(f"{name}\0{mode}\0{hashlib.sha256(data).hexdigest()}\n".encode())
        return whole.hexdigest()

    def write(self, folder: Path) -> None:
        """Write the files into a folder that is made, as readable as they are in images."""
        for name, data in self.files.items():
            path = folder / name
            files.create_folder(path.parent, mode=files.PUBLIC_PROGRAM)
            mode = files.PUBLIC_PROGRAM if name in self.programs else files.PUBLIC
            files.write_bytes(path, data, mode=mode)


def assemble(image: Image, variant: Variant) -> Context:
    """Return what the build of an image sees.

    Raises:
        UserError: the variant has no lock file, or there is no Dockerfile.
    """
    if variant not in image.variants:
        known = ", ".join(image.variants)
        raise UserError(f"{image.name} has no variant {variant}", hint=f"there are: {known}")
    found = dict(_found(image, variant))
    if "Dockerfile" not in found:
        raise UserError(f"there is no Dockerfile of {image.name} in {data_dir('images')}")
    programs = frozenset(name for name, path in found.items() if path.stat().st_mode & 0o100)
    contents = {name: path.read_bytes() for name, path in found.items()}
    if image.parent is None:
        contents[WHEEL_NAME] = pack_wheel()
    return Context(files=contents, programs=programs)


def _found(image: Image, variant: Variant) -> Iterator[tuple[str, Path]]:
    there = data_dir("images")
    folder = there / image.name
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if parts[0] not in _NOT_SENT and "__pycache__" not in parts and path.is_file():
            yield "/".join(parts), path
    for name in image.borrowed:
        yield Path(name).name, there / name
    lock = lock_path(image, variant)
    if not lock.exists():
        raise UserError(
            f"{image.name} has no lock file for {variant}, so nothing says what to install",
            hint=f"{lock_command(image.name, variant)} --pip-conf FILE",
        )
    yield "requirements.txt", lock
    if image.sources:
        yield "source.txt", source_lock_path(image)
