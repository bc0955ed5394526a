"""What strangers, broken nodes and a machine without descriptors do to the calls between nodes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from clusterkit.core import peers
from clusterkit.core.files import plain
from clusterkit.core.model import PORT_STRIDE, NodeResult
from clusterkit.core.peers import Member
from clusterkit.core.ports import groups
from clusterkit.executors.node import coordinator
from clusterkit.executors.node import peers as calls
from clusterkit.executors.node.coordinator import join
from clusterkit.executors.node.identity import Allocation
from clusterkit.executors.node.partition import PeerState
from clusterkit.executors.node.peers import PeerConnection
from clusterkit.executors.run.runfolder import RunFolder
from tests.attacks.test_peers import no_descriptors, squatter, stranger, until
from tests.helpers.port_ranges import next_range

TOKEN = "f" * 32
SILENCE_S = 4.0
NODES = Allocation(job_id="attack", names=("127.0.0.1", "n2", "n3"), slots=(), tasks=3, token=TOKEN)


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "CALL_EVERY_S", 0.1)
    for module in (calls, coordinator):
        monkeypatch.setattr(module, "SILENCE_S", SILENCE_S)
    monkeypatch.setattr(calls, "HEAD_SILENCE_S", SILENCE_S + 0.5)


@pytest.fixture
def ports() -> tuple[int, ...]:
    return tuple(groups(*next_range(), seed="attack"))[:5]


@contextmanager
def job(ports: tuple[int, ...], folder: Path) -> Iterator[list[PeerConnection]]:
    made = []
    for rank in range(3):
        run = RunFolder(folder / f"on-{rank}")
        run.failures.mkdir(parents=True)
        peer_state = PeerState(run, NODES)
        peer_state.begin()
        made.append(join(rank, peer_state, ports))
    for connection in made:
        connection.begin()
    try:
        assert all(connection.await_go() for connection in made)
        yield made
    finally:
        for connection in reversed(made):
            connection.leave()
            connection.peer_state.end()


def port_of(connection: PeerConnection) -> tuple[str, int]:
    assert connection.port is not None
    return "127.0.0.1", connection.port + PORT_STRIDE - 1


def member(rank: int, **changes: Any) -> Member:
    known = {"token": TOKEN, "rank": rank, "of": 3, "attempt": 0, "purpose": "calls"}
    return Member(**{**known, **changes})


def unharmed(nodes: list[PeerConnection]) -> bool:
    return not any(
        connection.peer_state.failure or connection.peer_state.cancelled for connection in nodes
    )


def test_1145_idle_connections_make_no_node_believe_in_a_lost_network(
    ports: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_KEEP_UP_TO", 0)  # as of jobs so wide that each call is a new one
    with job(ports, tmp_path) as nodes, ExitStack() as stack:
        for _ in range(1145):
            stack.enter_context(stranger(port_of(nodes[0])))
        began = time.monotonic()
        while time.monotonic() - began < 2 * SILENCE_S:
            stack.enter_context(stranger(port_of(nodes[0])))
            time.sleep(0.01)
        assert unharmed(nodes)


@pytest.mark.parametrize("kept", [0, 512], ids=["called-anew", "kept"])
def test_exhausted_descriptors_are_no_evidence_that_a_node_is_lost(
    ports: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.setattr(calls, "_KEEP_UP_TO", kept)
    with job(ports, tmp_path) as nodes, socket.socket() as caller:
        with no_descriptors():
            caller.connect(port_of(nodes[0]))  # so that there is somebody to accept
            time.sleep(2 * SILENCE_S)
        time.sleep(1)
        assert unharmed(nodes)
        assert nodes[1].trouble or kept


def test_a_node_that_is_lost_in_the_flood_is_noticed(
    ports: tuple[int, ...], tmp_path: Path
) -> None:
    with job(ports, tmp_path) as nodes, ExitStack() as stack:
        nodes[2]._call = lambda: None  # type: ignore[method-assign]
        for _ in range(300):
            stack.enter_context(stranger(port_of(nodes[0])))
        until(lambda: nodes[1].peer_state.failure)
        assert nodes[1].peer_state.failure is not None
        assert nodes[1].peer_state.failure.node == "n3"


def test_a_large_answer_reaches_every_node(ports: tuple[int, ...], tmp_path: Path) -> None:
    now = time.time()
    failure = NodeResult(
        node_rank=2, node="n3", exit_code=1, started_at=now, ended_at=now, message="x" * 900_000
    )
    with job(ports, tmp_path) as nodes:
        nodes[2].peer_state.note_failure(failure)
        until(lambda: nodes[0].peer_state.failure == nodes[1].peer_state.failure == failure)


RESULT = plain(
    NodeResult(node_rank=1, node="n2", exit_code=1, started_at=1.0, ended_at=2.0, message="m")
)
BROKEN: dict[str, dict[str, Any]] = {
    "a failure that is a number": {"failure": 7},
    "a failure of nobody": {"failure": {}},
    "a rank that the job has not": {"failure": RESULT | {"node_rank": 3}},
    "a rank of 5,000 digits": {"failure": RESULT | {"node_rank": 10**18}},
    "a year beyond any calendar": {"failure": RESULT | {"ended_at": 1e300}},
    "a name with a command": {"failure": RESULT | {"node": "n2;\x1b[2J"}},
    "a gone that is not a list": {"gone": 1},
    "a gone of more nodes than there are": {"gone": [RESULT] * 4},
    "a gone of nonsense": {"gone": [None]},
    "a word for yes": {"cancelled": "no", "ended": "yes"},
    "a number for yes": {"cancelled": 1, "ended": 1},
}


def test_nonsense_of_a_node_of_the_job_changes_nothing(
    ports: tuple[int, ...], tmp_path: Path
) -> None:
    with job(ports, tmp_path) as nodes:
        for case, message in BROKEN.items():
            with peers.connect(port_of(nodes[0]), member(2)) as broken, suppress(OSError):
                broken.send(message)
                broken.receive(2)
            assert unharmed(nodes), case
            assert 2 not in nodes[0]._over, case  # type: ignore[attr-defined]


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_does_not_call_is_not_heard(
    ports: tuple[int, ...], tmp_path: Path, rank: int
) -> None:
    with job(ports, tmp_path) as nodes:
        other = member(rank, attempt=rank // 2)  # the first node itself, or one of another attempt
        with suppress(OSError), peers.connect(port_of(nodes[0]), other) as connection:
            connection.send({"cancelled": True, "ended": True})
            connection.receive(2)
        assert unharmed(nodes)


@pytest.mark.parametrize("what", ["echo", "silence"])
def test_a_squatter_of_the_first_port_neither_stops_nor_fools_a_caller(
    ports: tuple[int, ...], tmp_path: Path, what: str
) -> None:
    def serve(sock: socket.socket) -> None:
        with suppress(OSError):
            while what == "echo":
                sock.sendall(sock.recv(4096))

    with squatter(serve, ports[0] + PORT_STRIDE - 1), job(ports, tmp_path) as nodes:
        assert {connection.port for connection in nodes} == {ports[1]}
        threads = [connection._thread for connection in nodes]
        assert all(isinstance(one, threading.Thread) and one.is_alive() for one in threads)
        assert unharmed(nodes)
