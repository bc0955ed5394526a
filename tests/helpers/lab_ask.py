"""Ask nodes of the practice cluster from its head, and what the tests of transports share."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tests.helpers.lab_jobs import await_true
from tests.helpers.paths import ROOT
from tests.lab import Lab, sshd

NAME = {"name": "uname -n"}


def ask(
    lab: Lab,
    nodes: Sequence[str],
    *,
    via: str = "ssh",
    probes: Mapping[str, Any] = NAME,
    before: Sequence[str] = (),
    host: str = "head",
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Return what `tests.helpers.ask_client` prints, its replies by node.

    `before` stands before its command.
    """
    if via == "ssh":
        options.setdefault("config_files", [str(lab.layout.ssh / "ssh_config")])
    wanted = {"via": via, "nodes": list(nodes), "probes": probes, "options": options}
    argv = [*before, sys.executable, "-m", "tests.helpers.ask_client", json.dumps(wanted)]
    done = lab.run(
        host,
        argv,
        cwd=ROOT,
        timeout_s=200,
        env={"HOME": str(lab.shared), "PYTHONPATH": str(ROOT), **(env or {})},
    )
    assert done.stdout, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    if "replies" in document:
        assert sorted(document["heard"]) == sorted(nodes)
        document["replies"] = {reply["node"]: reply for reply in document["replies"]}
    return document


def reach(document: Mapping[str, Any], node: str) -> dict[str, Any]:
    """Return how a node was reached."""
    found: dict[str, Any] = document["replies"][node]["reach"]
    return found


def said(document: Mapping[str, Any], node: str, probe: str = "name") -> str:
    """Return what a probe printed on a node."""
    text: str = document["replies"][node]["outputs"][probe]["stdout"]
    return text


def await_no_job(lab: Lab, state: str | None = None) -> None:
    """Wait until Slurm lists no job, or none in a state.

    What srun has given back is listed as completing until the slurmd of each of its nodes has told
    slurmctld that the epilog is over.
    """
    listed = ["squeue", "--noheader", *([f"--states={state}"] if state else [])]
    await_true(lambda: not lab.run("head", listed, check=True).stdout)


@contextmanager
def another_sshd(lab: Lab, host: str, port: int, *lines: str) -> Iterator[None]:
    """Let `host` run one more sshd on `port`, with `lines` before its configuration."""
    config = lab.layout.ssh / f"sshd_config_{host}_{port}"
    usual = (lab.layout.ssh / f"sshd_config_{host}").read_text()
    config.write_text("\n".join(lines) + "\n" + usual.replace("Port 22\n", f"Port {port}\n"))
    log = lab.layout.host_dir(host) / f"sshd-{port}.log"
    lab.run(host, [sshd.sshd_program(), "-f", str(config), "-E", str(log)], check=True)
    try:
        yield
    finally:
        for process in listeners(lab, host, config.name):
            os.kill(process, signal.SIGKILL)


def listeners(lab: Lab, host: str, config: str) -> list[int]:
    """Return the sshd of a host that listens for this configuration."""
    pattern = rf"^sshd: .*{config} .*\[listener\]"
    return [process.pid for process in lab.processes(host, pattern)]


@contextmanager
def stopped(pids: Sequence[int]) -> Iterator[None]:
    """Let processes hang while the block runs."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
