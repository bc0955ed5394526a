"""Lock files: every Python package of an image with its version and hash, as pip writes them.

`images/NAME/lock/VARIANT.txt` holds what the image adds to its parent, so that a layer holds what
its lock says; the parents' packages only constrain the choice.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterkit.core import files
from clusterkit.core.commands import run_command
from clusterkit.core.data import data_dir
from clusterkit.core.distribution import normal_name, own_requirements
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.version import __version__
from clusterkit.images.catalogue import MATRIX, Image, Variant, lineage

SOURCE = "source"
"""In place of a variant: the lock of what is built inside, the same for all variants."""
_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+)")
_RESOLVE_S = 1800.0
_SHOWN_LINES = 20
_KEPT_VARIABLES = frozenset({"PIP_CERT", "PIP_PROXY", "PIP_DEFAULT_TIMEOUT"})
"""Of pip's: how a machine reaches an index, not which."""


_GPU_PACKAGES: Mapping[str, str] = {"cuda": "nvidia-cuda-runtime", "nccl": "nvidia-nccl-cu13"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """One file of one package."""

    name: str
    version: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.name}=={self.version} \\\n    --hash=sha256:{self.sha256}"


def lock_path(image: Image, variant: str) -> Path:
    """Return where the lock of a variant of this image lies, whether or not it is there."""
    return data_dir("images") / image.name / "lock" / f"{variant}.txt"


def lock_command(name: str, variant: str) -> str:
    """Return what makes the lock of an image."""
    return f"clusterkit images lock {name} --variant {variant}"


def read_lock(path: Path) -> Mapping[str, str]:
    """Return name -> version of each package in a lock file.

    Raises:
        UserError: there is no such file.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        hint = lock_command(path.parent.parent.name, path.stem)
        raise UserError(f"there is no lock file {path}", hint=hint) from error
    found = (_PIN.match(line) for line in lines)
    return {normal_name(pin["name"]): pin["version"] for pin in found if pin}


def requirements(image: Image) -> tuple[str, ...]:
    """Return what the lock of this image resolves; for `base` also what clusterkit requires."""
    if image.parent is not None:
        return image.packages
    return (*own_requirements(), *image.packages)


def versions(image: Image, variant: Variant) -> Mapping[str, str]:
    """Return the versions inside of what MATRIX names, as far as the image holds it."""
    locked: dict[str, str] = {}
    for known in lineage(image):
        if (path := lock_path(known, variant)).exists():
            locked |= read_lock(path)
    built = {one.partition("==")[0] for known in lineage(image) for one in known.sources}
    found = {"clusterkit": __version__, "python": MATRIX["python"]}
    for name, version in MATRIX.items():
        package = normal_name(_GPU_PACKAGES.get(name, name))
        if package in locked:
            found[name] = locked[package]
        elif name in built:
            found[name] = version
    return found


def resolve(image: Image, variant: Variant, pip_conf: Path | None = None) -> tuple[Pin, ...]:
    """Ask pip which packages this image adds to those of the images below it, by a dry run.

    Nothing is installed; where a file has metadata beside it (PEP 658) only that is downloaded.
    Of pip's settings only those in `pip_conf` count.

    Raises:
        UserError: this Python is not the one of the images, or an image below has no lock file.
        RemoteError: pip finds no answer; with its output.
    """
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    machine = f"{platform.system()} {platform.machine()}"
    if here != MATRIX["python"] or machine != "Linux x86_64":
        raise UserError(
            f"lock files are made by Python {MATRIX['python']} on Linux x86_64, "
            f"and this is Python {here} on {machine}",
            hint=f"run it in a container: docker run -it --rm python:{MATRIX['python']} bash",
        )
    below: dict[str, str] = {}
    for known in lineage(image)[:-1]:
        below |= read_lock(lock_path(known, variant))
    needed = [line for known in lineage(image) for line in requirements(known)]
    pins = (pin for pin in _ask_pip(needed, below, pip_conf) if pin.name not in below)
    return tuple(sorted(pins, key=lambda pin: pin.name))


def render_lock(image: Image, variant: str, pins: Iterable[Pin]) -> str:
    """Return the text of a lock file."""
    return "\n".join((
        f"# Made by: {lock_command(image.name, variant)}",
        f"# Python {MATRIX['python']}, Linux, x86_64.",
        *(str(pin) for pin in pins),
        "",
    ))  # fmt: skip


def _ask_pip(
    needed: Sequence[str], below: Mapping[str, str], pip_conf: Path | None
) -> Iterator[Pin]:
    with tempfile.TemporaryDirectory(prefix="clusterkit-lock-") as name:
        constraints, report = Path(name) / "below.txt", Path(name) / "report.json"
        files.write_text(constraints, "".join(f"{name}=={below[name]}\n" for name in below))
        argv = [
            sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed",
            "--disable-pip-version-check", "--no-input",
            "--report", str(report), "--constraint", str(constraints), *needed,
        ]  # fmt: skip
        kept = {
            variable: text
            for variable, text in os.environ.items()
            if not variable.startswith("PIP_") or variable in _KEPT_VARIABLES
        }
        # DeepSpeed's setup.py would compile its ops to tell its requirements.
        kept |= {"PIP_CONFIG_FILE": str(pip_conf or os.devnull), "DS_BUILD_OPS": "0"}
        answer = run_command(argv, environment=kept, timeout_s=_RESOLVE_S)
        document = files.read_json(report)
        if answer.code or document is None:
            output = "\n".join(answer.errors.strip().splitlines()[-_SHOWN_LINES:])
            raise RemoteError(
                f"pip finds no set of packages for this:\n{output}",
                hint="an index of your own is named in a pip.conf: --pip-conf FILE",
            )
    for item in document["install"]:
        yield Pin(
            name=normal_name(item["metadata"]["name"]),
            version=item["metadata"]["version"],
            sha256=item["download_info"]["archive_info"]["hashes"]["sha256"],
        )
