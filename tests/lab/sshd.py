"""ssh for the practice cluster: keys, one sshd per host, and client configuration.

Inside the hosts the client configuration hides /etc/ssh/ssh_config, so a bare ``ssh n1``
(and pdsh, mpirun, horovodrun) works, with host keys verified. From outside,
``ssh -F ROOT/ssh/outside_config n1`` needs no network: an sshd in inetd mode, started in
the host by nsenter, is the proxy command.
"""

from __future__ import annotations

import subprocess
from shutil import which
from typing import TYPE_CHECKING

from tests.lab.hosts import NAMESPACES
from tests.lab.layout import LabError, Layout, tool_path, write_changed

if TYPE_CHECKING:
    from collections.abc import Mapping

SSHD_CONFIG = """\
Port 22
ListenAddress {address}
HostKey {ssh}/host_key_{host}
AuthorizedKeysFile {ssh}/authorized_keys
# The lab folder may lie in /tmp, which StrictModes would not trust.
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
PidFile none
PrintMotd no
PrintLastLog no
AcceptEnv LANG LC_*
SetEnv SLURM_CONF={slurm_conf} CLUSTERKIT_LAB={root}
# The default drops connections of a 64-way fan-out.
MaxStartups 500:30:600
MaxSessions 100
Subsystem sftp internal-sftp
"""

CLIENT_CONFIG = """\
Host {hosts} 10.77.*
    User root
    IdentityFile {ssh}/id_ed25519
    IdentitiesOnly yes
    UserKnownHostsFile {ssh}/known_hosts
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking yes
    BatchMode yes
    ConnectTimeout 20
"""


def write_ssh(layout: Layout) -> None:
    """Write keys and configuration; keys that exist are kept."""
    layout.ssh.mkdir(parents=True, exist_ok=True, mode=0o700)
    user_key = _public_key(layout, "id_ed25519")
    write_changed(layout.ssh / "authorized_keys", f"{user_key}\n")
    known = []
    for host in layout.hosts:
        key = _public_key(layout, f"host_key_{host}")
        known.append(f"{host},{layout.address(host)} {key}")
        config = SSHD_CONFIG.format(
            address=layout.address(host),
            ssh=layout.ssh,
            host=host,
            slurm_conf=layout.slurm_conf,
            root=layout.root,
        )
        write_changed(layout.ssh / f"sshd_config_{host}", config)
    write_changed(layout.ssh / "known_hosts", "\n".join(known) + "\n")
    client = CLIENT_CONFIG.format(hosts=" ".join(layout.hosts), ssh=layout.ssh)
    write_changed(layout.ssh / "ssh_config", client)


def write_outside_config(layout: Layout, holders: Mapping[str, int]) -> None:
    """Write the client configuration for programs that run outside the hosts."""
    blocks = []
    for host in layout.hosts:
        enter = f"nsenter --target {holders[host]} {' '.join(NAMESPACES)}"
        serve = f"{sshd_program()} -i -f {layout.ssh / f'sshd_config_{host}'}"
        log = layout.host_dir(host) / "sshd.log"
        blocks.append(f"Host {host}\n    ProxyCommand {enter} {serve} -E {log}\n")
    common = (layout.ssh / "ssh_config").read_text()
    write_changed(layout.ssh / "outside_config", common + "".join(blocks))


def sshd_program() -> str:
    """Return the full path of sshd, which refuses to run under a bare name."""
    found = which("sshd", path=tool_path())
    if found is None:
        raise LabError("sshd is missing")
    return found


def daemon(layout: Layout, host: str) -> list[str]:
    """Return the command line of a host's sshd; it puts itself into the background."""
    config = layout.ssh / f"sshd_config_{host}"
    return [sshd_program(), "-f", str(config), "-E", str(layout.host_dir(host) / "sshd.log")]


def _public_key(layout: Layout, name: str) -> str:
    """Return the public half of a key, made if need be, without its comment."""
    path = layout.ssh / name
    public = path.with_suffix(".pub")
    if not public.exists():
        path.unlink(missing_ok=True)
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", str(path)]
        subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, timeout=30)
    return " ".join(public.read_text().split()[:2])
