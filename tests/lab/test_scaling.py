"""`bench scaling` and `bench compute` where one node may use a part of a processor only."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.desk import Desk
from tests.helpers.lab_jobs import await_true
from tests.helpers.needs import lack
from tests.lab import Lab

pytestmark = pytest.mark.lab

CGROUPS = Path("/sys/fs/cgroup")
PERIOD_US, QUOTA_US = 100_000, 8_000

STEPS = """
import os, socket, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    server = socket.create_server(address)
    peers = [server.accept()[0] for _ in range(world - 1)]
else:
    deadline = time.monotonic() + 120
    while True:
        try:
            peers = [socket.create_connection(address)]
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
began = time.monotonic()
for step in range(1, 100_000):
    sum(i * i for i in range(40_000))
    for peer in peers:  # nobody continues before all have done the step
        peer.sendall(b"x")
    for peer in peers:
        assert peer.recv(1)
    if rank == 0 and step % 2 == 0:
        now = time.monotonic()
        print(f"step {step} samples/s {2 * world / (now - began):.3f}", flush=True)
        began = now
"""


@contextmanager
def slowed(lab: Lab, node: str) -> Iterator[None]:
    """Limit the processors of a node's processes, and of all that they start."""
    version_2 = (CGROUPS / "cgroup.controllers").exists()
    parent = CGROUPS if version_2 else CGROUPS / "cpu"
    group = parent / f"clusterkit-test-{os.getpid()}"
    try:
        group.mkdir()
        if version_2:
            (group / "cpu.max").write_text(f"{QUOTA_US} {PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(QUOTA_US))
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        lack(f"no cgroup with a CPU limit: {error}")
    show = "mount -t cgroup2 -o ro none /sys/fs/cgroup"
    if not version_2:
        show = (
            "mount -t tmpfs none /sys/fs/cgroup && mkdir /sys/fs/cgroup/cpu && "
            "mount -t cgroup -o ro,cpu none /sys/fs/cgroup/cpu"
        )
    try:
        for process in lab.processes(node):
            with suppress(OSError):  # it has ended
                (group / "cgroup.procs").write_text(str(process.pid))
        # A host of the lab sees no cgroups; a machine sees its own.
        assert lab.run(node, ["sh", "-c", show]).returncode == 0
        yield
    finally:
        lab.run(node, ["umount", "-l", "/sys/fs/cgroup"])
        for pid in (group / "cgroup.procs").read_text().split():
            with suppress(OSError):
                (parent / "cgroup.procs").write_text(pid)
        group.rmdir()


def stragglers(row: dict[str, Any]) -> list[str]:
    return [node for one in row["causes"] if one["kind"] == "straggler" for node in one["nodes"]]


def test_a_node_with_a_cpu_limit_is_named(own_lab: Lab) -> None:
    own_lab.up(3)  # not the shared one: other tests want all of its nodes to be quick
    desk = Desk.of(own_lab, "scaling")
    desk.write("steps.py", STEPS)
    with slowed(own_lab, "n2"):
        done = desk.clusterkit(
            *("bench", "scaling", "--json", "--framework", "env", "--gpus-per-node", "1"),
            *("--at", "1,2,3", "--steps", "12", "--warmup", "2", "--preflight", "off", "steps.py"),
        )
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    one, two, three = document["rows"]
    assert [row["size"] for row in document["rows"]] == [1, 2, 3]
    assert [node["node"] for node in three["evidence"]] == ["n1", "n2", "n3"]
    assert stragglers(one) == []
    assert stragglers(three) == ["n2"]
    (cause,) = (one for one in three["causes"] if one["kind"] == "straggler")
    assert "CPU limit of 0.08 CPUs is used up" in " ".join(cause["evidence"])
    for row in (one, two, three):
        each = row["throughput"] / (row["size"] * one["throughput"])
        assert row["efficiency"] == pytest.approx(each, abs=1e-3)
        assert row["steps"] >= 12
        assert desk.state(row["job_id"]) == "cancelled"
    assert all(node["yardstick_s"] > 0 for node in three["evidence"])


FLIP_A_BIT = """
import os
if os.environ.get("RANK") == "2":
    import torch

    right = torch.matmul

    def matmul(left, right_side, *, out):
        right(left, right_side, out=out)
        out.view(torch.int32)[5, 7] ^= 1

    torch.matmul = matmul
"""


def test_a_slow_node_and_a_wrong_bit_are_named(own_lab: Lab) -> None:
    own_lab.up(3)
    desk = Desk.of(own_lab, "compute")
    desk.write("sitecustomize.py", FLIP_A_BIT)
    with slowed(own_lab, "n2"):
        done = desk.clusterkit(
            *("bench", "compute", "--json", "--nodes", "3", "--gpus-per-node", "1"),
            *("--seconds", "8", "--preflight", "off", "--env", f"PYTHONPATH={desk.folder}"),
        )
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert (document["nodes"], document["correct"]) == (["n1", "n2", "n3"], False)
    assert [one["wrong_elements"] > 0 for one in document["gpus"]] == [False, False, True]
    found = [(one["kind"], one["node"]) for one in document["findings"]]
    assert found[0] == ("wrong", "n3")
    assert ("slow", "n2") in found
    assert ("slow", "n1") not in found
    assert document["job"]["state"] == "succeeded"
    await_true(lambda: not own_lab.run("head", ["squeue", "-h"], check=True).stdout, 90)


def test_more_nodes_than_the_cluster_has_are_refused(desk: Desk) -> None:
    desk.write("steps.py", STEPS)
    done = desk.clusterkit(
        *("bench", "scaling", "--framework", "env", "--at", "1,5", "--by", "nodes", "steps.py")
    )
    assert done.returncode == 2
    assert "5 nodes" in done.stderr
    assert not (desk.folder / "runs").exists()
