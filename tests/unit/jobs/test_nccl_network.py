"""Which network NCCL took, as its log tells it, and the warning of one that is TCP for nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from clusterkit.cli.frame.main import app
from clusterkit.core import files
from clusterkit.core.model import ClusterKind, JobState, JobStatus
from clusterkit.executors.run.runfolder import (
    PREFLIGHT,
    RunFolder,
    Submission,
    write_state,
    write_submission,
)
from clusterkit.jobs import nccl_network
from clusterkit.jobs.nccl_network import NcclLog, network_of
from clusterkit.observe.diagnose.job import diagnose_run
from clusterkit.observe.top.snapshot import NodeNow, Snapshot, document_of, warnings_of
from clusterkit.observe.top.watch import Training

P5 = {"cluster": {"platform": "aws-efa", "instance_type": "p5.48xlarge"}}
SOCKET = """\
loading the data
n1:210:533 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so
n1:210:533 [0] NCCL INFO NET/IB : No device found.
n1:210:533 [0] NCCL INFO NET/Socket : Using [0]ens32:10.0.0.11<0>
n1:210:533 [0] NCCL INFO Assigned NET plugin Socket to comm
n1:210:533 [0] NCCL INFO Using network Socket
n1:210:540 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/Socket/0
step 1 loss 2.5
"""
EFA = """\
n1:44:90 [3] NCCL INFO NET/OFI Selected provider is efa, fabric is efa-direct (found 32 nics)
[rank3]: n1:44:90 [3] NCCL INFO Using network AWS Libfabric
n1:44:95 [3] NCCL INFO Channel 01/0 : 3[3] -> 11[3] [send] via NET/AWS Libfabric/3(2)/GDRDMA/Shared
"""
LOUD = (
    "NCCL goes over TCP (NET/Socket) between nodes, though p5.48xlarge has 32 RDMA devices of "
    "100 Gbit/s: NCCL found no plug-in and no RDMA device; "
    "clusterkit preflight --select nccl,ib tells why"
)
Made = Callable[..., RunFolder]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    def make(
        log: str, *, plan: Mapping[str, Any] = P5, found: object = None, nodes: int = 2
    ) -> RunFolder:
        run = RunFolder(tmp_path / "runs" / "train-20261127-120000-ab12cd")
        for folder in (run.logs, run.nodes, run.submitit):
            folder.mkdir(parents=True)
        submission = Submission(
            run_id=run.run_id, name="train", cluster="c", kind=ClusterKind.SLURM,
            framework="torchrun", nodes=nodes, tasks=nodes, submitted_at=time.time(), job_id="7",
            requeue=1,
        )  # fmt: skip
        write_submission(run, submission)
        files.write_json(run.plan, plan)
        if found is not None:
            files.write_json(run.path / PREFLIGHT, {"findings": found})
        run.log(0).write_text(log)
        write_state(run, submission, JobStatus(state=JobState.SUCCEEDED, exit_code=0))
        return run

    return make


def test_what_nccl_says_it_uses(made: Made) -> None:
    found = network_of(made(EFA))
    assert found is not None
    assert (str(found), found.warning) == ("NET/AWS Libfabric, GPUDirect RDMA", None)


def test_tcp_where_the_instance_type_has_a_fabric_is_told(made: Made) -> None:
    found = network_of(made(SOCKET))
    assert found is not None
    assert (str(found), found.warning) == ("NET/Socket, without GPUDirect RDMA", LOUD)


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        ({"plan": {}}, None),
        ({"plan": {"cluster": {"platform": "plain", "instance_type": "any"}}}, None),
        ({"plan": {"cluster": {"platform": "./gone.yaml", "instance_type": "any"}}}, None),
        ({"plan": {"cluster": ["p5"]}, "found": [7, {"id": "IB002"}]}, None),
        ({"nodes": 1}, None),  # no traffic between nodes
        (
            {"plan": {**P5, "env": {"NCCL_IB_DISABLE": "1"}}},
            "100 Gbit/s: NCCL_IB_DISABLE=1 of the job",
        ),
        (
            {"plan": {"cluster": {"platform": "gcp-tcpx", "instance_type": "a3-highgpu-8g"}}},
            "though a3-highgpu-8g has 4 network cards of 200 Gbit/s",
        ),
        (
            {"plan": {}, "found": [{"id": "IB002", "verdict": "pass", "nodes": ["n2", "n1.site"]}]},
            "though the RDMA ports of n1 are up (IB002)",
        ),
        ({"plan": {}, "found": [{"id": "IB002", "verdict": "pass", "nodes": ["n2"]}]}, None),
        ({"plan": {}, "found": [{"id": "IB002", "verdict": "warn", "nodes": ["n1"]}]}, None),
    ],
)
def test_tcp_is_a_fault_only_where_there_is_better(
    made: Made, changes: dict[str, Any], warned: str | None
) -> None:
    found = network_of(made(SOCKET, **changes))
    assert found is not None
    assert (found.warning is not None) == (warned is not None)
    assert (warned or "") in (found.warning or "")


def test_nothing_is_known_without_nccl_saying_it(made: Made) -> None:
    version = "NCCL version 2.27.5+cuda12.9\nstep 1 loss 2.5 Using network Socket\n"
    run = made(version)
    assert network_of(run) is None
    assert network_of(RunFolder(run.path.with_name("gone"))) is None


def test_the_last_attempt_counts(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    again = "--- clusterkit: restart 1 on n1, 2026-11-27T12:00:00+00:00\n"
    run = made(SOCKET + again + EFA)
    assert (found := network_of(run)) is not None
    assert found.name == "AWS Libfabric"
    run.log(0).write_text(SOCKET + again + "step 1\n")
    assert network_of(run) is None
    monkeypatch.setattr(nccl_network, "HEAD", 1000)
    monkeypatch.setattr(nccl_network, "_TAIL", 1000)
    run.log(0).write_text(SOCKET + "step\n" * 1000)
    assert network_of(run) is not None
    run.failures.mkdir()
    (run.failures / "0.json").write_text("{}")  # the next began where nothing is read
    assert network_of(run) is None
    run.log(0).write_text("step\n" * 1000 + again + SOCKET)
    assert (found := network_of(run)) is not None
    assert found.name == "Socket"


def test_a_log_of_any_bytes_is_read_in_little_time(made: Made) -> None:
    run = made("")
    hostile = b"NCCL INFO Using network " + b"a-" * (1 << 20) + b"\xff\x00:1:1 [0] " * 100_000
    run.log(0).write_bytes(hostile + b"NCCL INFO Channel " + b" via NET/IB/" * (1 << 18))
    began = time.process_time()
    assert network_of(run) is None
    assert time.process_time() - began < 5.0


def test_status_diagnose_and_top_tell_it(made: Made) -> None:
    run, runner = made(SOCKET), CliRunner()
    said = runner.invoke(app, ["status", str(run.path)]).stdout
    assert f"warning: {LOUD}\n" in said
    assert "\n  network    NET/Socket, without GPUDirect RDMA\n" in said
    told = json.loads(runner.invoke(app, ["status", str(run.path), "--json"]).stdout)
    expected = {"name": "Socket", "gpudirect": False, "warning": LOUD}
    assert told["nccl_network"] == expected
    assert diagnose_run(run, ()).diagnosis.notes == (LOUD,)
    job = Training(run).look()
    snapshot = Snapshot(at=0.0, cluster="c", nodes=(NodeNow(name="n1"),), job=job)
    assert LOUD in [one.text for one in warnings_of(snapshot)]
    assert document_of(snapshot)["job"]["nccl_network"] == expected


def test_following_warns_once(made: Made) -> None:
    run = made(SOCKET * 2)
    done = CliRunner().invoke(app, ["logs", "-f", str(run.path)])
    assert done.stderr.count(LOUD) == 1
    assert done.stdout.count("Using network Socket") == 2


def test_pieces_of_a_log(made: Made) -> None:
    log, run = NcclLog(), made("")
    log.take("[node-0] n1:1:1 [0] NCCL INFO NET/Plugin: No plugin found (libnccl-net.so)\n")
    assert not log.told
    assert log.network(run) is None
    log.take("[node-0] n1:1:1 [0] NCCL INFO Using network Socket\r\n")
    assert (found := log.network(run)) is not None
    assert str(found) == "NET/Socket"
    assert str(found.warning).endswith(": NCCL found no plug-in" + LOUD[LOUD.index(";") :])
