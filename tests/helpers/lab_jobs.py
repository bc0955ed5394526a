"""Jobs of one line of bash on the practice cluster, submitted and looked at from its head."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from clusterkit.executors.run.runfolder import RunFolder
from tests.helpers.paths import ROOT
from tests.lab import Lab
from tests.lab.lab import HostProcess


class Cluster:
    """The head of the practice cluster, with a configuration of its own.

    Its nodes are a part of Slurm, or machines reached by ssh (`kind`).
    """

    def __init__(self, lab: Lab, folder: Path, kind: str = "slurm") -> None:
        self.lab = lab
        self.folder = folder
        self.kind = kind
        config = folder / "clusterkit.yaml"
        hosts = f", hosts: 'n[1-{len(lab.nodes)}]'" if kind == "ssh" else ""
        config.write_text(f"clusters:\n  lab: {{kind: {kind}, run_dir: {folder}/runs{hosts}}}\n")
        self.environment = {"CLUSTERKIT_CONFIG_FILE": str(config)}

    def submit(self, body: str, *, path: str = "", **options: Any) -> RunFolder:
        """Submit a job; with `path`, programs there come first, and it may be refused."""
        done = self.client(body, path=path, **options)
        assert path or done.returncode == 0, done.stderr
        return RunFolder(Path(done.stdout.splitlines()[0]))

    def client(
        self, body: str, *, path: str = "", **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Submit a job that may be refused."""
        environment = {"PATH": f"{path}:{os.environ['PATH']}"} if path else {}
        argv = self._argv(body, options)
        return self.lab.run("head", argv, env={**self.environment, **environment}, cwd=ROOT)

    def submitting(self, body: str, **options: Any) -> tuple[RunFolder, subprocess.Popen[str]]:
        """Return the run folder of a job that is just being handed over, and the client."""
        argv = self._argv(body, options)
        client = self.lab.popen("head", argv, env=self.environment, cwd=ROOT)
        assert client.stdout is not None
        run = RunFolder(Path(client.stdout.readline().strip()))
        await_true(run.submission.exists)
        return run, client

    def _argv(self, body: str, options: dict[str, Any]) -> list[str]:
        wanted = json.dumps({"kind": self.kind, "hosts": self.lab.nodes, **options})
        return [
            sys.executable,
            "-m",
            "tests.helpers.lab_client",
            f"{self.folder}/runs",
            body,
            wanted,
        ]

    def ck(self, *arguments: str, timeout_s: float = 120.0) -> tuple[int, str]:
        done = self.lab.run(
            "head",
            [sys.executable, "-m", "clusterkit", *arguments],
            env=self.environment,
            cwd=ROOT,
            timeout_s=timeout_s,
        )
        return done.returncode, done.stdout

    def state(self, run: RunFolder) -> tuple[str, int | None]:
        document = json.loads(self.ck("status", run.run_id, "--json")[1])
        return document["state"], document["exit_code"]

    def over(self, run: RunFolder, timeout_s: float = 120.0) -> dict[str, Any]:
        """Wait for a job, and return what `wait --json` prints, which `status --json` would.

        One client less than to ask for it then.
        """
        code, printed = self.ck("wait", run.run_id, "--json", timeout_s=timeout_s)
        document: dict[str, Any] = json.loads(printed)
        assert code == {"succeeded": 0, "unknown": 2}.get(document["state"], 1)
        return document

    def ends(self, run: RunFolder, timeout_s: float = 120.0) -> tuple[str, int | None]:
        """Wait for a job, and return its state and exit code."""
        document = self.over(run, timeout_s)
        return document["state"], document["exit_code"]

    def left(self, run: RunFolder, nodes: Sequence[str] = ()) -> list[str]:
        """Return the command lines of the job's processes on these nodes, or on all."""
        found = []
        for node in nodes or self.lab.nodes:
            for process in self.lab.processes(node):
                environ = Path(f"/proc/{process.pid}/environ")
                try:
                    ours = run.run_id.encode() in environ.read_bytes()
                except OSError:
                    continue
                if ours:
                    found.append(" ".join(process.argv))
        return found


def is_soon(lab: Lab, seconds: float) -> bool:
    """Tell whether forty bare clients would take longer on the head now; 12 s on an idle machine.

    So a busy machine, on which everything takes longer, makes nothing late.
    """
    return seconds < 40 * _client_s(lab)


def in_time(lab: Lab, seconds: float, within_s: float) -> bool:
    """Tell whether it took no longer than on an idle machine, where a bare client takes 0.3 s.

    What a slow machine makes longer is added, and a moment in which it stood still.
    """
    return seconds < within_s * max(1.0, _client_s(lab) / 0.3) + 10


def _client_s(lab: Lab) -> float:
    """Return how long a bare client takes on the head now."""
    began = time.monotonic()
    argv = [sys.executable, "-m", "clusterkit", "status", "--help"]
    with lab.popen("head", argv, cwd=ROOT) as client:
        client.communicate(timeout=300)
    assert client.returncode == 0
    return time.monotonic() - began


def await_true(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.2)


def one_process(lab: Lab, host: str, pattern: str) -> HostProcess:
    """Return the process of a host that matches, once there is one alone.

    What a shell has printed may be there before it has executed the next command, and what a
    process forks has its words until it executes something else.
    """
    found: list[HostProcess] = []

    def alone() -> bool:
        found[:] = lab.processes(host, pattern)
        return len(found) == 1

    await_true(alone)
    return found[0]


def started(run: RunFolder, nodes: int = 3) -> Callable[[], bool]:
    return lambda: all(run.log(k).exists() and run.log(k).stat().st_size for k in range(nodes))
