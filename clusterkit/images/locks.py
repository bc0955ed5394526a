"""Lock files: every Python package of an image with its version and hash, as pip writes them.

`images/NAME/lock/VARIANT.txt` holds what the image adds to its parent, so that a layer holds what
its lock says; the parents' packages only constrain the choice.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from clusterkit.commands import run_command
from clusterkit.data import data_dir
from clusterkit.errors import RemoteError, UserError
from clusterkit.images.catalogue import MATRIX, Image, Variant, lineage

SOURCE_LOCK = "source.txt"
"""Of packages that are built inside: their sources, the same for all variants."""

_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+)")
_RESOLVE_S = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One file of one package."""

    name: str
    version: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.name}=={self.version} \\\n    --hash=sha256:{self.sha256}"


def lock_path(image: Image, variant: Variant) -> Path:
    """Return where the lock of this image lies, whether or not it is there."""
    return data_dir("images") / image.name / "lock" / f"{variant}.txt"


def source_lock_path(image: Image) -> Path:
    """Return where the hashes of what is built inside this image lie."""
    return data_dir("images") / image.name / "lock" / SOURCE_LOCK


def read_lock(path: Path) -> Mapping[str, str]:
    """Return name -> version of each package in a lock file.

    Raises:
        UserError: there is no such file.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        words = f"clusterkit images lock {path.parent.parent.name} --variant {path.stem}"
        raise UserError(f"there is no lock file {path}", hint=words) from error
    found = (_PIN.match(line) for line in lines)
    return {normal(pin["name"]): pin["version"] for pin in found if pin}


def normal(name: str) -> str:
    """Return the name of a package in the one spelling that compares (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(image: Image) -> tuple[str, ...]:
    """Return what the lock of this image resolves; for `base` also what clusterkit requires."""
    if image.parent is not None:
        return image.packages
    own = (line for line in metadata.requires("clusterkit") or () if "extra ==" not in line)
    return (*own, *image.packages)


def resolve(image: Image, below: Mapping[str, str], pip: Sequence[str] = ()) -> tuple[Pin, ...]:
    """Ask pip which packages this image adds to those `below`, by a dry run.

    Nothing is installed; where a file has metadata beside it (PEP 658) only that is downloaded.
    `pip` are more arguments, such as an index.

    Raises:
        UserError: this Python is not the one of the images.
        RemoteError: pip finds no answer; with what it said.
    """
    _require_python()
    wanted = [line for known in lineage(image) for line in requirements(known)]
    return tuple(sorted(_added(_ask_pip(wanted, below, pip), below), key=_by_name))


def render_lock(image: Image, variant: str, pins: Iterable[Pin]) -> str:
    """Return the text of a lock file."""
    return "\n".join((
        f"# Made by: clusterkit images lock {image.name} --variant {variant}",
        f"# Python {MATRIX['python']}, Linux, x86_64.",
        *(str(pin) for pin in pins),
        "",
    ))  # fmt: skip


def _by_name(pin: Pin) -> str:
    return pin.name


def _added(pins: Iterable[Pin], below: Mapping[str, str]) -> Iterator[Pin]:
    return (pin for pin in pins if pin.name not in below)


def _require_python() -> None:
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    machine = f"{platform.system()} {platform.machine()}"
    if here != MATRIX["python"] or machine != "Linux x86_64":
        raise UserError(
            f"lock files are made by Python {MATRIX['python']} on Linux x86_64, "
            f"and this is Python {here} on {machine}",
            hint=f"run it in a container: docker run -it --rm python:{MATRIX['python']} bash",
        )


def _ask_pip(wanted: Sequence[str], below: Mapping[str, str], more: Sequence[str]) -> Iterator[Pin]:
    with tempfile.TemporaryDirectory(prefix="clusterkit-lock-") as name:
        folder = Path(name)
        constraints = folder / "below.txt"
        constraints.write_text("".join(f"{name}=={below[name]}\n" for name in below))
        argv = [
            sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed",
            "--disable-pip-version-check", "--no-input",
            "--report", str(folder / "report.json"), "--constraint", str(constraints),
            *more, *wanted,
        ]  # fmt: skip
        answer = run_command(argv, environment=_environment(), timeout_s=_RESOLVE_S)
        if answer.code:
            said = "\n".join(answer.errors.strip().splitlines()[-20:])
            raise RemoteError(f"pip finds no set of packages for this:\n{said}")
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    for item in report["install"]:
        yield Pin(
            name=normal(item["metadata"]["name"]),
            version=item["metadata"]["version"],
            sha256=item["download_info"]["archive_info"]["hashes"]["sha256"],
        )


def _environment() -> dict[str, str]:
    # DeepSpeed's setup.py would compile its ops to tell its requirements.
    return {**os.environ, "DS_BUILD_OPS": "0"}
