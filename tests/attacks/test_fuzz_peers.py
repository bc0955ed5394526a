"""Whatever comes in over the network, only its own connection ends."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterkit.core import peers
from clusterkit.core.peers import PeerError, connect
from tests.attacks.test_peers import Echo, member

QUICK = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
HELLO = f"{peers.PROTOCOL} 1 {'a' * 32}".encode()
TEXTS = st.text(max_size=40)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
LINES = st.lists(
    st.binary(max_size=300)
    | st.just(HELLO)
    | st.builds(
        b" ".join,
        st.lists(st.sampled_from(HELLO.split()) | st.binary(max_size=70)),
    ),
    max_size=5,
)


@pytest.fixture(scope="module")
def echo() -> Iterator[Echo]:
    made = Echo()
    yield made
    made.listener.close()


@QUICK
@given(lines=LINES)
def test_a_listener_survives_any_stranger(echo: Echo, lines: list[bytes]) -> None:
    heard = len(echo.heard)
    with socket.create_connection(echo.address, timeout=5) as stranger, suppress(OSError):
        stranger.sendall(b"\n".join(lines))
        stranger.shutdown(socket.SHUT_WR)
        while stranger.recv(4096):
            pass
    assert len(echo.heard) == heard
    assert echo.ask({"n": 1}) == {"n": 1}


@QUICK
@given(body=st.binary(max_size=200) | JSON.map(lambda value: b" " + json.dumps(value).encode()))
def test_a_listener_survives_any_broken_node(echo: Echo, body: bytes) -> None:
    line = body.replace(b"\n", b"?")
    with connect(echo.address, member(2)) as broken, suppress(OSError):
        broken._stream.write(broken.seal(line), time.monotonic() + 50)
        broken.receive(0.05)
    assert echo.ask({"n": 1}) == {"n": 1}


@QUICK
@given(lines=LINES)
def test_an_asker_survives_any_squatter(lines: list[bytes]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        asker = connect_later(server, b"\n".join(lines))
        with pytest.raises(OSError):  # noqa: PT011 - how the connection breaks may differ
            connect(server.getsockname(), member(), timeout_s=0.2)
        asker.join()


def connect_later(server: socket.socket, answer: bytes) -> threading.Thread:
    def serve() -> None:
        sock, _ = server.accept()
        with sock, suppress(OSError):
            sock.recv(4096)
            sock.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


@QUICK
@given(message=st.dictionaries(TEXTS, JSON, max_size=4))
def test_what_can_be_sent_comes_as_it_was(echo: Echo, message: dict[str, Any]) -> None:
    try:
        sent = json.loads(json.dumps(message, allow_nan=False))
        same = "?" not in json.dumps(sent) and "\\ud" not in json.dumps(sent)
        answer = echo.ask(message)
    except (ValueError, PeerError):
        return
    if same:
        assert answer == sent
