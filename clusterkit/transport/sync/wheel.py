"""Pack the clusterkit that runs into a wheel, without tools or network, always the same bytes."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from clusterkit.core.data import data_dir
from clusterkit.core.distribution import DISTRIBUTION, own_distribution, wheel_name
from clusterkit.core.errors import UserError
from clusterkit.core.version import __version__

_PACKAGE = Path(__file__).resolve().parents[2]
WHEEL_NAME = wheel_name(__version__)
_INFO = f"{WHEEL_NAME.removesuffix('-py3-none-any.whl')}.dist-info"
_LOCK_MEMBER = "clusterkit/_data/locks/core.txt"
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time of a zip file: the content alone decides the bytes."""


def pack_wheel() -> bytes:
    """Return the wheel: the package with its data, as an installation or a checkout has it.

    Raises:
        UserError: it runs from a checkout that is not installed, so nothing says what it requires.
    """
    members = [*_members()]
    lines = []
    for name, data, _ in members:
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    record = "".join((*lines, f"{_INFO}/RECORD,,\n"))
    members.append((f"{_INFO}/RECORD", record.encode(), False))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data, executable in members:
            member = zipfile.ZipInfo(name, _EPOCH)
            member.external_attr = (0o100755 if executable else 0o100644) << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, data)
    return packed.getvalue()


def _members() -> Iterator[tuple[str, bytes, bool]]:
    yield from _files(_PACKAGE, "clusterkit", without="_data")
    for name in ("images", "templates"):
        yield from _files(data_dir(name), f"clusterkit/_data/{name}")
    yield _LOCK_MEMBER, data_dir("locks").joinpath("core.txt").read_bytes(), False
    about = own_distribution()
    if about is None:
        raise UserError(
            f"clusterkit runs from {_PACKAGE.parent}, which is not installed in this Python",
            hint=f"{sys.executable} -m pip install --no-deps --editable {_PACKAGE.parent}",
        )
    metadata = about.read_text("METADATA") or ""
    metadata = re.sub(r"(?m)^Name: .*", f"Name: {DISTRIBUTION}", metadata, count=1)
    generator = (
        "Wheel-Version: 1.0\nGenerator: clusterkit\nRoot-Is-Purelib: true\nTag: py3-none-any"
    )
    yield f"{_INFO}/METADATA", metadata.encode(), False
    yield f"{_INFO}/WHEEL", f"{generator}\n".encode(), False
    yield f"{_INFO}/entry_points.txt", (about.read_text("entry_points.txt") or "").encode(), False


def _files(folder: Path, there: str, *, without: str = "") -> Iterator[tuple[str, bytes, bool]]:
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if parts[0] == without or "__pycache__" in parts or not path.is_file():
            continue
        yield "/".join((there, *parts)), path.read_bytes(), bool(path.stat().st_mode & 0o100)
