"""Fixtures: a Docker engine for the session, and the images that `clusterkit` builds on it."""

from __future__ import annotations

import functools
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.docker.engine import Engine, MissingEngineError, default_root
from tests.helpers import time_left
from tests.helpers.needs import lack

BUILT = ("base", "torch", "deepspeed", "horovod", "mpi")
"""The images that are built and tried, each after what it is built on."""
MARK = "lent-to-a-build-and-no-more"
"""Stands in all that builds are lent, so that it can be looked for in the images."""
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_SOURCES = Path("/etc/apt/sources.list.d/debian.sources")
_BUILD_S = 3600.0


@dataclass(frozen=True)
class Images:
    """The images as this session builds them: each once, its parents before it."""

    engine: Engine
    lent: dict[str, Path]
    """Files by the flag of `images build` that takes them."""
    done: dict[str, dict[str, Any]] = field(default_factory=dict)

    def build(self, name: str) -> dict[str, Any]:
        """Return what `images build --json` says of the cpu variant of an image."""
        if name not in self.done:
            self.rebuild(name)
        return self.done[name]

    def rebuild(self, name: str) -> dict[str, Any]:
        """Build an image although it was built before, and say what became of it."""
        document = json.loads(self.clusterkit("build", name, "--json", *self.flags()))
        found = {image["name"]: image for image in document["images"]}
        for each, image in found.items():
            self.done.setdefault(each, image)
        return found[name]

    def flags(self) -> list[str]:
        """Return the flags with which images are built here, without a registry."""
        words = ["--variant", "cpu", "--network", "host", "--root", self.engine.base_image()]
        return [*words, *(word for flag, path in self.lent.items() for word in (flag, str(path)))]

    def clusterkit(self, *words: str) -> str:
        """Run `clusterkit images WORDS`, and return its output."""
        done = subprocess.run(
            [sys.executable, "-m", "clusterkit", "images", *words],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, **self.engine.environment},
            timeout=time_left.left_s(_BUILD_S),
        )
        assert done.returncode == 0, f"{done.stdout[-1000:]}\n{done.stderr[-4000:]}"
        return done.stdout


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """Give the engine of this session; it keeps what was built, and one that was up stays up.

    `python -m tests.docker down` removes all of it.
    """
    found = Engine(default_root())
    try:
        with found.running():
            yield found
    except MissingEngineError as error:
        lack(str(error))


@pytest.fixture(scope="session")
def images(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    """Give the images, with what their builds need of this machine."""
    with images_on(engine, tmp_path_factory.mktemp("lent")) as found:
        yield found


@contextmanager
def images_on(engine: Engine, folder: Path) -> Iterator[Images]:
    """Give the images of an engine; what their builds are lent is written to `folder`."""
    wheels = os.environ.get("PIP_FIND_LINKS") or _find_links()
    with _served(wheels) as server:
        yield Images(engine, _lent(folder, f"http://127.0.0.1:{server.server_port}/{MARK}/"))
        server.shutdown()


def _find_links() -> str:
    """Return the folder of wheels that this machine's pip knows; an empty one where it has none."""
    argv = [sys.executable, "-m", "pip", "config", "get", "global.find-links"]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    return done.stdout.strip() or "/var/empty"


def _served(wheels: str) -> http.server.ThreadingHTTPServer:
    """Serve a folder of wheels on loopback: the network of the builds is this machine's."""
    handler = functools.partial(_Quiet, directory=wheels)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def translate_path(self, path: str) -> str:
        return super().translate_path(path.removeprefix(f"/{MARK}"))

    def log_message(self, *_: object) -> None:
        pass


def _lent(folder: Path, wheels: str) -> dict[str, Path]:
    """Write what builds are lent, each with the mark in a comment."""
    pip = f"# {MARK}\n[global]\nfind-links = {wheels}\n"
    for option in ("index-url", "extra-index-url"):
        value = os.environ.get("PIP_" + option.upper().replace("-", "_"), "")
        pip += f"{option} = {value}\n" if value.startswith("http") else ""
    texts = {"--pip-conf": pip}
    if _CERTIFICATES.exists():
        texts["--ca"] = f"# {MARK}\n{_CERTIFICATES.read_text()}"
    if _SOURCES.exists():
        texts["--apt-sources"] = f"# {MARK}\n{_SOURCES.read_text()}"
    lent = {flag: folder / flag.strip("-") for flag in texts}
    for flag, path in lent.items():
        path.write_text(texts[flag])
    return lent
