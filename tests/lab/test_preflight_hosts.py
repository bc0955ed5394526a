"""Faults of hosts on the practice cluster: each is named, with the right node, and nothing else."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks import all_checks, select_checks
from clusterkit.preflight.checks.base import Evidence, NodeFacts
from clusterkit.preflight.collect import probes_of
from clusterkit.preflight.evaluate import findings_of
from clusterkit.transport import slurm_nodes
from clusterkit.transport.probe import Output, PreflightJob, Reach
from clusterkit.transport.script import compose
from tests.helpers.answers import read_answer
from tests.helpers.lab_faults import (
    drained,
    full_shared_memory,
    hosts_file,
    mounted,
    wait_for_state,
)
from tests.helpers.lab_jobs import is_soon
from tests.lab import Lab

pytestmark = pytest.mark.lab

NODES = ("n1", "n2", "n3")
CHECKS = select_checks(all_checks(), select=("SSH", "HOST", "FS", "SLURM", "ENV"))

HANGING = """
import ctypes, os, sys, time
fd = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={fd},rootmode=40000,user_id=0,group_id=0".encode()
libc = ctypes.CDLL(None, use_errno=True)
if libc.mount(b"dead", sys.argv[1].encode(), b"fuse", 0, options):
    sys.exit(os.strerror(ctypes.get_errno()))
print("mounted", flush=True)
time.sleep(300)
"""
"""A file system whose server never answers, as that of a dead NFS server."""


@pytest.fixture(autouse=True)
def _all_respond(lab: Lab) -> Iterator[None]:
    """Wait until Slurm has heard of every node again: those of a test like these did not answer."""
    wait_for_state(lab, "idle", *lab.nodes)
    yield
    wait_for_state(lab, "idle", *lab.nodes)  # the next test may submit to them


@pytest.fixture
def job(tmp_path: Path) -> PreflightJob:
    """A job of three nodes with a marked run folder, that logs in from node to node."""
    (tmp_path / ".mark").write_text(".mark\n")
    return PreflightJob(
        hosts=NODES,
        kind="slurm",
        framework="mpi",
        python=sys.executable,
        paths=(str(tmp_path),),
        marker=".mark",
        peer_ssh=True,
    )


def look(lab: Lab, job: PreflightJob) -> Evidence:
    """Ask the three nodes, and Slurm, as preflight does."""
    compound = compose(probes_of(CHECKS, job), job, token="ck0")

    def ask(host: str) -> Mapping[str, Output]:
        done = lab.run(host, ["sh", "-s"], input=compound.script)
        answer = read_answer(done.stdout, compound)
        assert answer is not None
        assert answer.complete
        assert answer.host == host
        return answer.outputs

    with ThreadPoolExecutor() as pool:
        outputs = dict(zip(NODES, pool.map(ask, NODES), strict=True))
    asked = lab.run("head", slurm_nodes.query(NODES))
    records = slurm_nodes.answers(
        NODES, Output(stdout=asked.stdout, stderr=asked.stderr, exit_code=asked.returncode)
    )
    nodes = tuple(
        NodeFacts(name=name, outputs={**outputs[name], "slurm-node": records[name]}, reach=_REACH)
        for name in NODES
    )
    return Evidence(job=job, nodes=nodes)


_REACH = Reach(via="ssh", latency_s=0.001, clock_skew_s=0.0)


def faults(lab: Lab, job: PreflightJob) -> dict[str, tuple[str, str, str]]:
    """Return what is neither pass nor skip: id -> verdict, nodes, summary."""
    evidence = look(lab, job)
    return {
        finding.id: (str(finding.verdict), ",".join(finding.nodes), finding.summary)
        for check in CHECKS
        for finding in findings_of(check, evidence)
        if finding.verdict not in {Verdict.PASS, Verdict.SKIP}
    }


def test_healthy_nodes_have_no_findings(lab: Lab, job: PreflightJob) -> None:
    """Nothing to say, on machines without GPU and RDMA; and the checks did look."""
    assert faults(lab, job) == {}
    evidence = look(lab, job)
    passed = {
        check.id
        for check in CHECKS
        if all(finding.verdict is Verdict.PASS for finding in findings_of(check, evidence))
    }
    assert passed >= {"SSH004", "HOST002", "HOST003", "HOST010", "HOST014", "FS002", "SLURM001"}


def test_faults_of_three_nodes_are_named_each_with_its_own(
    lab: Lab, job: PreflightJob, tmp_path: Path
) -> None:
    """A wrong entry on n2, with which its login fails; on n1 the trap of the own name; a full disk.

    The trap is 127.0.1.1, as Debian's installer writes it; the disk /dev/shm, a small one.
    """
    for name in ("n1", "n2"):
        (tmp_path / name).mkdir()
    with (
        hosts_file(lab, "n2", "10.77.0.3 n3", "10.77.0.99 n3", tmp_path / "n2"),
        hosts_file(lab, "n1", "10.77.0.1 n1", "127.0.1.1 n1", tmp_path / "n1"),
        full_shared_memory(lab, "n3"),
    ):
        found = faults(lab, job)
    verdict, nodes, summary = found.pop("SSH004")
    assert (verdict, nodes) == ("fail", "n2")
    assert summary.endswith("n3")
    assert found == {
        "HOST002": ("fail", "n2", "resolves n3 to 10.77.0.99, wrong"),
        "HOST003": ("fail", "n1", "its own name resolves to 127.0.1.1, loopback"),
        "HOST010": ("fail", "n3", "/dev/shm is full"),
    }


def test_run_folders_that_are_not_shared_or_read_only_are_named(
    lab: Lab, job: PreflightJob
) -> None:
    """Another file system under the same name on n2; on n1 root may not write there either."""
    path = job.paths[0]
    lab.run("n1", ["mount", "--bind", path, path], check=True)
    with (
        mounted(lab, "n1", "-o", "remount,bind,ro", path),
        mounted(lab, "n2", "-t", "tmpfs", "-o", "size=4g", "own", path),
    ):
        found = faults(lab, job)
    assert found.pop("FS002")[:2] == ("fail", "n2")
    assert found == {
        "FS003": ("fail", "n1", f"{path} is mounted read-only"),
        "FS004": ("warn", "n2", f"{path} comes from another source"),
    }


def test_a_dead_file_system_is_named_and_holds_nobody_up(
    lab: Lab, job: PreflightJob, tmp_path: Path
) -> None:
    """The others are judged, and the node's own answer comes within seconds."""
    if not os.access("/dev/fuse", os.W_OK):
        pytest.skip("no /dev/fuse")
    dead = tmp_path / "dead"
    dead.mkdir()
    job = dataclasses.replace(job, paths=(*job.paths, str(dead)))
    with lab.popen("n3", [sys.executable, "-c", HANGING, str(dead)]) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "mounted\n"
            began = time.monotonic()
            found = faults(lab, job)
            seconds = time.monotonic() - began
        finally:
            lab.run("n3", ["umount", "--lazy", "--force", str(dead)])
            server.kill()
    assert found.pop("FS001") == ("fail", "n3", f"{dead} hangs")
    assert {ids: row[:2] for ids, row in found.items()} == {"FS002": ("unknown", "n3")}
    assert is_soon(lab, seconds)


def test_a_drained_node_and_one_without_the_interpreter_are_named(
    lab: Lab, job: PreflightJob
) -> None:
    """The reason is that of whoever drained it; the others have the interpreter."""
    folder = str(Path(sys.executable).parent)
    with (
        drained(lab, "n2", "fan 3 = dead [see #12]"),
        mounted(lab, "n3", "-t", "tmpfs", "empty", folder),
    ):
        found = faults(lab, job)
    assert found == {
        "SLURM001": ("fail", "n2", "drained: fan 3 = dead [see #12]"),
        "HOST013": ("fail", "n3", f"{sys.executable} not found"),
    }
