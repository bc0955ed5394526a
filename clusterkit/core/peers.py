"""Let the nodes of a job talk to each other over TCP, and nobody else take part.

For clusterkit's worker, and for the launchers of frameworks, beside which this file lies on the
nodes as clusterkit_peers.py: it needs Python 3.8 and nothing else. One node listens (`Listener`),
others connect to it (`connect`, `connect_within`), and both sides then have a `Connection`, which
sends and receives JSON objects. It begins with three lines,

    asker:     clusterkit-peers/1 RANK NONCE
    listener:  clusterkit-peers/1 RANK NONCE SIGNATURE
    asker:     SIGNATURE

and continues with lines `SIGNATURE JSON` of both. A signature is HMAC-SHA256 by the token of the
job over the protocol, the purpose of the port, the attempt, who sends, both ranks, both nonces, how
many lines the sender has signed before, and the JSON. So what is replayed, echoed, out of order, or
of another attempt, port or job is refused. All who have the token are trusted to be who they say.
Nothing is encrypted.
"""

from __future__ import annotations

import errno
import hmac
import json
import math
import os
import re
import secrets
import select
import selectors
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

PROTOCOL = "clusterkit-peers/1"
VARIABLE = "CK_TOKEN"
"""Where the nodes of a job find its token."""
SHORTEST_TOKEN = 16
"""Characters. Whoever records a connection can try tokens at leisure."""
HANDSHAKE_S = 2.0
MESSAGE_S = 10.0
"""How long a message may take from its first byte to its last, or to be taken by the other side."""
FIRST_LONGEST = 1 << 12
"""Bytes that are kept of a connection before it has shown that it knows the token."""
LONGEST = 1 << 22
"""Bytes of a message. As objects of Python they may take thirty times as much."""
STRANGERS = 256
"""Connections that may be in their handshake at once, and how many of them from one address."""
STRANGERS_OF_ADDRESS = 128
ACCEPTS = 16
"""How many are accepted before those that are there get their turn."""
BACKLOG = 1024
ACCEPT_AGAIN_S = 0.1
TELL_S = 10.0
"""After so long, whoever waits for the first node says that it finds somebody else in its place."""
SHORTAGES = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}
)
"""Errors of a machine that has run out of descriptors, memory or ports of its own."""

_HELLO = re.compile(rb"clusterkit-peers/1 ([0-9]{1,6}) ([0-9a-f]{32})(?: ([0-9a-f]{64}))?")
_HALF_OF_A_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")


class PeerError(ConnectionError):
    """The other side is not of this job, has gone, is late, or sends what cannot be a message."""


class TokenError(ValueError):
    """The token of the job is missing or can be guessed; the text says what to type."""


class Member:
    """A node of a job, as it shows itself to the others."""

    def __init__(self, *, token: str, rank: int, of: int, attempt: object, purpose: str) -> None:
        """Know the token.

        Args:
            token: The secret of the job.
            rank: Of this node, from 0.
            of: How many nodes there are.
            attempt: The same on all nodes of one attempt of the job, and on no others.
            purpose: The same on all nodes, another for each port of the job.

        Raises:
            TokenError: the token is missing or too short.
        """
        if len(token) < SHORTEST_TOKEN:
            fault = f"has only {len(token)} characters" if token else "is not set"
            raise TokenError(
                f"{VARIABLE} {fault}: the nodes of a job know each other by it. Make one by "
                f"`openssl rand -hex 16`, and set {VARIABLE} to it on every node"
            )
        self.rank = rank
        self.of = of
        self._key = token.encode("utf-8", "surrogateescape")
        self._scope = [PROTOCOL, purpose, str(attempt)]

    def sign(self, where: list[object], count: int, body: bytes) -> bytes:
        """Return the signature of a line: the `count`th that one side of a connection signs."""
        context = json.dumps([*self._scope, *where, count]).encode()
        return hmac.new(self._key, context + b"\n" + body, "sha256").hexdigest().encode()


def new_token() -> str:
    """Return a token for one attempt of one job."""
    return secrets.token_hex(16)


def member_of_job(purpose: str) -> Member:
    """Return this node as the variables of the job describe it; for launchers.

    Raises:
        SystemExit: there is no token; says what to type.
    """
    job, attempt = (os.environ.get(name, "0") for name in ("CK_JOB_ID", "CK_RESTART_COUNT"))
    try:
        return Member(
            token=os.environ.get(VARIABLE, ""),
            rank=int(os.environ["CK_NODE_RANK"]),
            of=len(os.environ["CK_NODES"].split()),
            attempt=f"{job} {attempt}",
            purpose=purpose,
        )
    except TokenError as error:
        sys.exit(f"clusterkit: error: {error}")


# One connection


class _Stream:
    """Lines over a socket, each by a deadline. One thread may read while others write."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        for level, option, value in (
            (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),  # firewalls forget silent connections
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
        ):
            with suppress(OSError):
                sock.setsockopt(level, option, value)
        self.socket = sock
        self._read = bytearray()
        self._closing = threading.Lock()
        self._closed = False

    def line(self, longest: int, begin_by: float | None, whole_s: float | None = None) -> bytes:
        """Return the next line, without its end.

        Args:
            longest: Bytes that it may have.
            begin_by: When its first byte must be there; None waits for ever.
            whole_s: How long all of it may take from then on; None leaves that at `begin_by`.
        """
        deadline, searched = begin_by, 0
        if self._read and whole_s is not None:
            deadline = time.monotonic() + whole_s
        while True:
            end = self._read.find(b"\n", searched)
            if end > longest or (end < 0 and len(self._read) > longest):
                raise PeerError(f"sends a line of more than {longest} bytes")
            if end >= 0:
                line = bytes(self._read[:end])
                del self._read[: end + 1]
                return line
            searched = len(self._read)
            part = self._receive(deadline)
            if not self._read and whole_s is not None:
                deadline = time.monotonic() + whole_s
            self._read += part

    def unread(self, data: bytes) -> None:
        """Take what was read elsewhere as what comes next."""
        self._read[:0] = data

    def write(self, data: bytes, deadline: float) -> None:
        """Send all of `data`; a connection on which that fails is of no use any more."""
        left = memoryview(data)
        while left:
            try:
                left = left[self.socket.send(left) :]
            except (BlockingIOError, InterruptedError):
                self._wait(select.POLLOUT, deadline)

    def end(self) -> None:
        """Let whoever reads or writes notice that this is the end."""
        with self._closing, suppress(OSError):
            if not self._closed:
                self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket; for the thread that reads, when it is done."""
        self.end()
        with self._closing:
            self._closed = True
            self.socket.close()

    def _receive(self, deadline: float | None) -> bytes:
        while True:
            try:
                part = self.socket.recv(1 << 16)
            except (BlockingIOError, InterruptedError):
                self._wait(select.POLLIN, deadline)
                continue
            if not part:
                raise PeerError("has closed the connection")
            return part

    def _wait(self, event: int, deadline: float | None) -> None:
        poll = select.poll()  # unlike select, with descriptors above 1023
        poll.register(self.socket, event)
        left = None if deadline is None else (deadline - time.monotonic()) * 1000
        if left is not None and (left <= 0 or not poll.poll(math.ceil(left))):
            raise PeerError("has not answered in time")
        if left is None:
            poll.poll()


class Connection:
    """One side of a connection whose other side is a node of this job."""

    def __init__(self, stream: _Stream, member: Member, *, asks: bool, rank: int, nonces: str):
        """Know who is on the other side; for `connect` and `Listener` alone."""
        self.rank = rank
        """Of the other node, as it says."""
        self.fault = ""
        """Why `messages` came to its end."""
        self._stream = stream
        self._member = member
        ranks = [member.rank, rank] if asks else [rank, member.rank]
        self._own: list[object] = ["asker" if asks else "listener", *ranks, nonces]
        self._theirs: list[object] = ["listener" if asks else "asker", *ranks, nonces]
        self._sent = self._received = 0
        self._sending = threading.Lock()

    def send(self, message: Mapping[str, Any], within_s: float = MESSAGE_S) -> None:
        """Send a message; any thread may.

        Raises:
            ValueError: it is no JSON, or larger than `LONGEST`; see `shortened`.
            OSError: it cannot be sent.
        """
        body = _encode(message)
        if len(body) > LONGEST:
            raise ValueError(f"a message of {len(body)} bytes: at most {LONGEST} can be sent")
        with self._sending:
            line = self.seal(b" " + body)
            try:
                self._stream.write(line, time.monotonic() + within_s)
            except OSError:
                self._stream.end()  # half a line may be out
                raise

    def receive(
        self, timeout_s: float | None = None, message_s: float = MESSAGE_S
    ) -> dict[str, Any]:
        """Return the next message; for one thread.

        Args:
            timeout_s: How long to wait for its first byte; None waits for ever.
            message_s: How long it may take from then on.

        Raises:
            PeerError: there is none, or it is not one of this node and this connection.
            OSError: the connection is broken.
        """
        begin_by = None if timeout_s is None else time.monotonic() + timeout_s
        line = self._stream.line(LONGEST + 65, begin_by, message_s)
        body = self.open(line)
        if body[:1] != b" ":
            raise PeerError("sends no message")
        return _decode(body[1:])

    def messages(self, timeout_s: float | None = None) -> Iterator[dict[str, Any]]:
        """Yield messages until the other side goes, sends nonsense, or is silent for too long."""
        while True:
            try:
                message = self.receive(timeout_s)
            except OSError as error:
                self.fault = str(error)
                return
            yield message

    def seal(self, body: bytes) -> bytes:
        """Return the next line of this side; `body` is empty in the handshake."""
        line = self._member.sign(self._own, self._sent, body) + body + b"\n"
        self._sent += 1
        return line

    def open(self, line: bytes) -> bytes:
        """Return the body of the next line of the other side.

        Raises:
            PeerError: it has not signed this.
        """
        body = line[64:]
        if not hmac.compare_digest(
            self._member.sign(self._theirs, self._received, body), line[:64]
        ):
            raise PeerError(f"is not of this attempt of the job, or has another {VARIABLE}")
        self._received += 1
        return body

    def put_back(self, data: bytes) -> None:
        """Take what was read of the socket behind the handshake."""
        self._stream.unread(data)

    def end(self) -> None:
        """Let both sides notice that this is the end; any thread may."""
        self._stream.end()

    def close(self) -> None:
        """Close the connection; for the thread that reads."""
        self._stream.close()

    def __enter__(self) -> Connection:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self.close()


def connect(
    address: tuple[str, int], member: Member, *, rank: int = 0, timeout_s: float = HANDSHAKE_S
) -> Connection:
    """Return a connection to the node `rank`, which listens at `address`.

    Raises:
        PeerError: whoever listens there is not that node.
        OSError: nobody does, or `is_shortage`.
    """
    deadline = time.monotonic() + timeout_s
    try:
        stream = _Stream(socket.create_connection(address, timeout=timeout_s))
    except UnicodeError as error:
        raise PeerError(f"{address[0]!r} cannot be the name of a host") from error
    try:
        return _greet(stream, member, rank, deadline)
    except PeerError as error:
        stream.close()
        raise PeerError(f"who listens at {address[0]}:{address[1]} {error}") from error
    except BaseException:
        stream.close()
        raise


def _greet(stream: _Stream, member: Member, rank: int, deadline: float) -> Connection:
    nonce = secrets.token_hex(16)
    stream.write(f"{PROTOCOL} {member.rank} {nonce}\n".encode(), deadline)
    hello = _HELLO.fullmatch(stream.line(FIRST_LONGEST, deadline))
    if hello is None or hello[3] is None or int(hello[1]) != rank:
        raise PeerError("is not of this job")
    nonces = f"{nonce} {hello[2].decode()}"
    connection = Connection(stream, member, asks=True, rank=rank, nonces=nonces)
    connection.open(hello[3])
    stream.write(connection.seal(b""), deadline)
    return connection


def connect_within(
    seconds: float, address: tuple[str, int], member: Member, *, every_s: float = 0.2
) -> Connection:
    """Return a connection to the first node, trying again and again until it is there.

    Raises:
        PeerError: it is not; says what was found in its place.
    """
    began = time.monotonic()
    deadline, warned = began + seconds, False
    while True:
        try:
            return connect(address, member)
        except OSError as error:
            if isinstance(error, PeerError) and not warned and time.monotonic() - began > TELL_S:
                warned = True
                print(f"clusterkit: {error}; trying on", file=sys.stderr, flush=True)
            if time.monotonic() > deadline:
                raise PeerError(
                    f"the first node cannot be reached at {address[0]}:{address[1]} within "
                    f"{seconds:.0f} s: {error}"
                ) from error
        time.sleep(every_s)


def is_shortage(error: OSError) -> bool:
    """Tell whether this machine lacks something, which says nothing of the others."""
    return error.errno in SHORTAGES


# What is sent


def whole(message: Mapping[str, Any], name: str, low: int, high: int) -> int:
    """Return a whole number of a message.

    Raises:
        PeerError: there is none from `low` to `high`.
    """
    value = message.get(name)
    if type(value) is not int or not low <= value <= high:
        raise PeerError(f"sends no {name} from {low} to {high}")
    return value


def seconds(message: Mapping[str, Any], name: str) -> float:
    """Return a time of a message, in seconds.

    Raises:
        PeerError: there is none from 0 to a year.
    """
    value = message.get(name)
    if not isinstance(value, (int, float)) or not 0 <= value <= 366 * 86400:
        raise PeerError(f"sends no {name}")
    return float(value)


def text(message: Mapping[str, Any], name: str, longest: int = 1 << 16) -> str:
    """Return a text of a message.

    Raises:
        PeerError: there is none, or it is longer.
    """
    value = message.get(name)
    if not isinstance(value, str) or len(value) > longest:
        raise PeerError(f"sends no {name} of at most {longest} characters")
    return value


def shortened(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with its longest texts cut so far that it can be sent."""
    for most in (1 << 20, 1 << 16, 1 << 12, 1 << 8, 1 << 5):
        if len(_encode(message)) <= LONGEST:
            break
        message = _cut(message, most)
    return dict(message)


def _cut(value: Any, most: int) -> Any:
    if isinstance(value, str):
        return value if len(value) <= most else value[: most - 1] + "…"
    if isinstance(value, dict):
        return {name: _cut(part, most) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_cut(part, most) for part in value]
    return value


def _encode(message: Mapping[str, Any]) -> bytes:
    # Texts of logs may hold halves of surrogate pairs: they become question marks.
    plain = json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return plain.encode("utf-8", "replace")


def _decode(body: bytes) -> dict[str, Any]:
    try:
        message = json.loads(
            body.decode(), parse_int=_whole, parse_float=_fraction, parse_constant=_refuse
        )
        if _HALF_OF_A_PAIR.search(body):
            json.dumps(message, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise PeerError("sends what is not valid JSON") from error
    if not isinstance(message, dict):
        raise PeerError("sends JSON that is not an object")
    return message


def _whole(digits: str) -> int:
    if len(digits) > 20:  # reading millions of them takes hours
        raise ValueError("a number too large")
    return int(digits)


def _fraction(digits: str) -> float:
    if len(digits) > 64:
        raise ValueError("a number too long")
    number = float(digits)
    return number if math.isfinite(number) else _refuse(digits)


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not a number")


# Whoever listens


class _Stranger:
    """A connection that has not shown yet that it is of the job."""

    def __init__(self, sock: socket.socket, address: str) -> None:
        self.socket = sock
        self.address = address
        self.give_up_at = time.monotonic() + HANDSHAKE_S
        self.read = bytearray()
        self.connection: Connection | None = None
        """Once it has said hello."""


class Listener:
    """A port on which the nodes of a job are served, each connection by a thread of its own.

    Handshakes take no thread. Of too many at once the oldest goes, of the address with the most.
    """

    def __init__(
        self,
        address: tuple[str, int],
        member: Member,
        serve: Callable[[Connection], object],
        *,
        of_rank: int = 8,
    ) -> None:
        """Listen, and call `serve` with each connection, which is closed afterwards.

        Whatever is wrong with what comes may be raised there as an `OSError`. Of one node, more
        than `of_rank` connections end the oldest.

        Raises:
            OSError: the port is taken, or the machine lets nobody listen.
        """
        self.member = member
        self.refused = ""
        """Who was turned away last, and why."""
        self._serve = serve
        self._of_rank = of_rank
        self._socket = socket.create_server(address, backlog=BACKLOG)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._wakes, self._wakened = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wakened, selectors.EVENT_READ)
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._strangers: dict[int, _Stranger] = {}  # by descriptor, oldest first
        self._served: dict[int, list[Connection]] = {}
        self._lock = threading.Lock()
        self._closing = False
        self._accept_at: float | None = None
        """When to try again, while nothing can be accepted."""
        self._unable_since: float | None = None
        self._unable_s = 0.0
        threading.Thread(target=self._run, name="clusterkit-peers", daemon=True).start()

    def unable_s(self) -> float:
        """Return for how long in all nobody could be accepted, out of descriptors or threads.

        Silence in that time is no evidence that a node has gone.
        """
        with self._lock:
            since = self._unable_since
            return self._unable_s + (time.monotonic() - since if since is not None else 0.0)

    def close(self) -> None:
        """Listen no more; connections that are there go on."""
        self._closing = True
        with suppress(OSError):
            self._wakes.send(b"x")

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn()
        finally:
            if not self._closing:
                self._note_unable()  # for good, and whatever it was is printed with this thread
            for stranger in list(self._strangers.values()):
                self._drop(stranger)
            for one in (self._socket, self._wakes, self._wakened, self._selector):
                one.close()

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._wait_s()):
            if key.fileobj is self._socket:
                self._accept()
                continue
            stranger = self._strangers.get(key.fd)
            if stranger is not None and stranger is key.data:  # not a later one of that number
                self._hear(stranger)
        now = time.monotonic()
        for stranger in list(self._strangers.values()):
            if stranger.give_up_at > now:
                break
            self._drop(stranger, "was silent")
        if self._accept_at is not None and now >= self._accept_at:
            self._accept_at = None
            self._selector.register(self._socket, selectors.EVENT_READ)
            self._accept()

    def _wait_s(self) -> float | None:
        moments = [stranger.give_up_at for stranger in self._strangers.values()][:1]
        if self._accept_at is not None:
            moments.append(self._accept_at)
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    # Accepting

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            try:
                sock, address = self._socket.accept()
            except BlockingIOError:
                self._note_able()
                return
            except OSError as error:
                if error.errno in SHORTAGES:
                    self._wait_for_descriptors()
                    return
                continue  # that one has gone again: accept(2) reports errors of the network
            self._note_able()
            sock.setblocking(False)
            stranger = _Stranger(sock, str(address[0]))
            self._make_room(stranger.address)
            self._selector.register(sock, selectors.EVENT_READ, stranger)
            self._strangers[sock.fileno()] = stranger

    def _make_room(self, address: str) -> None:
        """Drop the oldest of the address with the most, where one more would be too many."""
        counts: dict[str, int] = {}
        for one in (*(stranger.address for stranger in self._strangers.values()), address):
            counts[one] = counts.get(one, 0) + 1
        most = max(counts, key=lambda address: counts[address])
        if counts[most] > STRANGERS_OF_ADDRESS or len(self._strangers) >= STRANGERS:
            oldest = next(one for one in self._strangers.values() if one.address == most)
            self._drop(oldest, "was one of too many")

    def _wait_for_descriptors(self) -> None:
        """Send strangers away, who may be the cause, and try again in a moment."""
        self._note_unable()
        for stranger in list(self._strangers.values()):
            self._drop(stranger, "came when descriptors had run out")
        self._selector.unregister(self._socket)
        self._accept_at = time.monotonic() + ACCEPT_AGAIN_S

    def _note_unable(self) -> None:
        with self._lock:
            if self._unable_since is None:
                self._unable_since = time.monotonic()

    def _note_able(self) -> None:
        with self._lock:
            if self._unable_since is not None:
                self._unable_s += time.monotonic() - self._unable_since
                self._unable_since = None

    # Handshakes

    def _hear(self, stranger: _Stranger) -> None:
        try:
            part = stranger.socket.recv(FIRST_LONGEST - len(stranger.read))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            part = b""
        stranger.read += part
        line, ended, rest = stranger.read.partition(b"\n")
        try:
            while ended:
                stranger.read = rest
                if stranger.connection is not None:
                    stranger.connection.open(bytes(line))
                    self._welcome(stranger, stranger.connection)
                    return
                stranger.connection = self._greet(stranger, bytes(line))
                line, ended, rest = stranger.read.partition(b"\n")
            if not part or len(stranger.read) >= FIRST_LONGEST:
                raise PeerError("went" if not part else "sent too much")
        except OSError as error:
            self._drop(stranger, str(error))

    def _greet(self, stranger: _Stranger, line: bytes) -> Connection:
        hello = _HELLO.fullmatch(line)
        if hello is None or hello[3] is not None or int(hello[1]) >= self.member.of:
            raise PeerError("is not of this job")
        nonce = secrets.token_hex(16)
        connection = Connection(
            _Stream(stranger.socket),
            self.member,
            asks=False,
            rank=int(hello[1]),
            nonces=f"{hello[2].decode()} {nonce}",
        )
        answer = f"{PROTOCOL} {self.member.rank} {nonce} ".encode() + connection.seal(b"")
        if stranger.socket.send(answer) != len(answer):
            raise PeerError("does not read")
        return connection

    def _welcome(self, stranger: _Stranger, connection: Connection) -> None:
        """Serve a connection whose other side is of the job."""
        self._forget(stranger)
        connection.put_back(bytes(stranger.read))
        with self._lock:
            served = self._served.setdefault(connection.rank, [])
            if len(served) >= self._of_rank:
                served.pop(0).end()
            served.append(connection)
        try:
            threading.Thread(target=self._serve_one, args=(connection,), daemon=True).start()
        except RuntimeError:  # no more threads
            self._note_unable()
            self._leave(connection)

    def _serve_one(self, connection: Connection) -> None:
        try:
            self._serve(connection)
        except OSError as error:
            self.refused = f"node {connection.rank} {error}"
        finally:
            self._leave(connection)

    def _leave(self, connection: Connection) -> None:
        connection.close()
        with self._lock:
            served = self._served.get(connection.rank, [])
            if connection in served:
                served.remove(connection)

    def _forget(self, stranger: _Stranger) -> None:
        self._selector.unregister(stranger.socket)
        del self._strangers[stranger.socket.fileno()]

    def _drop(self, stranger: _Stranger, why: str = "") -> None:
        self._forget(stranger)
        stranger.socket.close()
        if why:
            self.refused = f"{stranger.address} {why}"
