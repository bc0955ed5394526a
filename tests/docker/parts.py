"""What an engine needs and Debian 12 has only in part: programs, client plugins, a base image.

Compose 2 and buildx come from the next Debian, a minimal Debian from mmdebstrap; both are kept
outside of the repository, in ~/.cache/clusterkit.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

CACHE = Path.home() / ".cache" / "clusterkit" / "docker"
TOOLS = ("docker", "dockerd", "containerd", "runc", "mmdebstrap")
APT_LINE = "apt-get install -y --no-install-recommends docker.io mmdebstrap"
_PLUGINS = ("docker-compose", "docker-buildx")
_PLUGIN_SUITE = "trixie"
_SOURCES = Path("/etc/apt/sources.list.d/debian.sources")


def require() -> None:
    """Check that an engine can be started here.

    Raises:
        MissingEngineError: it names what is missing, and how to get it.
    """
    from tests.docker.engine import MissingEngineError  # noqa: PLC0415 - it imports this file

    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise MissingEngineError(f"no {', '.join(missing)} here: {APT_LINE}")
    if os.geteuid() != 0:
        raise MissingEngineError("a Docker engine of one's own needs root")


def plugins() -> Path:
    """Return the folder with the client's plugins, fetched where they are missing."""
    folder = CACHE / "plugins"
    if all((folder / name).exists() for name in _PLUGINS):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="clusterkit-apt-") as name:
        there = Path(name)
        _download(there)
        for package in there.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, there / "x"], check=True)
        for found in (there / "x" / "usr/libexec/docker/cli-plugins").iterdir():
            # Named last, so that nobody takes half a file.
            shutil.copy2(found, folder / f".{found.name}")
            (folder / f".{found.name}").replace(folder / found.name)
    return folder


def _download(folder: Path) -> None:
    """Download the plugins' packages with this machine's own sources, of the next Debian."""
    first = _SOURCES.read_text().split("\n\n", maxsplit=1)[0]
    sources = folder / "next.sources"
    sources.write_text(re.sub(r"(?m)^Suites:.*$", f"Suites: {_PLUGIN_SUITE}", first) + "\n")
    for part in ("parts", "lists/partial", "state", "cache/archives/partial"):
        (folder / part).mkdir(parents=True)
    (folder / "status").touch()
    options = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": folder / "parts",
        "Dir::State": folder / "state",
        "Dir::State::lists": folder / "lists",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    subprocess.run([*apt, "update"], check=True, cwd=folder)
    subprocess.run([*apt, "download", *_PLUGINS], check=True, cwd=folder)


def base_tar(suite: str) -> Path:
    """Return an archive of a minimal Debian, made where it does not exist yet."""
    path = CACHE / f"base-{suite}.tar"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        written = CACHE / f".base-{suite}.{os.getpid()}.tar"
        argv = ["mmdebstrap", "--quiet", "--variant=minbase", "--include=ca-certificates"]
        subprocess.run([*argv, suite, str(written)], check=True)
        written.replace(path)
    return path
