"""Lock files: every Python package of an image with its version and hash, as pip writes them.

`images/NAME/lock/VARIANT.txt`, or VARIANT-arm64.txt, holds what the image adds to its parent, so
that a layer holds what its lock says; the parents' packages only constrain the choice.
"""

from __future__ import annotations

import configparser
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
from clusterkit.core.errors import RemoteError, UserError, choices_hint
from clusterkit.core.version import __version__
from clusterkit.images.catalogue import MATRIX, PLATFORMS, Image, Variant, lineage

SOURCE = "source"
"""In place of a variant: the lock of what is built inside, the same for all variants."""
_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+)")
_MACHINES: Mapping[str, str] = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}
"""Platform of an image -> `uname -m` on it."""
_PIP_FOR = """import platform, runpy, sys, sysconfig
machine = sys.argv.pop(1)
platform.machine = lambda: machine
sysconfig.get_platform = lambda: f"linux-{machine}"
runpy.run_module("pip", run_name="__main__", alter_sys=True)"""
"""pip as on another machine: it chooses files by the one function, and decides by the other what a
package needs there. Its own --platform does only the first, and takes no source, as DeepSpeed's."""
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


def find_platform(name: str | None) -> str:
    """Return the platform of this name; without one, that of this machine.

    Raises:
        UserError: images have no lock files for it.
    """
    if name is None:
        here = {"arm64": "aarch64"}.get(platform.machine(), platform.machine())  # as macOS says it
        return next((one for one in PLATFORMS if _MACHINES[one] == here), PLATFORMS[0])
    if name not in PLATFORMS:
        hint = choices_hint(name, PLATFORMS)
        raise UserError(f"no lock file holds hashes for {name}", hint=hint)
    return name


def lock_path(image: Image, variant: str, on: str | None = None) -> Path:
    """Return where the lock of a variant lies, there or not; by default of this machine."""
    machine = find_platform(on).partition("/")[2]
    other = "" if variant == SOURCE or machine == "amd64" else f"-{machine}"
    return data_dir("images") / image.name / "lock" / f"{variant}{other}.txt"


def lock_command(path: Path) -> str:
    """Return what makes the lock file of an image at `path`."""
    variant, _, machine = path.stem.partition("-")
    other = f" --platform linux/{machine}" if machine else ""
    return f"clusterkit images lock {path.parent.parent.name} --variant {variant}{other}"


def read_lock(path: Path) -> Mapping[str, str]:
    """Return name -> version of each package in a lock file.

    Raises:
        UserError: there is no such file.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise UserError(f"there is no lock file {path}", hint=lock_command(path)) from error
    found = (_PIN.match(line) for line in lines)
    return {normal_name(pin["name"]): pin["version"] for pin in found if pin}


def requirements(image: Image, variant: Variant) -> tuple[str, ...]:
    """Return what the lock of a variant resolves; for `base` also what clusterkit requires."""
    own = own_requirements() if image.parent is None else ()
    return (*own, *image.packages, *(image.cuda if variant is Variant.CUDA else ()))


def versions(image: Image, variant: Variant, on: str | None = None) -> Mapping[str, str]:
    """Return the versions inside of what MATRIX names, as far as the image holds it."""
    locked: dict[str, str] = {}
    for known in lineage(image):
        if (path := lock_path(known, variant, on)).exists():
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


def resolve(
    image: Image, variant: Variant, on: str | None = None, pip_conf: Path | None = None
) -> tuple[Pin, ...]:
    """Ask pip which packages this image adds to those of the images below it, by a dry run.

    On a platform but the first they have the versions that they have there, where that has a lock.
    Nothing is installed; where a file has metadata beside it (PEP 658) only that is downloaded.
    Of pip's settings only those in `pip_conf` count.

    Raises:
        UserError: this Python is not the one of the images, or an image below has no lock file.
        RemoteError: pip finds no answer; with its output. Or one for another variant.
    """
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if here != MATRIX["python"] or platform.system() != "Linux":
        raise UserError(
            f"lock files are made by Python {MATRIX['python']} on Linux, "
            f"and this is Python {here} on {platform.system()}",
            hint=f"run it in a container: docker run -it --rm python:{MATRIX['python']} bash",
        )
    below = _below(image, variant, on)
    chosen = {**versions_elsewhere(image, variant, on), **below}
    needed = [line for known in lineage(image) for line in requirements(known, variant)]
    found = _ask_pip(needed, chosen, _MACHINES[find_platform(on)], pip_conf)
    pins = sorted((pin for pin in found if pin.name not in below), key=lambda pin: pin.name)
    cuda = next((pin for pin in pins if pin.name.startswith(_GPU_PACKAGES["cuda"])), None)
    if cuda is not None and variant is not Variant.CUDA:
        again = lock_command(lock_path(image, variant, on))
        raise RemoteError(
            f"the index has what {image.name} needs for CUDA only: pip would install {cuda.name}",
            hint="name PyTorch's own index (pytorch.org, Get started) in a pip.conf: "
            f"{again} --pip-conf FILE",
        )
    return tuple(pins)


def versions_elsewhere(image: Image, variant: Variant, on: str | None = None) -> Mapping[str, str]:
    """Return what the lock on the first platform has; nothing there, or where it has none.

    Without local parts: what is 2.13.0+cpu on one platform may be 2.13.0 on another.
    """
    first = lock_path(image, variant, PLATFORMS[0])
    if first == lock_path(image, variant, on) or not first.exists():
        return {}
    return {name: version.partition("+")[0] for name, version in read_lock(first).items()}


def _below(image: Image, variant: Variant, on: str | None) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for known in lineage(image)[:-1]:
        found |= read_lock(lock_path(known, variant, on))
    return found


def pip_settings(pip_conf: Path | None) -> Mapping[str, str]:
    """Return the settings of a pip.conf for `pip install`, as pip's variables.

    A file that PIP_CONFIG_FILE names is read beside those of the machine, and /dev/null alone.

    Raises:
        UserError: it cannot be read, or is not of that form.
    """
    found = configparser.RawConfigParser()
    try:
        found.read_string(pip_conf.read_text(encoding="utf-8") if pip_conf else "")
    except (OSError, UnicodeError, configparser.Error) as error:
        raise UserError(f"{pip_conf} cannot be read as a pip.conf: {error}") from error
    pairs = [pair for name in ("global", "install") if name in found for pair in found.items(name)]
    return {f"PIP_{name.upper().replace('-', '_')}": text for name, text in pairs}


def render_lock(path: Path, pins: Iterable[Pin]) -> str:
    """Return the text of the lock file at `path`."""
    machine = path.stem.partition("-")[2] or "amd64"
    return "\n".join((
        f"# Made by: {lock_command(path)}",
        f"# Python {MATRIX['python']}, Linux, {_MACHINES[f'linux/{machine}']}.",
        *(str(pin) for pin in pins),
        "",
    ))  # fmt: skip


def _ask_pip(
    needed: Sequence[str], chosen: Mapping[str, str], machine: str, pip_conf: Path | None
) -> Iterator[Pin]:
    with tempfile.TemporaryDirectory(prefix="clusterkit-lock-") as name:
        constraints, report = Path(name) / "chosen.txt", Path(name) / "report.json"
        files.write_text(constraints, "".join(f"{name}=={chosen[name]}\n" for name in chosen))
        pip = ("-m", "pip") if machine == platform.machine() else ("-c", _PIP_FOR, machine)
        argv = [
            sys.executable, *pip, "install", "--dry-run", "--quiet", "--ignore-installed",
            "--disable-pip-version-check", "--no-input",
            "--report", str(report), "--constraint", str(constraints), *needed,
        ]  # fmt: skip
        kept = {
            variable: text
            for variable, text in os.environ.items()
            if not variable.startswith("PIP_") or variable in _KEPT_VARIABLES
        }
        # DeepSpeed's setup.py would compile its ops to tell its requirements.
        kept |= {"PIP_CONFIG_FILE": os.devnull, "DS_BUILD_OPS": "0", **pip_settings(pip_conf)}
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
