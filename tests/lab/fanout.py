"""Many addresses behind few sshd: a fan-out over more hosts than a machine has memory for.

The addresses 10.77.1.1, 10.77.1.2, .. are added to the network cards of the nodes in turn. An sshd
of their own listens on all of them, on a port of its own, because sshd opens 16 sockets at most
and the host's usual one holds port 22. Every session is a real one; only the machine behind is the
same. (Nodes in turn, because sshd lets 128 connections wait.)
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
def fanned_out(lab: Lab, count: int) -> Iterator[FanOut]:
    """Let the nodes answer ssh at `count` more addresses while the block runs."""
    shares = {
        host: [_address(index) for index in range(count)][offset :: len(lab.nodes)]
        for offset, host in enumerate(lab.nodes)
    }
    try:
        for host, addresses in shares.items():
            ip(lab, host, "".join(f"address add {one}/16 dev eth0\n" for one in addresses))
            _start(lab, host)
        yield _describe(lab, shares)
    finally:
        for host, addresses in shares.items():
            for process in lab.processes(host, r"^sshd: .*sshd_config_fanout.*\[listener\]"):
                os.kill(process.pid, signal.SIGTERM)
            ip(lab, host, "".join(f"address del {one}/16 dev eth0\n" for one in addresses))


def _address(index: int) -> str:
    return f"10.77.{1 + index // 250}.{1 + index % 250}"


def ip(lab: Lab, host: str, lines: str) -> None:
    """Run many lines of `ip` at once on a host; what is so already is left so."""
    done = lab.run(host, ["ip", "-force", "-batch", "-"], input=lines)
    said = [line for line in done.stderr.splitlines() if line.startswith("RTNETLINK")]
    if any("File exists" not in line and "Cannot assign" not in line for line in said):
        raise LabError(f"{host}: ip: {done.stderr}")


def _start(lab: Lab, host: str) -> None:
    folder = lab.layout.ssh
    text = (folder / f"sshd_config_{host}").read_text()
    text = text.replace("Port 22\n", f"Port {PORT}\n")
    text = text.replace(f"ListenAddress {lab.layout.address(host)}", "ListenAddress 0.0.0.0")
    # bash takes a session for an inner shell and leaves the machine's own .bashrc alone, which
    # may cost more than all the rest.
    text = text.replace("SetEnv ", "SetEnv SHLVL=1 ")
    config = folder / f"sshd_config_fanout_{host}"
    config.write_text(text)
    log = lab.layout.host_dir(host) / "sshd-fanout.log"
    lab.run(host, [sshd.sshd_program(), "-f", str(config), "-E", str(log)], check=True)


def _describe(lab: Lab, shares: dict[str, list[str]]) -> FanOut:
    """Write the client's side, made from that of the lab."""
    folder = lab.layout.ssh
    known = folder / "known_hosts_fanout"
    lines = []
    for host, addresses in shares.items():
        key = " ".join((folder / f"host_key_{host}.pub").read_text().split()[:2])
        lines += [f"[{one}]:{PORT} {key}\n" for one in addresses]
    known.write_text("".join(lines))
    client = folder / "ssh_config_fanout"
    own = f"Host 10.77.*\n    Port {PORT}\n    UserKnownHostsFile {known}\n"
    client.write_text(own + (folder / "ssh_config").read_text())
    count = sum(len(addresses) for addresses in shares.values())
    return FanOut(
        addresses=tuple(_address(index) for index in range(count)),
        ssh_config=client,
        known_hosts=known,
    )
