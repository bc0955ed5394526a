"""Nodes without GPUs or NICs: skipped where no node has any, named beside nodes that have some."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from clusterkit.core.findings import Finding, Verdict
from clusterkit.core.model import ClusterKind, ClusterSpec, GpuRequest
from clusterkit.preflight.checks import all_checks
from clusterkit.preflight.evaluate import findings_of
from clusterkit.preflight.request import PreflightOptions
from clusterkit.preflight.targets import aim
from clusterkit.transport.probe import NOT_APPLICABLE, Output, PreflightJob
from tests.helpers.evidence import evidence
from tests.unit.preflight.test_probe_gpu import _ROCM

_CHECKS = {check.id: check for check in all_checks()}
_NO_NVIDIA = Output(stdout="no NVIDIA GPU\n", exit_code=NOT_APPLICABLE)
_NO_AMD = Output(stdout="no AMD GPU\n", exit_code=NOT_APPLICABLE)
_NO_RDMA = Output(stdout="no RDMA device\n", exit_code=NOT_APPLICABLE)
_HUNG = Output(stdout="", exit_code=124)
_LIST = "exit 0\n" + "".join(
    f"GPU {i}: NVIDIA H100 80GB HBM3 (UUID: GPU-{i:08x}-0000-0000-0000-000000000000)\n"
    for i in range(8)
)
_TOPO = """\
\tGPU0\tGPU1\tNIC0
GPU0\t X \tNV18\tPIX
GPU1\tNV18\t X \tPXB
NIC0\tPIX\tPXB\t X

Legend:

NIC Legend:

  NIC0: mlx5_0
"""
_RDMA = "device|mlx5_0|28.39|MT_1|MT4129\nport|mlx5_0|1|4: ACTIVE|5: LinkUp|400|InfiniBand|1|1\n"
_WITH: Mapping[str, str | Output] = {
    "nvidia-list": _LIST,
    "amd-gpus": _NO_AMD,
    "nvidia-topo": _TOPO,
    "rdma-ports": _RDMA,
}
_AMD: Mapping[str, str | Output] = {"nvidia-list": _NO_NVIDIA, "amd-gpus": _ROCM}
_WITHOUT: Mapping[str, str | Output] = {
    "nvidia-list": _NO_NVIDIA,
    "amd-gpus": _NO_AMD,
    "nvidia-topo": _NO_NVIDIA,
    "rdma-ports": _NO_RDMA,
}
_NOT_SAID: Mapping[str, str | Output] = dict.fromkeys(_WITH, _HUNG)
_PARTS = {
    "GPU001": "NVIDIA GPU",
    "GPU002": "NVIDIA GPU",
    "GPU023": "AMD GPU",
    "TOPO001": "NVIDIA GPU",
    "IB001": "RDMA device",
}


def _having(check: str) -> Mapping[str, str | Output]:
    return _AMD if check == "GPU023" else _WITH


def _findings(
    check: str,
    nodes: Mapping[str, Mapping[str, str | Output]],
    *,
    gpus: int | None = None,
    uses_gpus: bool | None = None,
) -> list[Finding]:
    job = PreflightJob(hosts=tuple(nodes), gpus_per_node=gpus, uses_gpus=uses_gpus)
    return list(findings_of(_CHECKS[check], evidence(nodes, job=job)))


@pytest.mark.parametrize("gpus", [None, 1, 8])
@pytest.mark.parametrize("check", _PARTS)
def test_a_cluster_without_the_part_is_skipped(check: str, gpus: int | None) -> None:
    found = _findings(check, {"n1": _WITHOUT, "n2": _WITHOUT, "n3": _WITHOUT}, gpus=gpus)
    assert [(f.verdict, f.nodes) for f in found] == [(Verdict.SKIP, ("n1", "n2", "n3"))]


@pytest.mark.parametrize("gpus", [None, 1])
@pytest.mark.parametrize("check", _PARTS)
def test_a_node_without_it_beside_nodes_that_have_it_fails(check: str, gpus: int | None) -> None:
    having = _having(check)
    found = _findings(check, {"n1": having, "n2": having, "n3": _WITHOUT}, gpus=gpus)
    (failed,) = (f for f in found if f.verdict is Verdict.FAIL)
    assert failed.nodes == ("n3",)
    assert failed.summary == f"no {_PARTS[check]}, 2 of 3 nodes have one"
    assert failed.hint
    assert failed.command
    # With gpus=1 the others pass, or show more than is asked for; none of them is blamed.
    assert {f.verdict for f in found} <= {Verdict.PASS, Verdict.FAIL}


@pytest.mark.parametrize("check", _PARTS)
def test_of_two_nodes_the_one_without_fails(check: str) -> None:
    found = _findings(check, {"n1": _WITHOUT, "n2": _having(check)})
    assert [f.nodes for f in found if f.verdict is Verdict.FAIL] == [("n1",)]


@pytest.mark.parametrize("check", _PARTS)
def test_most_nodes_are_not_failed_for_the_card_of_one(check: str) -> None:
    nodes = {"n1": _having(check), "n2": _WITHOUT, "n3": _WITHOUT}
    found = _findings(check, nodes)
    (odd,) = (f for f in found if f.nodes == ("n2", "n3"))
    assert odd.verdict is Verdict.WARN
    assert Verdict.FAIL not in {f.verdict for f in found}


@pytest.mark.parametrize("check", _PARTS)
def test_nodes_that_do_not_say_have_no_vote(check: str) -> None:
    nodes = {"n1": _WITHOUT, "n2": _NOT_SAID, "n3": _NOT_SAID}
    found = _findings(check, nodes)
    assert [(f.verdict, f.nodes) for f in found if "n1" in f.nodes] == [(Verdict.SKIP, ("n1",))]
    beside = _findings(check, {**nodes, "n4": _having(check)})
    assert [f.nodes for f in beside if f.verdict is Verdict.FAIL] == [("n1",)]
    (unsaid,) = (f for f in beside if f.verdict is Verdict.UNKNOWN)
    assert unsaid.nodes == ("n2", "n3")


def test_gpus_that_were_asked_for_fail_a_cluster_without_any() -> None:
    (found,) = _findings("GPU002", {"n1": _WITHOUT, "n2": _WITHOUT}, gpus=8, uses_gpus=True)
    assert (found.verdict, found.nodes) == (Verdict.FAIL, ("n1", "n2"))
    assert found.summary == "no GPU, the job wants 8"


def test_gpus_that_were_asked_for_may_be_of_amd() -> None:
    found = _findings("GPU002", {"n1": _AMD, "n2": _AMD}, gpus=2, uses_gpus=True)
    assert {f.verdict for f in found} == {Verdict.SKIP}
    mixed = _findings("GPU002", {"n1": _AMD, "n2": _WITHOUT}, gpus=2, uses_gpus=True)
    assert [f.nodes for f in mixed if f.verdict is Verdict.FAIL] == [("n2",)]


def test_gpus_that_could_not_be_looked_for_are_not_denied() -> None:
    hung = {**_WITHOUT, "amd-gpus": _HUNG}
    (found,) = _findings("GPU002", {"n1": hung}, gpus=8, uses_gpus=True)
    assert found.verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("gpus", "request_kind", "uses"),
    [
        (8, GpuRequest.GPUS_PER_NODE, True),
        (None, GpuRequest.GPUS_PER_NODE, None),
        (8, GpuRequest.NONE, False),
        (None, GpuRequest.NONE, False),
    ],
)
def test_slots_of_the_cluster_ask_for_no_gpu(
    gpus: int | None, request_kind: GpuRequest, uses: bool | None
) -> None:
    spec = ClusterSpec(name="c", kind=ClusterKind.SLURM, gpus_per_node=4, gpu_request=request_kind)
    job = aim(PreflightOptions(hosts="n1", via="ssh", gpus_per_node=gpus), spec).job
    assert job.uses_gpus is uses
    assert job.gpus_per_node == (gpus or 4)
