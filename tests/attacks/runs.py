"""Run folders as an attacker prepares them, and what tells that somebody has acted on one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterkit.core import files, processes
from clusterkit.core.model import ClusterKind, Host
from clusterkit.executors.local.executor import MODULE
from clusterkit.executors.run import runfolder
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.executors.ssh.layout import LAYOUT, write_layout
from clusterkit.executors.ssh.start import layout_of
from tests.helpers.command_line import typed_in
from tests.helpers.plans import make_cluster, make_plan

STRANGER = 54321
"""The attacker: a user without a name. The victim is root, whom no permission would protect."""

_PROGRAMS = ("ssh", "scontrol", "squeue", "sacct", "scancel", "srun", "sbatch", "py-spy", "sinfo")


@dataclass(frozen=True)
class Trap:
    """Places where it shows that something was run, or somebody called."""

    folder: Path
    listener: socket.socket

    @property
    def witness(self) -> Path:
        """What a planted command leaves behind."""
        return self.folder / "ran"

    @property
    def port(self) -> int:
        """Where an ssh connection to a node of the attacker would arrive."""
        return int(self.listener.getsockname()[1])

    def caught(self) -> list[str]:
        """Return all that was run, and whether somebody connected."""
        told = [str(path) for path in (self.witness,) if path.exists()]
        told += (self.folder / "programs").read_text().splitlines()
        try:
            self.listener.accept()[0].close()
            told.append("a connection")
        except BlockingIOError:
            pass
        return told


def make_trap(folder: Path) -> Trap:
    """Set traps: programs of Slurm and ssh that tell of each call, and a port."""
    programs = folder / "bin"
    programs.mkdir(parents=True)
    (folder / "programs").write_text("")
    for name in _PROGRAMS:
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $*" >>{folder}/programs\nexit 1\n')
        (programs / name).chmod(0o755)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    listener.setblocking(False)
    return Trap(folder, listener)


def prepare(
    root: Path, trap: Trap, kind: ClusterKind, *, uid: int = STRANGER, **changes: Any
) -> RunFolder:
    """Return a run that does harm to whoever acts on it, and that belongs to `uid`.

    Its job is of a kind, held, to be started again, and has a log that links to another file.
    """
    hosts = (Host(name="127.0.0.1", port=trap.port),) if kind is ClusterKind.SSH else ()
    evil = f"x' ]; touch {trap.witness}; [ '"
    cluster = make_cluster(
        root, kind=kind, hosts=hosts, user="victim", port=trap.port, python=str(trap.witness)
    )
    plan = make_plan(cluster, nodes=1, node_names=("127.0.0.1",))
    made = runfolder.create(make_cluster(trap.folder / "made"), "toy")
    run = RunFolder(root / made.run_id)
    made.path.rename(run.path)
    files.write_json(run.plan, files.plain(plan))
    submission = Submission(
        run_id=run.run_id, name="toy", cluster="local", kind=kind, framework="torchrun", nodes=1,
        tasks=1, submitted_at=time.time() - 10, requeue=3,
        job_id="4242" if kind is ClusterKind.SLURM else f"{kind.value}-{run.key}",
    )  # fmt: skip
    files.write_json(run.submission, {**files.plain(submission), **changes})
    files.write_text(run.log(0), "loss 1.0\nRuntimeError: CUDA error: an illegal memory access\n")
    (run.path / "job.sbatch").write_text(f"#!/bin/sh\ntouch {trap.witness}\n")
    if kind is ClusterKind.SSH:
        write_layout(run, layout_of(plan, run))
        layout = json.loads((run.path / LAYOUT).read_text())
        layout["cluster"] |= {"venv": str(trap.witness), "host_keys": f"$(touch {trap.witness})"}
        layout["command"] = ["touch", str(trap.witness)]
        files.write_json(run.path / LAYOUT, layout)
        files.create_folder(run.agents)
        about = {"node": "127.0.0.1", "attempt": 0, "pid": 7, "start_time": evil, "boot_id": evil}
        files.write_json(run.agent(0), about)
    give(run.path, uid)
    return run


def hold(run: RunFolder, trap: Trap) -> None:
    """Let the job be one that waits for a client, with an environment that runs a command."""
    code = trap.folder / "code"
    (code / "clusterkit").mkdir(parents=True, exist_ok=True)
    (code / "sitecustomize.py").write_text(f"open({str(trap.witness)!r}, 'w')\n")
    variables = {**os.environ, "PYTHONPATH": str(code)}
    files.write_json(run.shell, {"host": socket.gethostname(), "variables": variables})
    files.create_text(run.queued, "")


def control(run: RunFolder, pid: int) -> None:
    """Say that this process is the controller of a local job, with all that proves which it is."""
    about = {
        "pid": pid, "start_time": processes.start_time(pid), "boot_id": processes.boot_id(),
        "host": socket.gethostname(), "port": 29500,
    }  # fmt: skip
    files.write_json(run.controller, about)


def give(path: Path, uid: int) -> None:
    """Give a folder, and all that is in it, to a user."""
    for one in (path, *path.rglob("*")):
        os.chown(one, uid, uid, follow_symlinks=False)


def state_of(folder: Path) -> dict[str, tuple[Any, ...]]:
    """Return everything that is in a folder, so that it shows whether anything was touched."""
    found = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        about = path.lstat()
        what = path.readlink() if path.is_symlink() else about.st_size
        found[str(path)] = (about.st_ino, about.st_mode, about.st_uid, about.st_mtime_ns, what)
    return found


def command(*words: str) -> list[str]:
    """Return the command line of a verb."""
    return [sys.executable, "-m", "clusterkit", *words]


def environment(trap: Trap, run_dir: Path) -> dict[str, str]:
    """Return the environment of the victim, whose PATH leads to the traps first."""
    config = trap.folder / "clusterkit.yaml"
    if not config.exists():
        config.write_text(f"clusters: {{local: {{run_dir: {run_dir}}}}}\n")
    path = f"{trap.folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "HOME": str(trap.folder), "PYTHONSAFEPATH": "1"}


def clusterkit(trap: Trap, run_dir: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Type a verb as the victim."""
    return typed_in(trap.folder, *words, **environment(trap, run_dir))


def bystander(run: RunFolder, *, posing: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process of the victim's that has nothing to do with the job."""
    words = ["-m", MODULE, str(run.path) + "-another"] if posing else []
    code = "import time; time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code, *words]) as process:
        yield process
        process.kill()
