"""Engines inside hosts of the practice cluster, found there as on any machine: /run/docker.sock."""

from __future__ import annotations

from pathlib import Path

from tests.docker.engine import Engine
from tests.lab import Lab
from tests.lab.hosts import enter_argv, find_holders

_CGROUPS = r"""
mount -t tmpfs cgroup /sys/fs/cgroup
for name in cpu cpuacct cpuset memory devices freezer blkio pids; do
  mkdir /sys/fs/cgroup/$name && mount -t cgroup -o $name cgroup /sys/fs/cgroup/$name
done
exec "$@"
"""
"""The engine's own view of /sys: the host has no control groups, so that Slurm makes none."""


def engine_in(lab: Lab, host: str, root: Path) -> Engine:
    """Return an engine that runs in a host, with its folder in `root`; it is not started."""
    holder = find_holders(lab.root)[host]
    inner = ["unshare", "--mount", "--propagation", "private", "sh", "-ec", _CGROUPS, "cgroups"]
    return Engine(root, tuple(enter_argv(holder, inner, env=lab.env(), cwd="/")))


def offer(lab: Lab, host: str, engine: Engine) -> None:
    """Let every process of the host find the engine where clients look for one."""
    lab.run(host, ["ln", "-sfn", str(engine.socket), "/run/docker.sock"], check=True)
