"""Start and stop a Docker engine in a folder of its own, beside any other on this machine.

It changes no packet filter, so that networks of other tests stay as they are. Containers reach each
other and are reached through published ports; what a build downloads goes over the host's network.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.docker import parts

DEFAULT_ROOT = Path("/tmp/clusterkit-docker")
_UP_S = 60.0
_DOWN_S = 30.0
_GIVE_WAY = ("nice", "-n", "10")
"""Builds compile on all cores, beside tests that others run; what they start inherits this."""


class EngineError(Exception):
    """The engine could not be started, or one of its commands failed."""


class MissingEngineError(EngineError):
    """This machine lacks a program or a right that an engine needs."""


def default_root() -> Path:
    """Return the folder of the engine: CLUSTERKIT_DOCKER, or one for all tests."""
    return Path(os.environ.get("CLUSTERKIT_DOCKER") or DEFAULT_ROOT)


@dataclass(frozen=True, slots=True)
class Engine:
    """A dockerd with its images and containers below `root`, a short path: a socket is in it."""

    root: Path
    enter: tuple[str, ...] = ()
    """What goes before a command to run it where the engine is: in a host of the lab."""

    @property
    def socket(self) -> Path:
        """Where the engine listens."""
        return self.root / "docker.sock"

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which any docker client talks to this engine, with compose and buildx."""
        return {
            "DOCKER_HOST": f"unix://{self.socket}",
            "DOCKER_CONFIG": str(self.root / "config"),
            "PATH": f"/usr/bin:{os.environ['PATH']}",  # Debian's client first
        }

    def up(self) -> None:
        """Start the engine, unless it answers.

        Raises:
            MissingEngineError: a program or a right is missing here.
            EngineError: it does not come up; its log says why.
        """
        parts.require()
        if self.is_up():
            return
        if (self.root / "pid").exists():  # it was killed, and may have lost layers of its images
            self._remove()
        for name in ("data", "exec", "config"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        plugins = self.root / "config" / "cli-plugins"
        if not plugins.exists():
            plugins.symlink_to(parts.plugins())
        network = zlib.crc32(str(self.root).encode()) % 64 + 128
        command = [
            *(self.enter or _GIVE_WAY), "dockerd", "--data-root", str(self.root / "data"),
            "--exec-root", str(self.root / "exec"), "--pidfile", str(self.root / "pid"),
            "--host", f"unix://{self.socket}", "--bridge=none",
            "--iptables=false", "--ip6tables=false", "--ip-masq=false",
            # Containers reach no name server, and torch asks one for the name of each client.
            "--dns-opt=timeout:1", "--dns-opt=attempts:1",
            "--default-address-pool", f"base=10.{network}.0.0/16,size=24",
        ]  # fmt: skip
        with (self.root / "log").open("ab") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + _UP_S
        while not self.is_up():
            if process.poll() is not None or time.monotonic() > deadline:
                said = (self.root / "log").read_text(errors="replace").splitlines()[-5:]
                raise EngineError("dockerd does not come up:\n" + "\n".join(said))
            time.sleep(0.2)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Have the engine up; one that was not before is stopped again, and keeps its images.

        Raises:
            MissingEngineError: a program or a right is missing here.
            EngineError: it does not come up; its log says why.
        """
        was_up = self.is_up()
        self.up()
        try:
            yield
        finally:
            if not was_up:
                self.down(keep=True)

    def is_up(self) -> bool:
        """Tell whether the engine answers."""
        return self.socket.exists() and self.call("version").returncode == 0

    def down(self, *, keep: bool = False) -> None:
        """Stop the engine with all its containers; remove its folder unless `keep`."""
        if self.is_up():
            running = self.run("ps", "--quiet", "--all").split()
            if running:
                self.run("rm", "--force", "--volumes", *running)
        pid = self._pid()
        if pid is not None:
            os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + _DOWN_S
            while self._pid() is not None and time.monotonic() < deadline:  # no zombie has words
                time.sleep(0.1)
        if not keep:
            self._remove()

    def _remove(self) -> None:
        """Remove the folder, with what containers of a killed engine still have mounted in it."""
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for mount in reversed(mounts):
            if Path(mount).is_relative_to(self.root):
                subprocess.run(["umount", "--lazy", mount], check=False)
        shutil.rmtree(self.root, ignore_errors=True)

    def _pid(self) -> int | None:
        """Return the pid of dockerd as this namespace has it; its own file may hold another."""
        wanted = str(self.root / "pid")
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if wanted in words and Path(words[0]).name == "dockerd":
                return int(folder.name)
        return None

    def call(
        self,
        *words: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        input_text: str | None = None,
        timeout_s: float = 600.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run `docker WORDS`, and return how it ended."""
        return subprocess.run(
            ["docker", *words],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, **self.environment, **(env or {})},
            cwd=cwd,
            input=input_text,
            timeout=timeout_s,
        )

    def run(self, *words: str, **more: object) -> str:
        """Run `docker WORDS`, and return its output.

        Raises:
            EngineError: it failed; with what it said.
        """
        done = self.call(*words, **more)
        if done.returncode:
            raise EngineError(f"docker {' '.join(words)}: {done.stderr.strip()[-2000:]}")
        return done.stdout

    def base_image(self, suite: str = "bookworm") -> str:
        """Return the name of a minimal Debian, which is made here where it does not exist yet."""
        name = f"debian-base:{suite}"
        if self.call("image", "inspect", name).returncode:
            self.run("import", str(parts.base_tar(suite)), name)
        return name
