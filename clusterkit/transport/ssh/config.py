"""What ssh's own configuration says of a host: ssh_config(5), read once for all hosts.

paramiko reads the format but for `Include`, which is put in place here before.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paramiko

from clusterkit.core.errors import UserError
from clusterkit.core.model import ClusterSpec, Host
from clusterkit.core.ownership import read_own
from clusterkit.transport.base import check_names

_DEFAULT_PORT = 22
_CONNECT_TIMEOUT_S = 10.0
_DEEPEST = 16
"""Includes in includes that OpenSSH follows; also the longest chain of jump hosts here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SshOptions:
    """How the hosts of a cluster are reached; what is None is left to ssh's configuration."""

    user: str | None = None
    port: int | None = None
    identity_file: str | None = None
    """Tried before all other keys, at jump hosts too."""
    jump_host: str | None = None
    """`[USER@]HOST[:PORT]`, or several separated by commas, nearest first."""
    host_keys: str = "known"
    """`known`, or `accept-new`: keys of hosts never seen before are added to known_hosts."""
    hosts: Mapping[str, Host] = field(default_factory=dict)
    """Hosts with a user or a port of their own."""
    connect_timeout_s: float | None = None
    """For the TCP connection, and again for the handshake; None: the host's ConnectTimeout."""
    margin_s: float = 5.0
    """How long a script may take beyond the time that its probes have."""
    workers: int = 64
    """Sessions at a time."""
    config_files: tuple[str, ...] = ("~/.ssh/config", "/etc/ssh/ssh_config")

    @classmethod
    def of(cls, cluster: ClusterSpec) -> SshOptions:
        """Return the options of a cluster."""
        return cls(
            user=cluster.user,
            port=cluster.port,
            identity_file=cluster.identity_file,
            jump_host=cluster.jump_host,
            host_keys=cluster.host_keys,
            hosts={host.name: host for host in cluster.hosts if host.user or host.port},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One host, with everything decided that is needed to connect to it."""

    name: str
    address: str
    """What is looked up: `HostName`, else the name."""
    user: str | None
    port: int
    connect_timeout_s: float
    key_name: str
    """Under which its key stands in known_hosts."""
    user_known_hosts: tuple[Path, ...]
    known_hosts: tuple[Path, ...]
    """All files in which keys are looked up; new ones go to the first of the user's."""
    hash_names: bool
    jumps: tuple[str, ...]
    """`[USER@]HOST[:PORT]` of the hosts in between, nearest first."""
    proxy_command: str | None

    @property
    def at_port(self) -> str:
        """Return the name under which known_hosts keeps a key of this port."""
        return self.key_name if self.port == _DEFAULT_PORT else f"[{self.key_name}]:{self.port}"


def load_config(options: SshOptions) -> Any:
    """Read ssh's configuration files, those that are there.

    Raises:
        UserError: one of them cannot be read, makes no sense, or can be written by others.
    """
    config = paramiko.SSHConfig()
    for name in options.config_files:
        path = Path(name).expanduser()
        if not path.is_file():
            continue
        try:
            # A file begins for all hosts again, whatever block the one before it ended in.
            config.parse(["Host *\n", *_lines(path, "Host *", 0)])
        except (OSError, UnicodeDecodeError, paramiko.ConfigParseError) as error:
            raise UserError(
                f"cannot read the ssh configuration {path}: {error}",
                hint=f"try: ssh -G -F {path} HOST",
            ) from error
    return config


def resolve(name: str, options: SshOptions, config: Any) -> Target:
    """Decide how the node `name` is reached."""
    host = options.hosts.get(name, Host(name=name))
    found = {**config.lookup(name)}
    found["user"] = host.user or options.user or found.get("user")
    found["port"] = host.port or options.port or found.get("port")
    jumps = _jumps(name, found, options.jump_host or found.get("proxyjump"))
    return _target(name, found, options, jumps)


def resolve_jump(jump: str, options: SshOptions, config: Any, *, before: tuple[str, ...]) -> Target:
    """Decide how a jump host is reached, through those `before` it.

    Raises:
        UserError: it is not of the form `[USER@]HOST[:PORT]`.
    """
    user, _, place = jump.rpartition("@")
    match = re.fullmatch(r"\[([^]]+)\](?::(\d+))?|([^:]+)(?::(\d+))?", place)
    if match is None:
        raise UserError(f"no jump host: {jump!r}", hint="a jump host is [USER@]HOST[:PORT]")
    name = match[1] or match[3]
    check_names([name])
    found = {**config.lookup(name)}
    found["user"] = user or found.get("user")
    found["port"] = match[2] or match[4] or found.get("port")
    jumps = found.get("proxyjump") or ""
    own = () if name in jumps else _jumps(name, found, jumps)
    return _target(name, found, options, before or own)


def _target(
    name: str, found: Mapping[str, Any], options: SshOptions, jumps: tuple[str, ...]
) -> Target:
    users = _files(found.get("userknownhostsfile", "~/.ssh/known_hosts ~/.ssh/known_hosts2"))
    system = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"
    return Target(
        name=name,
        address=found["hostname"],
        user=found["user"],
        port=int(found["port"] or _DEFAULT_PORT),
        connect_timeout_s=options.connect_timeout_s
        or float(found.get("connecttimeout") or _CONNECT_TIMEOUT_S),
        key_name=(found.get("hostkeyalias") or found["hostname"]).lower(),
        user_known_hosts=users,
        known_hosts=users + _files(found.get("globalknownhostsfile", system)),
        hash_names=found.get("hashknownhosts", "no").lower() == "yes",
        jumps=jumps,
        proxy_command=None if jumps or options.jump_host else found.get("proxycommand"),
    )


def _jumps(name: str, found: Mapping[str, Any], jumps: str | None) -> tuple[str, ...]:
    """Return the hosts between here and `name`; a jump host is not reached through itself."""
    if not jumps or jumps.lower() == "none":
        return ()
    hops = tuple(hop.strip() for hop in jumps.split(","))[:_DEEPEST]
    places = {hop.rpartition("@")[2].partition(":")[0] for hop in hops}
    return () if {name, found["hostname"]} & places else hops


def _files(names: str) -> tuple[Path, ...]:
    paths = (path.replace("%d", "~", 1) for path in shlex.split(names) if path != "none")
    return tuple(Path(path).expanduser() for path in paths)


def _lines(path: Path, block: str, depth: int) -> Iterator[str]:
    """Yield the lines of a configuration file, with those of the files that it includes.

    As ssh does, refuse one that others can write: a `ProxyCommand` in it is a command.
    """
    text = read_own(path, use="run the commands that it names").decode()
    for line in text.splitlines(keepends=True):
        fields = line.strip().replace("=", " ", 1).split(None, 1)
        keyword = fields[0].lower() if fields else ""
        if keyword in {"host", "match"}:
            block = line.strip()
        if keyword != "include" or depth >= _DEEPEST:
            yield line.rstrip("\n") + "\n"
            continue
        for pattern in shlex.split(fields[1] if len(fields) > 1 else "", comments=True):
            for included in _included(pattern, path):
                yield from _lines(included, block, depth + 1)
                yield block + "\n"  # a block that began in there ends with its file


def _included(pattern: str, path: Path) -> list[Path]:
    place = Path(pattern).expanduser()
    if not place.is_absolute():
        place = (Path("/etc/ssh") if path.is_relative_to("/etc") else Path.home() / ".ssh") / place
    found = Path(place.anchor).glob(str(place.relative_to(place.anchor)))
    return sorted(one for one in found if one.is_file())
