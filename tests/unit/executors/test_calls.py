"""How the nodes of a job know of each other: with a run folder each, or with one for all."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from clusterkit.core import peers
from clusterkit.core.model import PORT_STRIDE, ClusterKind, ClusterSpec, NodeResult
from clusterkit.core.peers import Listener, Member
from clusterkit.core.ports import groups
from clusterkit.executors.node import coordinator
from clusterkit.executors.node import peers as calls
from clusterkit.executors.node.coordinator import join
from clusterkit.executors.node.identity import Allocation
from clusterkit.executors.node.partition import PeerState, Witnesses
from clusterkit.executors.node.peers import LivedClock, PeerConnection
from clusterkit.executors.run import node_results
from clusterkit.executors.run.attempts import nodes_to_leave_out
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.executors.ssh.layout import SshLayout
from tests.helpers.port_ranges import next_range

TOKEN = "f" * 32
NAMES = ("127.0.0.1", "n2", "n3")


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "CALL_EVERY_S", 0.1)
    for module in (calls, coordinator):
        monkeypatch.setattr(module, "SILENCE_S", 2.0)
        monkeypatch.setattr(module, "DOUBT_S", 1.0)
    monkeypatch.setattr(calls, "HEAD_SILENCE_S", 3.0)


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Miss nobody who is only slow."""
    for module in (calls, coordinator):
        monkeypatch.setattr(module, "SILENCE_S", 60.0)
        monkeypatch.setattr(module, "DOUBT_S", 60.0)
    monkeypatch.setattr(calls, "HEAD_SILENCE_S", 60.0)


@pytest.fixture
def layout(tmp_path: Path) -> SshLayout:
    return SshLayout(
        job_id=f"ssh-{tmp_path.name}",
        names=NAMES,
        slots=(1, 1, 1),
        tasks=3,
        ports=next_range(),
        token=TOKEN,
        command=("true",),
        logs=str(tmp_path),
        cluster=ClusterSpec(name="rack", kind=ClusterKind.SSH),
    )


@pytest.fixture
def nodes(layout: SshLayout, tmp_path: Path) -> Iterator[list[PeerConnection]]:
    made = []
    for rank in range(3):
        run = RunFolder(tmp_path / f"on-{rank}")
        run.failures.mkdir(parents=True)
        peer_state = PeerState(run, layout)
        peer_state.begin()
        made.append(join(rank, peer_state, layout.candidates))
    yield made
    for connection in reversed(made):
        connection.leave()
        connection.peer_state.end()


def until(true: Callable[[], object], within_s: float = 50.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def begun(nodes: list[PeerConnection]) -> None:
    for connection in nodes:
        connection.begin()
    assert all(connection.await_go() for connection in nodes)


def failed(rank: int) -> NodeResult:
    return NodeResult(node_rank=rank, node=NAMES[rank], exit_code=9, started_at=1.0, ended_at=2.0)


@pytest.mark.usefixtures("_patient")
def test_nobody_begins_before_all_are_there(nodes: list[PeerConnection]) -> None:
    coordinator, second, third = nodes
    coordinator.begin()
    second.begin()
    time.sleep(1.0)
    assert not second._go.is_set()
    third.begin()
    assert all(connection.await_go() for connection in nodes)
    assert len({connection.port for connection in nodes}) == 1


@pytest.mark.usefixtures("_patient")
def test_a_failure_reaches_every_run_folder(nodes: list[PeerConnection], layout: SshLayout) -> None:
    begun(nodes)
    node_results.note_failure(nodes[2].peer_state.run, failed(2), attempt=0, n_nodes=3)
    until(lambda: all(connection.peer_state.failure == failed(2) for connection in nodes))


@pytest.mark.usefixtures("_patient")
def test_a_cancellation_reaches_every_run_folder(nodes: list[PeerConnection]) -> None:
    begun(nodes)
    nodes[1].peer_state.run.cancelled.touch()
    until(lambda: all(connection.peer_state.run.cancelled.exists() for connection in nodes))


def test_a_node_that_falls_silent_is_named_everywhere(nodes: list[PeerConnection]) -> None:
    begun(nodes)
    nodes[2]._call = lambda: None  # type: ignore[method-assign]
    until(lambda: all(connection.peer_state.failure for connection in nodes))
    assert node_results.failure_text(nodes[0].peer_state.failure) == "n3 no longer answers"
    assert node_results.failure_text(nodes[1].peer_state.failure) == "n3 no longer answers"
    # The one that was cut off cannot know better, as the names of these nodes lead nowhere.
    assert "127.0.0.1 and n3 lost each other" in node_results.failure_text(
        nodes[2].peer_state.failure
    )


class Wires:
    """What goes from one node to another, until it is cut; each has a loopback address."""

    def __init__(self, patch: pytest.MonkeyPatch, count: int, folder: Path) -> None:
        self.cut: set[tuple[int, int]] = set()
        self.killed: set[int] = set()
        """Nodes whose machines answer, and where nobody listens any more."""
        self.names = tuple(f"127.0.0.{k + 1}" for k in range(count))
        self.noted: set[int] = set()
        """Nodes that know by now whom they can ask; the first asks nobody."""
        connect, exchange = peers.connect, PeerConnection._exchange
        note_reached = Witnesses.note_reached

        def connected(address: tuple[str, int], member: Member, *, rank: int = 0, **more: float):
            self.require(member.rank, rank)
            return connect(address, member, rank=rank, **more)

        def exchanged(connection: PeerConnection, port: int, question: dict[str, object]):
            self.require(connection.rank, 0)
            return exchange(connection, port, question)

        def listen(address: tuple[str, int], member: Member, *more: object) -> Listener:
            return Listener((self.names[member.rank], address[1]), member, *more)

        def noted(witnesses: Witnesses, port: int) -> None:
            note_reached(witnesses, port)
            self.noted.add(witnesses._member.rank)

        patch.setattr(Witnesses, "note_reached", noted)
        patch.setattr(peers, "connect", connected)
        patch.setattr(PeerConnection, "_exchange", exchanged)
        patch.setattr(calls, "Listener", listen)
        there = Allocation(job_id="wires", names=self.names, slots=(), tasks=count, token=TOKEN)
        ports = tuple(islice(groups(*next_range(), seed="wires"), 3))
        self.links = []
        for rank in range(count):
            run = RunFolder(folder / f"on-{rank}")
            run.failures.mkdir(parents=True)
            peer_state = PeerState(run, there)
            peer_state.begin()
            self.links.append(join(rank, peer_state, ports))

    def require(self, one: int, other: int) -> None:
        if {one, other} & self.killed:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        if (one, other) in self.cut or (other, one) in self.cut:
            raise TimeoutError("timed out")

    def part(self, *sides: set[int]) -> None:
        """Let nodes of different sides hear nothing of each other any more."""
        self.cut = {(a, b) for one in sides for other in sides if one != other
                    for a in one for b in other}  # fmt: skip

    def told(self) -> list[str]:
        """Return whom each node blames, once all of them do."""
        until(lambda: all(connection.peer_state.failure for connection in self.links))
        failures = [connection.peer_state.failure for connection in self.links]
        return [node_results.failure_text(failure) for failure in failures if failure is not None]


@pytest.fixture
def wires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Wires]]:
    made: list[Wires] = []

    def wired(count: int) -> Wires:
        made.append(Wires(monkeypatch, count, tmp_path))
        begun(made[-1].links)
        until(lambda: len(made[-1].noted) == count - 1)
        return made[-1]

    yield wired
    for connection in (connection for one in made for connection in reversed(one.links)):
        connection.ended = True
        connection._close.set()
        connection.peer_state.end()


LOST_OWN, LOST_HEAD = "127.0.0.1 has lost its network", "127.0.0.1 no longer answers"


@pytest.mark.parametrize("count", [3, 4, 7])
def test_the_first_node_without_a_network_is_the_one_to_blame(
    wires: Callable[[int], Wires], count: int
) -> None:
    wired = wires(count)
    wired.part({0}, set(range(1, count)))
    assert wired.told() == [LOST_OWN, *[LOST_HEAD] * (count - 1)]


def test_no_few_nodes_are_asked_by_all(wires: Callable[[int], Wires]) -> None:
    """Every third node has gone with the first one: the larger part has to see that it is so."""
    gone = {0, 1, 4, 7, 10}
    parted = wires(13)
    asked = Counter(
        rank for connection in parted.links[1:] for rank in connection._witnesses._ranks
    )
    assert set(asked.values()) == {8}
    assert 0 not in asked
    parted.part(gone, set(range(13)) - gone)
    told = parted.told()
    assert [told[rank] for rank in sorted(gone)] == [LOST_OWN] * len(gone)
    assert {told[rank] for rank in range(13) if rank not in gone} == {LOST_HEAD}


def test_a_witness_that_could_accept_nobody_for_a_while_knows_who_is_silent(
    wires: Callable[[int], Wires], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had run out of descriptors for a minute, which says nothing of its own calls."""
    monkeypatch.setattr(Listener, "unable_s", lambda _: 60.0)
    parted = wires(4)
    parted.part({0}, {1, 2, 3})
    assert parted.told() == [LOST_OWN, *[LOST_HEAD] * 3]


def test_another_node_without_a_network_blames_itself(wires: Callable[[int], Wires]) -> None:
    wired = wires(3)
    wired.part({1}, {0, 2})
    away = "127.0.0.2 no longer answers"
    assert wired.told() == [away, "127.0.0.2 has lost its network", away]


@pytest.mark.parametrize(
    ("sides", "words"),
    [
        (({0}, {1}), "127.0.0.1 and 127.0.0.2 lost each other"),
        (({0, 3}, {1, 2}), "127.0.0.[1,4] and 127.0.0.[2-3] lost each other"),
    ],
)
def test_of_two_parts_of_one_size_none_is_to_blame_alone(
    wires: Callable[[int], Wires], sides: tuple[set[int], set[int]], words: str
) -> None:
    wired = wires(sum(map(len, sides)))
    wired.part(*sides)
    for told in wired.told():
        assert words in told
    failure = wired.links[0].peer_state.failure
    assert failure is not None
    assert nodes_to_leave_out([failure, failure]) == frozenset()


@pytest.mark.parametrize("killed", [0, 1])
def test_of_two_nodes_one_whose_machine_refuses_is_to_blame_alone(
    wires: Callable[[int], Wires], killed: int
) -> None:
    """The network is there, and so it is the process that has gone."""
    parted = wires(2)
    parted.killed = {killed}
    other = parted.links[1 - killed].peer_state
    until(lambda: other.failure)
    assert other.failure is not None
    assert node_results.failure_text(other.failure) == f"127.0.0.{killed + 1} no longer answers"


def test_two_nodes_that_the_others_hear_have_lost_each_other(
    wires: Callable[[int], Wires],
) -> None:
    wired = wires(3)
    wired.part({0}, {1})
    assert [told.partition(":")[0] for told in wired.told()] == [
        "127.0.0.1 and 127.0.0.2 lost each other"
    ] * 3


@pytest.mark.parametrize("first", [0, 2])
def test_one_that_has_ended_is_not_missed(nodes: list[PeerConnection], first: int) -> None:
    begun(nodes)
    leaving = threading.Thread(target=nodes[first].leave)
    leaving.start()
    time.sleep(4.0)
    assert [connection.peer_state.failure for connection in nodes] == [None, None, None]
    for connection in reversed(nodes):
        connection.leave()
    leaving.join(50)
    assert not leaving.is_alive()


def test_a_stranger_is_told_nothing(nodes: list[PeerConnection]) -> None:
    nodes[0].begin()
    assert nodes[0].port is not None
    address = (NAMES[0], nodes[0].port + PORT_STRIDE - 1)
    for message in (b'{"rank": 1, "ended": true}\n', b"GET / HTTP/1.1\r\n", b"\xff\n"):
        with socket.create_connection(address, timeout=50) as stranger:
            stranger.sendall(message)
            assert stranger.makefile("rb").readline() == b""
    known = {"rank": 1, "of": 3, "attempt": 0, "purpose": "calls"}
    with pytest.raises(OSError):  # noqa: PT011 - how the connection breaks may differ
        ask(address, Member(token="0" * 32, **known))
    assert ask(address, Member(token=TOKEN, **known))["go"] is False


def ask(address: tuple[str, int], member: Member) -> dict[str, object]:
    with peers.connect(address, member) as friend:
        friend.send({})
        return friend.receive(50)


def test_ports_of_others_are_passed_over(nodes: list[PeerConnection], layout: SshLayout) -> None:
    first = next(groups(*layout.ports, seed=layout.job_id))
    with socket.create_server(("", first + PORT_STRIDE - 1)):
        begun(nodes)
    assert nodes[1].port not in {None, first}


class Shared:
    """Nodes that a scheduler starts, with one run folder for all."""

    def __init__(self, layout: SshLayout, folder: Path) -> None:
        self.run = RunFolder(folder / "run")
        for made in (self.run.failures, self.run.nodes):
            made.mkdir(parents=True)
        self.layout = layout
        self.links: list[PeerConnection] = []

    def begin(self, *ranks: int) -> list[PeerConnection]:
        for rank in ranks:
            peer_state = PeerState(self.run, self.layout)
            ports = self.layout.candidates[:1]
            connection = join(rank, peer_state, ports, gathers=False)
            self.links.append(connection)
            peer_state.begin()
            connection.begin()
            connection.await_answer(3.0)
        return self.links

    def end(self, rank: int) -> None:
        ended = replace(failed(rank), exit_code=0)
        node_results.write_result(self.run, ended, attempt=0, n_nodes=3)


@pytest.fixture
def shared(layout: SshLayout, tmp_path: Path) -> Iterator[Shared]:
    shared = Shared(layout, tmp_path)
    yield shared
    for connection in shared.links:
        connection.leave()
        connection.peer_state.end()


def test_of_nodes_that_a_scheduler_starts_a_silent_one_is_named(shared: Shared) -> None:
    nodes = shared.begin(0, 1, 2)
    nodes[2]._call = lambda: None  # type: ignore[method-assign]
    until(lambda: node_results.first_failure(shared.run, 0))
    failure = node_results.first_failure(shared.run, 0)
    assert failure is not None
    assert node_results.failure_text(failure) == "n3 no longer answers"


def test_of_nodes_that_a_scheduler_starts_none_waits_for_another(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = [(calls, "DOUBT_S"), (calls, "SILENCE_S"), (calls, "HEAD_SILENCE_S")]
    waits += [(coordinator, name) for name in ("DOUBT_S", "SILENCE_S", "_DECIDE_S")]
    for module, name in waits:
        monkeypatch.setattr(module, name, 60.0)
    nodes = shared.begin(0, 1)  # the third may take minutes
    assert nodes[1]._go.is_set()
    calling, over = threading.Semaphore(0), threading.Event()

    def stays(*_: object) -> None:
        calling.release()
        over.wait()

    nodes[0]._miss = nodes[1]._call = stays  # type: ignore[attr-defined, method-assign]
    assert all(calling.acquire(timeout=50) for _ in nodes)
    leaving = [threading.Thread(target=one.leave, daemon=True) for one in nodes]
    for thread in leaving:
        thread.start()
    try:
        until(lambda: not any(thread.is_alive() for thread in leaving), within_s=50)
        assert node_results.first_failure(shared.run, 0) is None
    finally:
        over.set()


@pytest.mark.parametrize("rank", [0, 2])
def test_one_whose_result_is_there_is_not_missed(shared: Shared, rank: int) -> None:
    nodes = shared.begin(0, 1, 2)
    shared.end(rank)
    for connection in nodes[1:] if rank == 0 else nodes[2:]:
        connection._call = lambda: None  # type: ignore[method-assign]
    nodes[rank].leave()
    time.sleep(4.0)
    assert [connection.peer_state.failure for connection in nodes] == [None, None, None]


def test_calls_that_never_get_through_end_no_job(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "START_TIMEOUT_S", 1.0)
    (second,) = shared.begin(1)
    thread = second._thread
    assert thread is not None
    thread.join(50)
    assert not thread.is_alive()
    assert second.peer_state.failure is None


def test_time_in_which_a_process_was_stopped_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moments = iter([100.0, 101.0, 4000.0, 4001.5])
    lived, mine = time.monotonic, threading.current_thread()

    def now() -> float:  # the clocks of other tests look at the time as well
        return next(moments) if threading.current_thread() is mine else lived()

    monkeypatch.setattr(time, "monotonic", now)
    clock = LivedClock()
    assert [clock.now() for _ in range(3)] == [101.0, 101.0, 102.5]
