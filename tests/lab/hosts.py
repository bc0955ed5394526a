"""Hosts made of namespaces: start, find, link, enter and kill them.

A host is its holder, process 1 of a PID namespace: the kernel ends every process of the
namespace with it, and network, mounts and hostname go when the last process is gone. So
there is no state to go stale: holders are found by their command line in /proc, and a
host without one does not exist.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.layout import SWITCH, LabError, Layout, tool_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HOLDER = Path(__file__).with_name("holder.sh")
NAMESPACES = ("--net", "--mount", "--uts", "--ipc", "--pid")


def pids() -> list[int]:
    """Return the processes that this PID namespace sees."""
    # Here and below no Path per process: tests that wait for processes look several times a second.
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208


def read_cmdline(pid: int) -> tuple[str, ...]:
    """Return the arguments of a process; empty when it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb", buffering=0) as file:  # noqa: PTH123
            raw = file.read()
    except OSError:
        return ()
    return tuple(part.decode(errors="replace") for part in raw.split(b"\0")[:-1])


def inner_pid(pid: int) -> int | None:
    """Return the number of a process inside its innermost PID namespace."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return None


def pid_namespace(pid: int) -> str | None:
    """Return the identity of the PID namespace of a process."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")  # noqa: PTH115
    except OSError:
        return None


def find_holders(root: Path) -> dict[str, int]:
    """Return host name -> holder for every living host of the lab in ``root``."""
    held = ((held_by(root, pid), pid) for pid in pids())
    return {host: pid for host, pid in held if host is not None}


def held_by(root: Path, pid: int) -> str | None:
    """Return the host of the lab in ``root`` whose holder a process is; None where it is none."""
    argv = read_cmdline(pid)
    # The holder's script may lie elsewhere (another checkout): the lab folder decides.
    ours = len(argv) == 4 and argv[2] == str(root) and Path(argv[1]).name == HOLDER.name
    # The unshare that started it and what it forks have the same arguments for a moment.
    return argv[3] if ours and inner_pid(pid) == 1 else None


def start_holder(layout: Layout, host: str) -> int:
    """Start a host and return its holder's process number.

    Raises:
        LabError: The kernel refused; carries what the holder said.
    """
    folder = layout.host_dir(host)
    folder.mkdir(parents=True, exist_ok=True)
    # setsid --fork: a holder is nobody's child, so it leaves no zombie in a test process.
    argv = ["setsid", "--fork", "unshare", *NAMESPACES, "--fork", "--kill-child"]
    argv += ["--propagation", "private", "--", "/bin/sh", str(HOLDER), str(layout.root), host]
    log = folder / "holder.log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            argv, cwd="/", env={"PATH": tool_path()}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=errors, text=True,
        ) as starter,
    ):  # fmt: skip
        assert starter.stdout is not None
        ready = starter.stdout.readline().strip() == "ready"
    pid = find_holders(layout.root).get(host)
    if not ready or pid is None:
        raise LabError(f"host {host} did not start: {log.read_text().strip() or 'no message'}")
    return pid


def link(layout: Layout, holders: Mapping[str, int], host: str) -> None:
    """Plug a host into the switch; nothing to do when it is plugged in.

    Both ends are made inside the namespaces, so the machine's own never holds one, not
    even for a moment.
    """
    ends = ((holders[SWITCH], f"v-{host}"), (holders[host], "eth0"))
    if all(_ip(pid, "link", "show", name).returncode == 0 for pid, name in ends):
        return
    # One end without the other is what a dead host or switch left: the kernel takes it away
    # late, and its name must be free now.
    for pid, name in ends:
        _ip(pid, "link", "delete", name)
    pair = ("link", "add", f"v-{host}", "type", "veth", "peer", "name", "eth0")
    for pid, arguments in (
        (holders[SWITCH], (*pair, "netns", str(holders[host]))),
        (holders[SWITCH], ("link", "set", f"v-{host}", "master", "br0", "up")),
        # Always the same, or the others talk to the host that was there before for a while.
        (holders[host], ("link", "set", "eth0", "address", layout.mac(host))),
        (holders[host], ("address", "add", f"{layout.address(host)}/16", "dev", "eth0")),
        (holders[host], ("link", "set", "eth0", "up")),
    ):
        done = _ip(pid, *arguments)
        if done.returncode:
            raise LabError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def _ip(pid: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ip in a host's network, but with our process numbers (for ``netns PID``)."""
    argv = ["nsenter", "--target", str(pid), "--net", "ip", *arguments]
    env = {"PATH": tool_path()}
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=120)


def enter_argv(
    pid: int, argv: Sequence[str], *, env: Mapping[str, str], cwd: str | Path
) -> list[str]:
    """Return the command line that runs ``argv`` inside a host.

    ``env --chdir`` and not ``nsenter --wd``: that one opens the folder outside and would
    leave the process standing in the machine's own mounts.
    """
    pairs = [f"{name}={value}" for name, value in env.items()]
    inner = ["env", "--ignore-environment", f"--chdir={cwd}", *pairs, *argv]
    return ["nsenter", "--target", str(pid), *NAMESPACES, *inner]


def kill_holders(holders: Sequence[int], *, timeout_s: float = 60.0) -> None:
    """End hosts and all their processes, at once and for certain.

    Raises:
        LabError: A host outlived SIGKILL (a process stuck in the kernel).
    """
    handles = []
    for pid in holders:
        try:
            handles.append((pid, os.pidfd_open(pid)))
        except ProcessLookupError:
            continue
    for _, handle in handles:
        try:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        except ProcessLookupError:
            continue
    deadline = time.monotonic() + timeout_s
    for pid, handle in handles:
        # Readable once the process is reaped or waits to be, and process 1 of a namespace
        # comes to that only after all others in it.
        left_s = max(0.0, deadline - time.monotonic())
        gone = bool(select.select([handle], [], [], left_s)[0])
        os.close(handle)
        if not gone:
            raise LabError(f"process {pid} outlives SIGKILL")
