"""Benches on the practice cluster: links of a known rate, beside iperf3; shared storage."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from clusterkit.observe.bench.allreduce.result import MEASURED
from tests.helpers.desk import Desk
from tests.helpers.lab_jobs import await_true
from tests.lab import Lab
from tests.lab.fixtures import give_up
from tests.lab.layout import MissingToolsError, require_tools
from tests.lab.traffic import iperf3

pytestmark = pytest.mark.lab

ROUNDS = int(os.environ.get("CLUSTERKIT_FAULT_ROUNDS", "2"))
TCP_SHARE = 1448 / 1514
"""Of an Ethernet frame of 1514 bytes, as tbf counts it, TCP with time stamps carries 1448."""
TRIES = 5
"""The machine is shared with other tests: both sides of a comparison have to get their moment."""


@contextmanager
def limited(lab: Lab, mbit: int) -> Iterator[None]:
    """Let no node send faster than this."""
    for node in lab.nodes:
        # The bucket holds a few milliseconds: beside seconds of data it does not count.
        shape = f"tc qdisc add dev eth0 root tbf rate {mbit}mbit burst 128kb latency 50ms"
        lab.run(node, shape.split(), check=True)
    try:
        yield
    finally:
        for node in lab.nodes:
            lab.run(node, ["tc", "qdisc", "del", "dev", "eth0", "root"], check=True)


def measured(desk: Desk, cluster: str, nodes: int, sizes: str, *words: str) -> dict[str, Any]:
    """Return the document of an all-reduce between nodes of one rank each."""
    done = desk.clusterkit(
        *("bench", "collectives", "--json", "--cluster", cluster, "--backend", "gloo"),
        *("--nodes", str(nodes), "--gpus-per-node", "1", "--sizes", sizes, "--iters", "5", *words),
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["correct"] is True
    return document


def mbit_s(document: dict[str, Any]) -> float:
    rate: float = document["best"]["all_reduce"]["busbw_gbs"]
    return rate * 8000


@pytest.mark.parametrize(
    ("cluster", "nodes", "mbit", "sizes"),
    [("lab", 2, 100, "4M:8M"), ("rack", 3, 200, "8M:16M")],
)
def test_a_limited_link_is_measured_at_its_rate(
    lab: Lab, desk: Desk, cluster: str, nodes: int, mbit: int, sizes: str
) -> None:
    with limited(lab, mbit):
        for _ in range(TRIES):
            found = mbit_s(measured(desk, cluster, nodes, sizes))
            if abs(found / mbit - 1) <= 0.1:
                return
    pytest.fail(f"{found:.0f} Mbit/s measured, {mbit} of the link, {mbit * TCP_SHARE:.0f} of TCP")


def test_groups_of_a_layout_are_measured_at_once_and_right(desk: Desk) -> None:
    words = ("--ops", "all", "--tp", "2", "--over", "dp", "--gpus-per-node", "2")
    found = measured(desk, "rack", 3, "64K:128K", *words)
    assert found["group"] == {"over": "dp", "ranks": 3, "stride": 2}
    assert list(found["best"]) == [op.value for op in MEASURED]


def test_a_link_carries_what_iperf3_says(lab: Lab, desk: Desk) -> None:
    """Without a limit the processors are that of both: `python -m bench --only link` compares."""
    try:
        require_tools(("iperf3",))
    except MissingToolsError as error:
        give_up(error)
    pairs = []
    with limited(lab, 1000):
        for _ in range(TRIES):
            before = iperf3(lab, seconds=2)
            found = mbit_s(measured(desk, "rack", 2, "16M:64M", "--seconds", "20"))
            pairs.append((found, 500 * (before + iperf3(lab, seconds=2))))
            if abs(pairs[-1][0] / pairs[-1][1] - 1) <= 0.15:
                return
    pytest.fail(f"all-reduce and iperf3, Mbit/s: {pairs}")


def test_nodes_without_torch_are_told(lab: Lab, desk: Desk) -> None:
    bare = "{kind: slurm, partition: gpu, python: /usr/bin/python3, run_dir: runs}"
    desk.write("clusterkit.yaml", f"clusters:\n  bare: {bare}\n")
    done = desk.clusterkit("bench", "collectives", "--cluster", "bare", "--nodes", "2")
    assert done.returncode in {1, 2}
    assert "torch" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("signum", ["SIGTERM", "SIGHUP", "SIGINT", "SIGKILL"])
def test_a_client_that_is_struck_at_any_moment_leaves_no_job(
    lab: Lab, desk: Desk, signum: str
) -> None:
    ends = []
    argv = [sys.executable, "-m", "clusterkit", "bench", "collectives", "--cluster", "lab"]
    argv += ["--nodes", "2", "--gpus-per-node", "1", "--backend", "gloo", "--iters", "100000"]
    for number in range(ROUNDS):
        client = lab.popen("head", argv, cwd=desk.folder, env=desk.environment())
        time.sleep(1.0 + 7.0 * number / ROUNDS)
        for process in lab.processes("head", "-m clusterkit bench"):
            os.kill(process.pid, getattr(signal, signum))
        client.communicate(timeout=120)
        await_true(lambda: not lab.run("head", ["squeue", "-h"], check=True).stdout, 90)
        assert not [p for host in lab.hosts for p in lab.processes(host, r"(^|/)srun ")]
        listed = json.loads(desk.clusterkit("status", "--json", "--cluster", "lab").stdout)["jobs"]
        # Runs of other clusters of that name may stand in the home folder.
        for job in (one for one in listed if Path(one["run_dir"]).is_relative_to(desk.folder)):
            assert job["state"] == "cancelled" or job["reason"].startswith("never "), job
            ends.append(f"{job['state']}: {job['reason']}")
    print(*ends, sep="\n")


@pytest.mark.parametrize("cluster", ["lab", "rack"])
def test_nodes_measure_the_storage_that_they_share(desk: Desk, cluster: str) -> None:
    folder = desk.folder / "checkpoints"
    folder.mkdir(exist_ok=True)
    words = ("bench", "storage", "-c", cluster, "-n", "2", "-g", "2", "--size", "16M")
    done = desk.clusterkit(*words, "--path", str(folder), "--mtbf", "8h", "--json")
    found = json.loads(done.stdout)
    assert found["complete"] is True, done.stderr
    assert {one["kind"] for one in found["findings"]} <= {"slow"}, "they share two processors"
    assert done.returncode == (1 if found["findings"] else 0)
    assert len(found["nodes"]) == 2
    for node in found["nodes"]:
        rates = ("write", "write_all", "read", "read_all", "small_per_s")
        assert all(node[rate] > 0 for rate in rates), node
        assert (node["path"], node["read_from"] is None) == (str(folder), False)
    slowest = max(node["checkpoint_s"] for node in found["nodes"])
    assert found["interval"]["write_s"] == slowest
    assert found["interval"]["young_s"] == pytest.approx((2 * slowest * 8 * 3600) ** 0.5)
    assert list(folder.iterdir()) == []
