"""Open SSH connections with fabric: host keys verified, jump hosts shared, nobody is asked."""

from __future__ import annotations

import logging
import math
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import fabric
import paramiko
from cryptography.exceptions import InvalidSignature, InvalidTag, UnsupportedAlgorithm

from clusterkit.core.untrusted import NONSENSE
from clusterkit.transport.ssh.config import SshOptions, Target, load_config, resolve, resolve_jump
from clusterkit.transport.ssh.keys import Keys, LoginRefused
from clusterkit.transport.ssh.known_hosts import HostKeyRefused, KnownHosts

_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")
"""Preferred: the processor's own AES, and no separate MAC to compute in Python."""
BROKEN = (OSError, EOFError, paramiko.SSHException)
"""A connection that ended, or was ended."""
GIBBERISH = (struct.error, InvalidSignature, InvalidTag, UnsupportedAlgorithm, *NONSENSE)
"""What paramiko raises where a server speaks no SSH, or means harm."""
_LARGEST_PACKET = 256 << 10
"""Bytes; as in OpenSSH (PACKET_MAX_SIZE). Nobody has to take more than 35,000 (RFC 4253, 6.1)."""
_LONGEST_BANNER = 16 << 10
"""Bytes of all lines before the handshake; RFC 4253, 4.2, has 255 in each."""


class Packets(paramiko.Packetizer):  # type: ignore[misc]
    """Reads packets of the sizes that SSH has: paramiko believes every length, up to 4 GiB."""

    _left = _LONGEST_BANNER

    def read_all(self, n: int, check_rekey: bool = False) -> bytes:
        """Return so many bytes of a packet; see paramiko."""
        if n > _LARGEST_PACKET:
            raise paramiko.SSHException(f"a packet of {n} bytes")
        data: bytes = super().read_all(n, check_rekey)
        return data

    def _read_timeout(self, timeout: float) -> bytes:
        data: bytes = super()._read_timeout(timeout)
        self._left -= len(data)
        if self._left < 0:
            raise paramiko.SSHException("no end of what it says before the handshake")
        return data


class JumpFailed(Exception):  # noqa: N818 - carries the reason, which is told in its place
    """A jump host on the way could not be reached; the cause says why."""


@dataclass(slots=True)
class Line:
    """A connection being made; `cut` ends it from another thread, at any stage."""

    sockets: list[Any] = field(default_factory=list)
    is_cut: bool = False
    since: float = field(default_factory=time.monotonic)
    """When it was wanted: what failed before that is tried again for it."""

    def hold(self, one: Any) -> Any:
        """Note something to be closed with the line, and return it."""
        self.sockets.append(one)
        if self.is_cut:
            one.close()
        return one

    def cut(self) -> None:
        """Close everything."""
        self.is_cut = True
        self.close()

    def close(self) -> None:
        """Close what was opened last first."""
        while self.sockets:
            one = self.sockets.pop()
            if isinstance(one, socket.socket):
                with suppress(OSError):  # unlike close, this wakes threads that wait for it
                    one.shutdown(socket.SHUT_RDWR)
            one.close()


@dataclass(frozen=True, slots=True)
class _Verifier:
    """paramiko's policy for keys it does not know; as it is given none, it asks for every key."""

    known: KnownHosts
    target: Target

    def missing_host_key(self, _client: Any, _hostname: str, key: Any) -> None:
        self.known.check(self.target, key.get_name(), key.get_base64())


class _Jump:
    """The connection to a jump host, opened by who needs it first, and again once it is lost."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.line = Line()
        self.connection: Any = None
        self.failure: Exception | None = None
        self.failed_at = 0.0


class SshClient:
    """Everything that connections share: configuration, keys, known hosts, jump hosts."""

    def __init__(self, options: SshOptions) -> None:
        """Read ssh's configuration.

        Raises:
            UserError: it cannot be read.
        """
        # paramiko logs what it raises as well; without a handler Python would print that.
        logging.getLogger("paramiko").addHandler(logging.NullHandler())
        self._options = options
        self._ssh_config = load_config(options)
        self._keys = Keys(options.identity_file)
        self._known = KnownHosts(accept_new=options.host_keys == "accept-new")
        self._jumps: dict[tuple[str, ...], _Jump] = {}
        self._is_closed = False
        self._lock = threading.Lock()

    def resolve(self, name: str) -> Target:
        """Decide how a node is reached."""
        return resolve(name, self._options, self._ssh_config)

    def dial(self, target: Target, line: Line) -> Any:
        """Return a socket, or what behaves like one, to the SSH port of a host.

        Raises:
            OSError: there is no connection. `socket.gaierror`: there is no such name.
            JumpFailed: a host on the way could not be reached.
        """
        if target.jumps:
            transport = self._through(target.jumps, since=line.since)
            limit_s = target.connect_timeout_s
            try:
                with _timed(limit_s):
                    place = (target.address, target.port)
                    channel = transport.open_channel(
                        "direct-tcpip", place, ("", 0), timeout=limit_s
                    )
            except (*BROKEN, *GIBBERISH) as error:
                raise JumpFailed(target.jumps[-1]) from error
            return line.hold(channel)
        if target.proxy_command:
            return line.hold(paramiko.ProxyCommand(target.proxy_command))
        return line.hold(_connected(target, line))

    def log_in(self, target: Target, sock: Any, line: Line, *, limit_s: float) -> Any:
        """Return an open fabric connection over `sock`; each of its steps may take `limit_s`.

        Raises:
            HostKeyRefused, LoginRefused, paramiko.SSHException, OSError, EOFError: it failed.
        """
        connection = fabric.Connection(
            target.name,
            user=target.user,
            port=target.port,
            config=self._fabric_config(),
            gateway=False,
            forward_agent=False,
            connect_timeout=math.ceil(limit_s),
            connect_kwargs={
                "sock": sock,
                "banner_timeout": limit_s,
                "auth_timeout": limit_s,
                "channel_timeout": limit_s,
                "transport_factory": partial(self._transport, target),
            },
        )
        # In place of fabric's AutoAddPolicy, which believes everyone.
        connection.client.set_missing_host_key_policy(_Verifier(self._known, target))
        line.hold(connection.client)
        connection.open()
        return connection

    def close(self) -> None:
        """Close the connections to jump hosts."""
        with self._lock:
            self._is_closed = True
            for jump in self._jumps.values():
                jump.line.cut()

    def _fabric_config(self) -> Any:
        """Return a configuration for one connection, without fabric's own files.

        A connection writes into it and merges it anew, so it must not be shared between threads.
        """
        return fabric.Config(
            lazy=True,
            ssh_config=self._ssh_config,
            overrides={"authentication": {"strategy_class": self._keys.strategy}},
        )

    def _transport(self, target: Target, sock: Any, **more: Any) -> Any:
        """Return paramiko's side of a connection, asking for a kind of key that is known."""
        transport = paramiko.Transport(sock, packetizer_class=Packets, **more)
        security = transport.get_security_options()
        security.ciphers = _first(security.ciphers, _CIPHERS)
        kinds = self._known.key_kinds(target)
        accepted = [name for kind in kinds for name in _ALGORITHMS.get(kind, (kind,))]
        security.key_types = _first(security.key_types, accepted)
        return transport

    def _through(self, hops: tuple[str, ...], *, since: float) -> Any:
        """Return the open transport to the last of some jump hosts.

        What all nodes of one question wait for fails once; a later question tries it again.
        """
        with self._lock:
            jump = self._jumps.setdefault(hops, _Jump())
        with jump.lock:
            if jump.connection is not None and jump.connection.transport.is_active():
                return jump.connection.transport
            if jump.failure is not None and jump.failed_at >= since:
                raise jump.failure
            jump.line.close()
            with self._lock:
                jump.line = Line(is_cut=self._is_closed, since=since)
            try:
                jump.connection = self._open_jump(hops, jump.line)
            except (*BROKEN, *GIBBERISH, *_REFUSALS) as error:
                jump.line.close()
                jump.connection = None
                jump.failed_at = time.monotonic()
                jump.failure = JumpFailed(hops[-1])
                raise jump.failure from error
            return jump.connection.transport

    def _open_jump(self, hops: tuple[str, ...], line: Line) -> Any:
        target = resolve_jump(hops[-1], self._options, self._ssh_config, before=hops[:-1])
        sock = self.dial(target, line)
        with _timed(target.connect_timeout_s):
            return self.log_in(target, sock, line, limit_s=target.connect_timeout_s)


_REFUSALS = (HostKeyRefused, LoginRefused)
_ALGORITHMS = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256")}
"""Of kinds of keys that are used under another name than their own."""


@contextmanager
def _timed(limit_s: float) -> Iterator[None]:
    """Turn what paramiko raises after `limit_s` into a TimeoutError: its words do not tell."""
    end = time.monotonic() + limit_s
    try:
        yield
    except (EOFError, paramiko.SSHException) as error:
        if time.monotonic() < end:
            raise
        raise TimeoutError from error


def round_trip_s(connection: Any, sock: Any) -> float | None:
    """Return how long a packet takes to the node and back; None where that is not known.

    The kernel measures it with every packet (`tcpi_min_rtt` of tcp(7), microseconds), free of the
    threads of this process. Behind a jump host a question of ours is sent (RFC 4254, section 4).
    """
    if isinstance(sock, socket.socket) and hasattr(socket, "TCP_INFO"):
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        if len(info) >= _MIN_RTT + 4:
            return int.from_bytes(info[_MIN_RTT : _MIN_RTT + 4], "little") / 1e6
    began = time.monotonic()
    connection.transport.global_request("keepalive@openssh.com", wait=True)
    return time.monotonic() - began


_MIN_RTT = 148
"""Offset of `tcpi_min_rtt` in Linux' `struct tcp_info`."""


def _connected(target: Target, line: Line) -> socket.socket:
    """Return a TCP connection to one of the addresses of a host."""
    end = time.monotonic() + target.connect_timeout_s
    try:
        found = socket.getaddrinfo(target.address, target.port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a part of more than 63 letters
        raise socket.gaierror(socket.EAI_NONAME, "no name that can be looked up") from error
    failure: OSError = OSError("no address")
    for tried, (family, kind, protocol, _, address) in enumerate(found):
        sock: socket.socket = line.hold(socket.socket(family, kind, protocol))
        # The first address must not take the time of the others.
        sock.settimeout(max(0.1, (end - time.monotonic()) / (len(found) - tried)))
        try:
            sock.connect(address)
        except OSError as error:
            failure = error
            sock.close()
            continue
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    raise failure


def _first(all_of_them: Sequence[str], preferred: Sequence[str]) -> tuple[str, ...]:
    """Return `all_of_them` with those that are `preferred` in front."""
    front = [one for one in preferred if one in all_of_them]
    return (*front, *(one for one in all_of_them if one not in front))
