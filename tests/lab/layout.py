"""Names, addresses and paths of the practice cluster, and the files of its /etc."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

DEFAULT_ROOT = Path("/tmp/clusterkit-lab")
HEAD = "head"
SWITCH = "switch"
MAX_NODES = 64

TOOLS = (
    "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "munged", "sshd", "ssh", "ssh-keygen",
    "ip", "nsenter", "unshare", "setsid",
)  # fmt: skip
APT_LINE = (
    "apt-get install -y --no-install-recommends "
    "slurm-wlm munge openssh-server iproute2 util-linux slurmdbd mariadb-server-core"
)


class LabError(Exception):
    """The practice cluster could not be started, stopped or used."""


class MissingToolsError(LabError):
    """This machine lacks a program or a right that the practice cluster needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where everything of one lab lies; pure, touches nothing."""

    root: Path
    nodes: int
    accounting: bool = False
    """Whether Slurm keeps its jobs in a database; without one, sacct has no answer."""
    cloud: int = 0
    """So many of the compute hosts, the last ones, are cloud nodes: without slurmd until Slurm
    has them resumed."""

    @property
    def node_names(self) -> tuple[str, ...]:
        """Return the compute hosts, ``n1`` to ``nN``."""
        return tuple(f"n{index}" for index in range(1, self.nodes + 1))

    @property
    def cloud_names(self) -> tuple[str, ...]:
        """Return the cloud nodes among the compute hosts."""
        return self.node_names[self.nodes - self.cloud :]

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return every host that runs programs, the head first."""
        return (HEAD, *self.node_names)

    @property
    def etc(self) -> Path:
        """Return the folder whose files hide those of /etc inside the hosts."""
        return self.root / "etc"

    @property
    def ssh(self) -> Path:
        """Return the folder of keys and ssh configuration."""
        return self.root / "ssh"

    @property
    def slurm_conf(self) -> Path:
        """Return the path for ``SLURM_CONF``."""
        return self.root / "slurm" / "slurm.conf"

    @property
    def shared(self) -> Path:
        """Return the folder for what tests share between hosts."""
        return self.root / "shared"

    @property
    def power(self) -> Path:
        """Return the folder in which ResumeProgram and SuspendProgram leave what they were told."""
        return self.root / "power"

    def host_dir(self, host: str) -> Path:
        """Return the folder for the logs and spools of one host."""
        return self.root / "hosts" / host

    def address(self, host: str) -> str:
        """Return the IPv4 address of a host.

        The network is 10.77.0.0/16: hosts live in 10.77.0.x, which leaves 10.77.1.x and up
        for the extra addresses of fan-out tests.
        """
        if host == HEAD:
            return "10.77.0.254"
        return f"10.77.0.{int(host.removeprefix('n'))}"

    def mac(self, host: str) -> str:
        """Return the hardware address of a host: its IPv4 address, locally administered."""
        parts = (int(part) for part in self.address(host).split("."))
        return "02:77:" + ":".join(f"{part:02x}" for part in parts)


def default_root() -> Path:
    """Return the lab folder: ``CLUSTERKIT_LAB``, else the default."""
    return Path(os.environ.get("CLUSTERKIT_LAB") or DEFAULT_ROOT).absolute()


def require_tools(tools: Sequence[str] = TOOLS) -> None:
    """Check that the lab can run here.

    Raises:
        MissingToolsError: Some program is missing, or we are not root; says what to type.
    """
    if os.geteuid() != 0:
        raise MissingToolsError("the practice cluster needs root (namespaces); run it with sudo")
    path = tool_path()
    missing = [tool for tool in tools if shutil.which(tool, path=path) is None]
    if missing:
        raise MissingToolsError(f"missing {', '.join(missing)}: {APT_LINE}")


def tool_path() -> str:
    """Return PATH with the sbin folders, which a plain user's PATH lacks."""
    return f"{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/local/sbin:/usr/sbin:/sbin"


def write_etc(layout: Layout) -> None:
    """Write the files that the hosts see in place of those of the machine.

    Names come from the hosts file only: a look-up that falls through to DNS waits for a
    time-out that no resolver here can shorten (torch looks up every peer).
    """
    layout.etc.mkdir(parents=True, exist_ok=True)
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    lines += [f"{layout.address(host)} {host}" for host in layout.hosts]
    files = {
        "hosts": "\n".join(lines) + "\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files\n"
        "services: files\nprotocols: files\n",
        "resolv.conf": "",
        # sshd without PAM refuses accounts that are locked ("!"), as root often is.
        "shadow": "root:*:19000:0:99999:7:::\n",
    }
    for name, text in files.items():
        write_changed(layout.etc / name, text)
    (layout.etc / "shadow").chmod(0o600)


def write_changed(path: Path, text: str) -> None:
    """Write a file unless it holds this text: running programs may be reading it."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
