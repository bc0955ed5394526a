"""A desk on the practice cluster: a folder with a configuration, and the command line in it."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.helpers.paths import ROOT
from tests.lab.lab import Lab

# Each of the three hosts takes the processors of the machine for its own.
CONFIG = """\
default_cluster: lab
clusters:
  lab:
    kind: slurm
    partition: gpu
    gpus_per_node: 2
    time: "10"
    python: {python}
    run_dir: runs
    env: {{DS_ACCELERATOR: cpu, OMP_NUM_THREADS: "1"}}
  rack:
    kind: ssh
    hosts: n[1-3]
    gpus_per_node: 2
    python: {python}
    run_dir: runs
    env: {{DS_ACCELERATOR: cpu, OMP_NUM_THREADS: "1"}}
"""


@dataclass(frozen=True)
class Desk:
    """Where a user of the lab works: on its head host, in a folder that all hosts share."""

    lab: Lab
    folder: Path

    @classmethod
    def of(cls, lab: Lab, name: str) -> Desk:
        folder = lab.shared / "desks" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "clusterkit.yaml").write_text(CONFIG.format(python=sys.executable))
        return cls(lab, folder)

    def environment(self, **more: str) -> dict[str, str]:
        return {"PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(self.folder), **more}

    def clusterkit(
        self, *words: str, env: dict[str, str] | None = None, timeout_s: float = 400
    ) -> subprocess.CompletedProcess[str]:
        return self.lab.run(
            "head",
            [sys.executable, "-m", "clusterkit", *words],
            cwd=self.folder,
            timeout_s=timeout_s,
            env=self.environment(**(env or {})),
        )

    def on_terminal(
        self, *words: str, term: str = "xterm", size: tuple[int, int] | None = None
    ) -> tuple[subprocess.Popen[str], int]:
        """Start a command on a terminal of so many rows and columns; return the other end as well.

        That is a file descriptor, which the caller closes.
        """
        master, slave = pty.openpty()
        if size is not None:
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        process = self.lab.popen(
            "head",
            [sys.executable, "-m", "clusterkit", *words],
            cwd=self.folder,
            env=self.environment(TERM=term),
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)
        return process, master

    def submit(
        self, *words: str, env: dict[str, str] | None = None, timeout_s: float = 400
    ) -> dict[str, Any]:
        """Submit, and return what `--json` says; the job may have failed."""
        done = self.clusterkit("submit", "--json", *words, env=env, timeout_s=timeout_s)
        assert done.stdout, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        assert "error" not in document, done.stderr
        return {**document, "returncode": done.returncode}

    def state(self, job: str) -> str:
        done = self.clusterkit("status", job, "--json")
        state: str = json.loads(done.stdout)["state"]
        return state

    def write(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return name


def read_to_end(master: int) -> bytes:
    """Return all that comes to a terminal until nobody has its other end, and close it.

    The kernel may hand over in pieces what was written at once.
    """
    printed = b""
    with suppress(OSError):  # of a terminal that nobody has any more
        while data := os.read(master, 1 << 16):
            printed += data
    os.close(master)
    return printed
