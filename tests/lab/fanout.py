"""Many addresses behind one sshd: a fan-out over more hosts than a machine has memory for.

The addresses 10.77.1.1, 10.77.1.2, .. are added to the network card of one host. An sshd of their
own listens on all of them, on a port of its own, because sshd opens 16 sockets at most and the
host's usual one holds port 22. Every session is a real one; only the machine behind is the same.
"""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab import sshd
from tests.lab.layout import LabError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lab.lab import Lab

PORT = 2222


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOut:
    """Addresses that answer, and a configuration for ssh (by any name: clush, pdsh, fabric)."""

    addresses: tuple[str, ...]
    ssh_config: Path
    known_hosts: Path


@contextmanager
def fanned_out(lab: Lab, count: int, *, host: str = "n1") -> Iterator[FanOut]:
    """Let `host` answer ssh at `count` more addresses while the block runs."""
    addresses = tuple(f"10.77.{1 + index // 250}.{1 + index % 250}" for index in range(count))
    ip(lab, host, "".join(f"address add {one}/16 dev eth0\n" for one in addresses))
    try:
        files = _write(lab, host, addresses)
        log = lab.layout.host_dir(host) / "sshd-fanout.log"
        config = lab.layout.ssh / "sshd_config_fanout"
        lab.run(host, [sshd.sshd_program(), "-f", str(config), "-E", str(log)], check=True)
        try:
            yield files
        finally:
            for process in lab.processes(host, r"^sshd: .*sshd_config_fanout.*\[listener\]"):
                os.kill(process.pid, signal.SIGTERM)
    finally:
        ip(lab, host, "".join(f"address del {one}/16 dev eth0\n" for one in addresses))


def ip(lab: Lab, host: str, lines: str) -> None:
    """Run many lines of `ip` at once on a host; what is so already is left so."""
    done = lab.run(host, ["ip", "-force", "-batch", "-"], input=lines)
    said = [line for line in done.stderr.splitlines() if line.startswith("RTNETLINK")]
    if any("File exists" not in line and "Cannot assign" not in line for line in said):
        raise LabError(f"{host}: ip: {done.stderr}")


def _write(lab: Lab, host: str, addresses: tuple[str, ...]) -> FanOut:
    """Write the configuration of both sides, made from the host's own."""
    folder = lab.layout.ssh
    server = (folder / f"sshd_config_{host}").read_text()
    server = server.replace("Port 22\n", f"Port {PORT}\n")
    server = server.replace(f"ListenAddress {lab.layout.address(host)}", "ListenAddress 0.0.0.0")
    (folder / "sshd_config_fanout").write_text(server)
    key = " ".join((folder / f"host_key_{host}.pub").read_text().split()[:2])
    known = folder / "known_hosts_fanout"
    known.write_text("".join(f"[{one}]:{PORT} {key}\n" for one in addresses))
    client = folder / "ssh_config_fanout"
    client.write_text(
        f"Host 10.77.*\n    Port {PORT}\n    UserKnownHostsFile {known}\n"
        + (folder / "ssh_config").read_text()
    )
    return FanOut(addresses=addresses, ssh_config=client, known_hosts=known)
