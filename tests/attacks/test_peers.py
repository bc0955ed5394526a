"""What strangers on the network can do to the nodes of a job that talk: nothing.

Attackers here have sockets on this machine and know everything but the token of the job.
"""

from __future__ import annotations

import ast
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from clusterkit.core import peers
from clusterkit.core.peers import Connection, Listener, Member, PeerError, TokenError, connect

TOKEN = "5d1c6a0e54f8b2c97a3e"
HERE = "127.0.0.1"


def member(rank: int = 1, **changes: Any) -> Member:
    known = {"token": TOKEN, "rank": rank, "of": 3, "attempt": 0, "purpose": "test"}
    return Member(**{**known, **changes})


def until(true: Callable[[], object], seconds: float = 50) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Echo:
    """A listener that answers each message with its own content, and counts."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.listener = Listener((HERE, 0), member(0), self.serve)
        self.address = (HERE, self.listener.port)

    def serve(self, connection: Connection) -> None:
        for message in connection.messages():
            self.heard.append((connection.rank, message))
            connection.send({"answer": message})

    def ask(self, message: dict[str, Any], **changes: Any) -> Any:
        with connect(self.address, member(**changes)) as connection:
            connection.send(message)
            return connection.receive(50)["answer"]


@pytest.fixture
def echo() -> Iterator[Echo]:
    made = Echo()
    yield made
    made.listener.close()


class Between:
    """An attacker on the way of one connection, who sees and changes every line."""

    def __init__(
        self, address: tuple[str, int], change: Callable[[bool, int, bytes], list[bytes]]
    ) -> None:
        self.server = socket.create_server((HERE, 0))
        self.address = (HERE, self.server.getsockname()[1])
        self.to = address
        self.change = change
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        asker, _ = self.server.accept()
        listener = socket.create_connection(self.to)
        for source, sink, asks in ((asker, listener, True), (listener, asker, False)):
            threading.Thread(target=self.pass_on, args=(source, sink, asks), daemon=True).start()

    def pass_on(self, source: socket.socket, sink: socket.socket, asks: bool) -> None:
        with suppress(OSError):
            for number, line in enumerate(source.makefile("rb")):
                for changed in self.change(asks, number, line):
                    sink.sendall(changed)
            sink.shutdown(socket.SHUT_WR)


def test_a_message_comes_as_it_was_sent(echo: Echo) -> None:
    message = {"text": "ü \N{GRINNING FACE} \n", "numbers": [1, -2.5, None, True]}
    assert echo.ask(message, rank=2) == message
    assert echo.heard == [(2, message)]


def test_a_large_message_gets_through(echo: Echo) -> None:
    message = {"text": "x" * 3_000_000}
    assert echo.ask(message) == message


def test_what_is_too_large_is_refused_by_its_sender_or_shortened(echo: Echo) -> None:
    message = {"texts": ["x" * 1_000_000] * 9, "code": 7}
    with pytest.raises(ValueError, match="at most"):
        echo.ask(message)
    answer = echo.ask(peers.shortened(message))
    assert answer["code"] == 7
    assert {len(text) for text in answer["texts"]} == {1 << 16}


def test_a_text_that_is_no_unicode_can_be_sent(echo: Echo) -> None:
    assert echo.ask({"log": b"\xff-".decode(errors="surrogateescape")}) == {"log": "?-"}


@pytest.mark.parametrize("token", ["", "short", "x" * 15])
def test_a_token_that_can_be_guessed_is_refused_and_says_what_to_type(token: str) -> None:
    with pytest.raises(TokenError, match=r"openssl rand -hex 16.*CK_TOKEN.*every node"):
        member(token=token)


@pytest.mark.parametrize(
    "changes",
    [{"token": "9" * 20}, {"attempt": 1}, {"purpose": "mpi"}, {"rank": 3, "of": 4}],
    ids=["token", "attempt", "purpose", "rank"],
)
def test_another_token_attempt_purpose_or_rank_gets_nowhere(
    echo: Echo, changes: dict[str, Any]
) -> None:
    with pytest.raises(OSError):  # noqa: PT011 - how the connection breaks may differ
        echo.ask({"n": 1}, **changes)
    assert not echo.heard
    assert echo.ask({"n": 2}) == {"n": 2}


def test_a_replayed_connection_gets_nowhere(echo: Echo) -> None:
    seen: list[bytes] = []

    def record(asks: bool, number: int, line: bytes) -> list[bytes]:
        seen.extend([line] if asks else [])
        return [line]

    between = Between(echo.address, record)
    with connect(between.address, member()) as connection:
        connection.send({"ended": True})
        assert connection.receive(5)
    assert len(echo.heard) == 1
    with socket.create_connection(echo.address, timeout=5) as replay, suppress(OSError):
        replay.sendall(b"".join(seen))
        while replay.recv(4096):
            pass
    assert len(echo.heard) == 1


CHANGES: dict[str, Callable[[bool, int, bytes], list[bytes]]] = {
    "repeated": lambda asks, number, line: [line] * (2 if asks and number == 2 else 1),
    "dropped": lambda asks, number, line: [line] if not asks or number != 2 else [],
    "changed": lambda asks, number, line: [line.replace(b'"n":', b'"m":')],
    "unsigned": lambda asks, number, line: [line[64:] if asks and number > 1 else line],
    "empty": lambda asks, number, line: [line[:64] + b"\n" if asks and number > 1 else line],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_lines_that_are_tampered_with_are_heard_by_nobody(
    echo: Echo, change: Callable[[bool, int, bytes], list[bytes]]
) -> None:
    between = Between(echo.address, change)
    with connect(between.address, member()) as connection, suppress(OSError):
        for number in range(3):
            connection.send({"n": number})
            connection.receive(2)
    heard = [message["n"] for _, message in echo.heard]
    assert heard in ([], [0])


def test_an_echo_is_no_answer() -> None:
    def serve(sock: socket.socket) -> None:
        with suppress(OSError):
            for line in sock.makefile("rb"):
                sock.sendall(line)

    with squatter(serve) as address, pytest.raises(PeerError, match="is not of this job"):
        connect(address, member())


def test_an_own_question_is_no_answer(echo: Echo) -> None:
    def reflect(asks: bool, number: int, line: bytes) -> list[bytes]:
        if asks and number == 2:
            mine.append(line)
        return [line] if asks or number == 0 else mine

    mine: list[bytes] = []
    between = Between(echo.address, reflect)
    with connect(between.address, member()) as connection:
        connection.send({"n": 1})
        with pytest.raises(PeerError, match="not of this attempt"):
            connection.receive(5)


class squatter:  # noqa: N801 - used as a function
    """Somebody else's listener."""

    def __init__(self, serve: Callable[[socket.socket], object], port: int = 0) -> None:
        self.server = socket.create_server((HERE, port), backlog=128)
        self.serve = serve
        self.kept: list[socket.socket] = []

    def accept(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self.server.accept()
                self.kept.append(sock)
                threading.Thread(target=self.serve, args=(sock,), daemon=True).start()

    def __enter__(self) -> tuple[str, int]:
        threading.Thread(target=self.accept, daemon=True).start()
        host, port = self.server.getsockname()
        return host, port

    def __exit__(self, *_: object) -> None:
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        for sock in self.kept:
            sock.close()


def drip(sock: socket.socket) -> None:
    with suppress(OSError):
        while True:
            sock.sendall(b"c")
            time.sleep(0.1)


def pour(sock: socket.socket) -> None:
    with suppress(OSError):
        while True:
            sock.sendall(b"x" * 65536)


@pytest.mark.parametrize("serve", [lambda sock: None, drip, pour], ids=["silent", "drip", "pour"])
def test_whoever_squats_the_port_does_not_hold_an_asker(
    serve: Callable[[socket.socket], object],
) -> None:
    """Who would go on for ever: in silence, by drips, by a flood."""
    with squatter(serve) as address, pytest.raises(PeerError, match="who listens at"):
        connect(address, member())


def test_the_first_node_is_waited_for_and_who_was_there_instead_is_told() -> None:
    told = pytest.raises(PeerError, match=r"cannot be reached .* within 1 s: who listens at")
    with squatter(lambda sock: sock.sendall(b"hello\n")) as address, told:
        peers.connect_within(1, address, member())


def stranger(address: tuple[str, int], *, source: str = HERE) -> socket.socket:
    return socket.create_connection(address, timeout=50, source_address=(source, 0))


def test_idle_connections_keep_nobody_out(echo: Echo) -> None:
    with ExitStack() as stack:
        for number in range(1145):
            source = HERE if number % 2 else f"127.0.1.{number % 250 + 1}"
            stack.enter_context(stranger(echo.address, source=source))
            if number % 100 == 0:
                assert echo.ask({"n": number}) == {"n": number}
        assert len(echo.listener._strangers) <= peers.STRANGERS
        assert echo.ask({"n": -1}) == {"n": -1}
        until(lambda: not echo.listener._strangers)  # none longer than the handshake may take
    assert echo.listener.unable_s() == 0


FLOOD = """
import socket, sys, threading
from contextlib import suppress

address = ("127.0.0.1", int(sys.argv[1]))

def flood(first):
    while True:
        with suppress(OSError), socket.create_connection(address, timeout=5) as sock:
            sock.sendall(first)

hello = f"{sys.argv[2]} 1 {'a' * 32}\\n".encode()
firsts = [b"", b"GET / HTTP/1.1\\r\\n\\r\\n", hello, hello + b"0" * 64 + b"\\n", b"\\xff" * 9000]
threads = [threading.Thread(target=flood, args=(first,)) for first in firsts]
for thread in threads:
    thread.start()
print("here", flush=True)
"""
"""In a process of its own, as strangers are: threads of this one would hold up its listener."""


def test_a_flood_keeps_nobody_out(echo: Echo) -> None:
    words = [sys.executable, "-c", FLOOD, str(echo.listener.port), peers.PROTOCOL]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as flood:
        try:
            assert flood.stdout is not None
            assert flood.stdout.readline() == b"here\n"
            until(lambda: echo.listener.refused)
            for number in range(20):  # as nodes do, which try again
                with peers.connect_within(50, echo.address, member()) as connection:
                    connection.send({"n": number})
                    assert connection.receive(50)["answer"] == {"n": number}
            assert flood.poll() is None
        finally:
            flood.kill()


def test_a_stranger_that_drips_is_sent_away(echo: Echo) -> None:
    with stranger(echo.address) as sock:
        began = time.monotonic()
        with suppress(OSError):
            while not ended(sock):
                sock.sendall(b"c")
    assert time.monotonic() - began > 1


def ended(sock: socket.socket) -> bool:
    sock.settimeout(0.1)
    try:
        return sock.recv(1) == b""
    except TimeoutError:
        return False


def test_a_stranger_is_told_nothing_but_a_number(echo: Echo) -> None:
    for message in (b'{"rank": 1}\n', b"\n", b"\xff\n", b"x" * 100_000):
        with stranger(echo.address) as sock, suppress(ConnectionError):
            sock.sendall(message)
            assert sock.recv(4096) == b""
    with stranger(echo.address) as sock:
        sock.sendall(f"{peers.PROTOCOL} 1 {'a' * 32}\n".encode())
        answer = sock.recv(4096)
        assert peers._HELLO.fullmatch(answer.rstrip(b"\n"))
        sock.sendall(b"0" * 64 + b"\n")
        assert sock.recv(4096) == b""
    assert not echo.heard


BROKEN = [
    b" [1, 2",
    b" [1]",
    b" " + b"[" * 100_000,
    b' {"n": ' + b"9" * 4_000_000 + b"}",
    b' {"n": 1e999}',
    b' {"n": NaN}',
    b' {"n": "\\ud800"}',
    b' {"n": "\xff"}',
    b"no message",
    b"",
]


@pytest.mark.parametrize("body", BROKEN, ids=range(len(BROKEN)))
def test_nonsense_of_a_node_of_the_job_is_that_nodes_error(echo: Echo, body: bytes) -> None:
    with connect(echo.address, member(2)) as broken:
        broken._stream.write(broken.seal(body), time.monotonic() + 50)
        with pytest.raises(PeerError, match="closed"):
            broken.receive(60)
    assert not echo.heard
    assert echo.ask({"n": 1}) == {"n": 1}


def test_fields_are_taken_by_type_and_range() -> None:
    message = {"code": 3, "flag": True, "huge": 10**12, "name": "n1", "long": "x" * 70_000}
    assert peers.whole(message, "code", 0, 255) == 3
    assert peers.text(message, "name") == "n1"
    for name in ("flag", "huge", "name", "missing"):
        with pytest.raises(PeerError, match=f"no {name} from 0 to 255"):
            peers.whole(message, name, 0, 255)
    for name in ("code", "long", "missing"):
        with pytest.raises(PeerError, match=f"no {name} of at most"):
            peers.text(message, name)


def test_a_message_that_drips_is_given_up(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection.receive, "__defaults__", (None, 1.0))
    with connect(echo.address, member(2)) as slow, suppress(OSError):
        for byte in slow.seal(b' {"n": "' + b"x" * 100 + b'"}'):
            slow._stream.write(bytes([byte]), time.monotonic() + 60)
            time.sleep(0.1)
        pytest.fail("all of it was waited for")
    assert not echo.heard


def test_one_node_has_only_so_many_connections(echo: Echo) -> None:
    with ExitStack() as stack:
        many = [stack.enter_context(connect(echo.address, member(2))) for _ in range(30)]
        until(lambda: len(echo.listener._served[2]) <= 8)
        many[-1].send({"n": 1})
        assert many[-1].receive(50)
        assert echo.ask({"n": 2}, rank=1) == {"n": 2}


def test_the_end_of_a_connection_wakes_who_reads(echo: Echo) -> None:
    with connect(echo.address, member()) as connection:
        threading.Timer(0.2, connection.end).start()
        assert list(connection.messages()) == []
        assert "closed" in connection.fault


@contextmanager
def no_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_exhausted_descriptors_are_told_and_survived(echo: Echo) -> None:
    with socket.socket() as waiting, no_descriptors():
        waiting.connect(echo.address)
        until(lambda: echo.listener.unable_s() > 0.5)
        with pytest.raises(OSError) as caught:  # noqa: PT011 - it is its number that counts
            connect(echo.address, member())
        assert peers.is_shortage(caught.value)
    assert echo.ask({"n": 1}) == {"n": 1}
    unable_s = echo.listener.unable_s()
    time.sleep(0.3)
    assert echo.listener.unable_s() == unable_s > 0.5


def test_it_runs_on_the_pythons_of_old_clusters_and_alone() -> None:
    source = Path(peers.__file__).read_text(encoding="utf-8")
    tree = ast.walk(ast.parse(source, feature_version=(3, 8)))
    imported = [node.module for node in tree if isinstance(node, ast.ImportFrom)]
    assert set(imported) <= {"__future__", "contextlib", "typing", "collections.abc"}
