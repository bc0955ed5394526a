"""Another user at the ports where the launchers of Spark, Ray and TensorFlow jobs meet."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from clusterkit.core import peers
from clusterkit.core.data import data_dir
from clusterkit.core.peers import Member, PeerError
from clusterkit.core.ports import hold_port
from tests.helpers.port_ranges import next_range
from tests.unit.launch import test_framework_ray as ray
from tests.unit.launch import test_framework_spark as spark
from tests.unit.launch import test_framework_tensorflow as tensorflow

pytestmark = pytest.mark.needs("root")

STRANGER = """
import os, socket, sys, threading, time
from contextlib import suppress
from clusterkit.core.peers import Member, connect

port = int(sys.argv[1])
os.setgroups([]); os.setgid(64001); os.setuid(64001)
idle = []

def call(words):
    with socket.create_connection(("127.0.0.1", port), timeout=1) as line:
        line.sendall(words)
        line.recv(1 << 16)

def old():  # what each launcher took before, from whoever sent it
    call(b'{"of": "7 0", "node": 1, "ports": [1]}\\n')
    call(b'{"node": "node-1", "signature": ""}\\n{"joined": true}\\n')
    call(b'{"name": "w8", "address": "127.0.0.1", "slots": 1, "gpus": 0}\\n')

def guess():
    for rank in (0, 1, 2):
        with suppress(OSError):
            member = Member(token="guessed " * 4, rank=rank, of=3, attempt="7 0", purpose="ray")
            connect(("127.0.0.1", port), member)

def echo():
    with socket.create_connection(("127.0.0.1", port), timeout=1) as line:
        line.sendall(b"clusterkit-peers/1 1 " + b"0" * 32 + b"\\n")
        while part := line.recv(1 << 16):
            line.sendall(part)

def be_silent():
    idle.append(socket.create_connection(("127.0.0.1", port), timeout=1))
    if len(idle) > 500:
        idle.clear()

def flood():
    call(b"x" * (1 << 20))

def again(what):
    while True:
        try:
            what()
            time.sleep(0.02)
        except OSError:
            time.sleep(0.02)

for what in (old, guess, echo, be_silent, flood):
    threading.Thread(target=again, args=(what,), daemon=True).start()
print("here", flush=True)
time.sleep(120)
"""


@contextmanager
def stranger(port: int) -> Iterator[None]:
    """Have another user do at a port what can be done there, from before anybody listens."""
    words = [sys.executable, "-c", STRANGER, str(port)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"here\n"
            yield
        finally:
            process.kill()


def test_tensorflows_nodes_meet_and_end_as_ever(tmp_path: Path) -> None:
    port = hold_port(20000, 29999, seed=str(tmp_path)).number  # the one that they will have
    code = "import os, time; time.sleep(2); print(os.environ['TF_CONFIG'])"
    with stranger(port), tensorflow.started(tmp_path, code=code) as nodes:
        ended = nodes.end()
    assert nodes.port == port
    assert [code for code, _, _ in ended] == [0, 0, 0], ended
    clusters = [json.loads(out)["cluster"] for _, out, _ in ended]
    assert clusters[0] == clusters[1] == clusters[2]
    assert all(address.startswith("127.0.0.1:") for address in clusters[0]["worker"])


def test_rays_nodes_gather_and_none_is_lost(tmp_path: Path) -> None:
    nodes = ray.Nodes(tmp_path, count=3)
    with stranger(nodes.port + 1):
        code = "import time; time.sleep(3); print('driven', flush=True)"
        for rank in range(3):
            nodes.start(rank, code)
        said = [nodes.started[rank].communicate(timeout=60)[0] for rank in range(3)]
    assert [nodes.started[rank].returncode for rank in range(3)] == [0, 0, 0], said
    assert said[0].splitlines() == ["clusterkit: Ray on 3 nodes: node-0 node-1 node-2", "driven"]


def test_sparks_nodes_gather_and_the_program_runs(tmp_path: Path) -> None:
    port = next_range()[0]
    nodes = {"CK_NODES": "w7 w8", "CK_SLOTS": "1 1"}
    for name in ("w7", "w8"):
        (tmp_path / name).mkdir()
    with stranger(port + 1):
        given = {**spark.stand_in(tmp_path / "w8", port, "exit 9"), **nodes, "CK_NODE_NAME": "w8"}
        other = spark.start(tmp_path / "w8", **given, CK_NODE_RANK="1")
        given = {**spark.stand_in(tmp_path / "w7", port, "echo driven"), **nodes}
        first = spark.start(tmp_path / "w7", **given)
        said = [process.communicate(timeout=60) for process in (first, other)]
    assert (first.returncode, other.returncode) == (0, 0), said
    assert said[0][0].splitlines() == ["clusterkit: Spark: workers on w7 w8, 2 cores", "driven"]


@pytest.mark.parametrize("module", ["ray", "spark", "tensorflow"])
def test_without_a_token_no_node_takes_part(tmp_path: Path, module: str) -> None:
    nodes = ray.Nodes(tmp_path, count=2)
    environment = {**nodes.environment(1), "CK_TOKEN": "", "OMP_NUM_THREADS": "1"}
    program = data_dir("templates/frameworks") / module / f"{module}_launch.py"
    environment["PYTHONPATH"] += f":{program.parent}"
    words = {
        "ray": ("--min-nodes=2", "true"),
        "spark": ("--processes=2", "x.py"),
        "tensorflow": ("true",),
    }
    done = subprocess.run(
        [sys.executable, str(program), *words[module]],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "CK_TOKEN is not set" in done.stderr


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The store of an elastic torchrun job, and what asks it."""
    port, _ = next_range()
    monkeypatch.setenv("CK_NODE_ADDR", "127.0.0.1")
    monkeypatch.setenv("CK_PORT", str(port))
    monkeypatch.setitem(sys.modules, "clusterkit_peers", peers)
    monkeypatch.syspath_prepend(data_dir("templates/frameworks/torchrun"))
    module: Any = importlib.import_module("clusterkit_store")

    def member(rank: int, token: str = "the same on all nodes") -> Member:
        return Member(token=token, rank=rank, of=3, attempt="7 0", purpose="torchrun")

    server = module.Server(member(0))
    yield module, server, member, ("127.0.0.1", port)
    server.listener.close()


@pytest.mark.train
def test_only_nodes_of_the_job_reach_the_store_of_torchruns_agents(store: Any) -> None:
    module, server, member, address = store
    with stranger(address[1]):
        line = module.Line(member(1), address, 10)
        backend = module.Backend(line, "clusterkit", "state")
        assert backend.get_state() is None
        _, first, was_set = backend.set_state(b"one")
        assert was_set
        assert backend.set_state(b"two", "of another")[0::2] == (b"one", False)
        assert backend.set_state(b"two", first)[0::2] == (b"two", True)
        begin = time.monotonic()
        while time.monotonic() < begin + 2:
            assert backend.get_state()[0] == b"two"
    assert set(server.values) == {"state"}
    with pytest.raises(PeerError, match="is not of this"):
        peers.connect(address, member(1, "guessed " * 4))


@pytest.mark.train
@pytest.mark.parametrize(
    "message",
    [{}, {"key": 7}, {"key": "k" * 2000}, {"key": "k", "new": 7}, {"key": "k", "add": 1 << 60}],
)
def test_a_node_that_sends_nonsense_loses_its_own_connection_alone(
    store: Any, message: dict[str, Any]
) -> None:
    module, server, member, address = store
    line = module.Line(member(1), address, 10)
    with peers.connect(address, member(2)) as other:
        other.send(message)
        with pytest.raises(PeerError, match="closed"):
            other.receive(10)
    assert line.ask("k", add=3) == "3"
    assert server.values == {"k": "3"}
