"""How nodes without a scheduler know of each other, each with a run folder of its own."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from clusterkit import node_results
from clusterkit.executors import ssh_link
from clusterkit.executors.allocation import ports
from clusterkit.executors.ssh_layout import SshLayout
from clusterkit.executors.ssh_link import Hub, Link, read_signed, sign
from clusterkit.executors.ssh_news import News
from clusterkit.model import PORT_STRIDE, ClusterKind, ClusterSpec, NodeResult
from clusterkit.runfolder import RunFolder

NAMES = ("127.0.0.1", "n2", "n3")


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_link, "CALL_EVERY_S", 0.1)
    monkeypatch.setattr(ssh_link, "SILENCE_S", 2.0)
    monkeypatch.setattr(ssh_link, "_HEAD_SILENCE_S", 3.0)


@pytest.fixture
def layout(tmp_path: Path) -> SshLayout:
    first = 27000 + 10 * (hash(tmp_path) % 200)
    return SshLayout(
        job_id=f"ssh-{tmp_path.name}",
        names=NAMES,
        slots=(1, 1, 1),
        offered=(1, 1, 1),
        tasks=3,
        ports=(first, first + 59),
        token="secret",
        command=("true",),
        logs=str(tmp_path),
        cluster=ClusterSpec(name="rack", kind=ClusterKind.SSH),
    )


@pytest.fixture
def nodes(layout: SshLayout, tmp_path: Path) -> Iterator[list[Link]]:
    made = []
    for rank in range(3):
        run = RunFolder(tmp_path / f"on-{rank}")
        run.failures.mkdir(parents=True)
        news = News(run, attempt=0, of=3)
        news.begin()
        made.append(Hub(layout, news) if rank == 0 else Link(layout, rank, news))
    yield made
    for link in reversed(made):
        link.leave()
        link.news.end()


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def begun(nodes: list[Link]) -> None:
    for link in nodes:
        link.begin()
    assert all(link.await_go() for link in nodes)


def failed(rank: int) -> NodeResult:
    return NodeResult(node_rank=rank, node=NAMES[rank], exit_code=9, started_at=1.0, ended_at=2.0)


def test_nobody_begins_before_all_are_there(nodes: list[Link]) -> None:
    hub, second, third = nodes
    hub.begin()
    second.begin()
    time.sleep(1.0)
    assert not second._go.is_set()
    third.begin()
    assert all(link.await_go() for link in nodes)
    assert len({link.port for link in nodes}) == 1


def test_a_failure_reaches_every_run_folder(nodes: list[Link], layout: SshLayout) -> None:
    begun(nodes)
    node_results.note_failure(nodes[2].news.run, failed(2), attempt=0, of=3)
    until(lambda: all(link.news.failure == failed(2) for link in nodes))


def test_a_cancellation_reaches_every_run_folder(nodes: list[Link]) -> None:
    begun(nodes)
    nodes[1].news.run.cancelled.touch()
    until(lambda: all(link.news.run.cancelled.exists() for link in nodes))


def test_a_node_that_falls_silent_is_named_everywhere(nodes: list[Link]) -> None:
    begun(nodes)
    nodes[2]._call = lambda: None  # type: ignore[method-assign]
    until(lambda: all(link.news.failure for link in nodes))
    assert node_results.blame(nodes[0].news.failure) == "n3 no longer answers"  # type: ignore[arg-type]
    assert node_results.blame(nodes[1].news.failure) == "n3 no longer answers"  # type: ignore[arg-type]
    # The one that was cut off cannot know better.
    said = node_results.blame(nodes[2].news.failure)  # type: ignore[arg-type]
    assert said == "127.0.0.1 no longer answers (asked by n3)"


def test_a_head_that_nobody_reaches_blames_itself(nodes: list[Link]) -> None:
    begun(nodes)
    for link in nodes[1:]:
        link._call = lambda: None  # type: ignore[method-assign]
    until(lambda: all(link.news.failure for link in nodes))
    assert node_results.blame(nodes[0].news.failure) == "127.0.0.1 has lost its network"  # type: ignore[arg-type]


@pytest.mark.parametrize("first", [0, 2])
def test_one_that_has_ended_is_not_missed(nodes: list[Link], first: int) -> None:
    begun(nodes)
    leaving = threading.Thread(target=nodes[first].leave)
    leaving.start()
    time.sleep(4.0)
    assert [link.news.failure for link in nodes] == [None, None, None]
    for link in reversed(nodes):
        link.leave()
    leaving.join(5)
    assert not leaving.is_alive()


def test_a_stranger_is_told_nothing(nodes: list[Link]) -> None:
    nodes[0].begin()
    assert nodes[0].port is not None
    address = (NAMES[0], nodes[0].port + PORT_STRIDE - 1)
    unsigned = json.dumps({"rank": 1, "ended": True}).encode() + b"\n"
    for message in (unsigned, sign({"rank": 1}, "guess"), b"GET / HTTP/1.1\r\n", b"\xff\n"):
        with socket.create_connection(address, timeout=5) as stranger:
            stranger.sendall(message)
            assert stranger.makefile("rb").readline() == b""
    with socket.create_connection(address, timeout=5) as friend:
        friend.sendall(sign({"rank": 1, "number": "7"}, "secret"))
        answer = read_signed(friend.makefile("rb").readline(), "secret")
    assert answer is not None
    assert (answer["number"], answer["go"]) == ("7", False)


def test_ports_of_others_are_passed_over(nodes: list[Link], layout: SshLayout) -> None:
    first = next(ports(*layout.ports, seed=layout.job_id))
    with socket.create_server(("", first + PORT_STRIDE - 1)):
        begun(nodes)
    assert nodes[1].port not in {None, first}
