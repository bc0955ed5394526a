"""TOPO checks: the node and the link that are wrong are named."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks import all_checks
from clusterkit.preflight.checks.base import Check, Ruling
from clusterkit.preflight.probes.gpu.nvidia_links import TOPO
from clusterkit.preflight.probes.host import nccl_settings
from clusterkit.transport.probe import NOT_APPLICABLE, Output, PreflightJob
from tests.helpers.evidence import evidence
from tests.helpers.recordings import recording

CHECKS = {
    check.name: check for check in all_checks() if check.area == "TOPO" and TOPO in check.probes
}
"""Those of the matrix."""
DGX = "topo_dgxa100_12mlx5_tabs.txt"


def judge(
    name: str, nodes: Mapping[str, str | Output], *, ports: str | None = None, **job: object
) -> dict[str | None, Ruling]:
    outputs: dict[str, dict[str, str | Output]] = {
        node: {"nvidia-topo": said, **({} if ports is None else {"rdma-ports": ports})}
        for node, said in nodes.items()
    }
    known = PreflightJob(hosts=job.pop("hosts", tuple(nodes)), **job)
    return dict(CHECKS[name].judge(evidence(outputs, job=known)))


def verdicts(rulings: Mapping[str | None, Ruling]) -> dict[str | None, str]:
    return {node: ruling.verdict.value for node, ruling in rulings.items()}


def changed(text: str, a: str, b: str, link: str) -> str:
    """Return a matrix of tabs with another link between two columns."""
    lines = [line.split("\t") for line in text.split("\n")]
    header = next(line for line in lines if "GPU0" in line)
    for row in lines:
        if row[0] in {a, b}:
            row[header.index(b if row[0] == a else a)] = link
    return "\n".join("\t".join(line) for line in lines)


@pytest.mark.parametrize("check", CHECKS.values(), ids=lambda check: check.name)
def test_a_machine_without_nvidia_is_skipped(check: Check) -> None:
    absent = Output(stdout="no NVIDIA GPU\n", exit_code=NOT_APPLICABLE)
    found = judge(check.name, dict.fromkeys(("n1", "n2"), absent))
    assert {ruling.verdict for ruling in found.values()} == {Verdict.SKIP}


@pytest.mark.parametrize("check", CHECKS.values(), ids=lambda check: check.name)
def test_garbled_output_is_unknown(check: Check) -> None:
    text = recording(DGX)
    found = judge(
        check.name, {"n1": text, "n2": text, "n3": text[:300]}, env={"NCCL_IB_HCA": "mlx5_0"}
    )
    assert found["n3"].verdict is Verdict.UNKNOWN
    assert "unparsed" in found["n3"].summary


@pytest.mark.parametrize(
    "name", ["topo-uniform", "topo-nvlink", "topo-gpu-links", "topo-gpu-nic", "topo-numa"]
)
def test_healthy_nodes_pass(name: str) -> None:
    found = judge(name, dict.fromkeys(("n1", "n2", "n3"), recording(DGX)))
    assert verdicts(found) == dict.fromkeys(("n1", "n2", "n3"), "pass")


FAR = "\tGPU0\tGPU1\tmlx5_0\nGPU0\t X \tNV18\tSYS\nGPU1\tNV18\t X \tSYS\nmlx5_0\tSYS\tSYS\t X \n"


@pytest.mark.parametrize(
    ("more", "verdict", "summary"),
    [
        ({}, "warn", "GPUs share no PCIe switch with a NIC: GPUDirect RDMA is slow or off"),
        (
            {"nccl-topo-file": "file /etc/nccl/topology.xml\n"},
            "pass",
            "NCCL is told by a file which NIC each GPU is near to",
        ),
        (
            {"nvidia-list": "exit 0\nGPU 0: NVIDIA GB10 (UUID: GPU-0)\n"},
            "pass",
            "GPUs reach the NICs over NVLink-C2C",
        ),
        (
            {"nvidia-list": "exit 0\nGPU 0: NVIDIA B200 (UUID: GPU-0)\n"},
            "warn",
            "GPUs share no PCIe switch with a NIC: GPUDirect RDMA is slow or off",
        ),
    ],
)
def test_what_answers_for_a_far_nic(more: dict[str, str], verdict: str, summary: str) -> None:
    facts = evidence({"n1": {"nvidia-topo": FAR, **more}}, job=PreflightJob(hosts=("n1", "n2")))
    ((_, ruling),) = CHECKS["topo-gpu-nic"].judge(facts)
    assert (ruling.verdict, ruling.summary) == (verdict, summary)


def test_the_file_of_the_job_is_looked_for(tmp_path: Path) -> None:
    file = tmp_path / "a topology.xml"
    job = PreflightJob(hosts=("n1",), env={"NCCL_TOPO_FILE": str(file)})
    text = nccl_settings.TOPO_FILE.snippet(job)
    assert text is not None
    absent = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=False)
    assert absent.returncode == NOT_APPLICABLE
    file.write_text("<system/>", encoding="utf-8")
    there = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True)
    assert nccl_settings.parse_topo_file(there.stdout) == str(file)


def test_one_node_has_nothing_to_be_compared_with() -> None:
    assert verdicts(judge("topo-uniform", {"n1": recording(DGX)})) == {"n1": "skip"}
    assert verdicts(judge("topo-nvlink", {"n1": recording(DGX)})) == {"n1": "pass"}


def test_a_nic_in_another_slot() -> None:
    text = recording(DGX)
    moved = changed(changed(text, "GPU0", "mlx5_0", "SYS"), "GPU1", "mlx5_0", "SYS")
    found = judge("topo-uniform", {"n1": text, "n2": moved, "n3": text})
    assert verdicts(found) == {"n1": "pass", "n2": "warn", "n3": "pass"}
    assert found["n2"].summary == "2 PCIe links differ from most nodes"
    assert "GPU0-mlx5_0 SYS (most: PXB)" in found["n2"].evidence
    assert judge("topo-nvlink", {"n1": text, "n2": moved, "n3": text})["n2"].verdict == "pass"


def test_fewer_gpus() -> None:
    text = recording(DGX)
    fewer = recording("topo_gb200_4gpu.txt")
    found = judge("topo-uniform", {"n1": text, "n2": fewer, "n3": text})
    assert found["n2"].summary == (
        "the matrix has 4 GPUs and 0 NICs, on most nodes 8 GPUs and 12 NICs"
    )
    assert verdicts(judge("topo-uniform", {"n1": text, "n2": fewer})) == {
        "n1": "warn",
        "n2": "warn",
    }


def test_nvlink_that_is_lost() -> None:
    text = recording(DGX)
    lost = changed(text, "GPU2", "GPU5", "SYS")
    found = judge("topo-nvlink", {"n1": text, "n2": text, "n3": lost})
    assert verdicts(found) == {"n1": "pass", "n2": "pass", "n3": "fail"}
    assert found["n3"].summary == "GPU2-GPU5 is SYS, on most nodes NV12"
    assert "nvidia-smi nvlink -s" in found["n3"].command
    narrow = changed(text, "GPU2", "GPU5", "NV11")
    # Alone, too: its other pairs tell.
    assert judge("topo-nvlink", {"n1": narrow})["n1"].verdict is Verdict.FAIL
    # Where most are broken the sound one is not blamed.
    found = judge("topo-nvlink", {"n1": text, "n2": narrow, "n3": narrow})
    assert verdicts(found) == {"n1": "pass", "n2": "fail", "n3": "fail"}


def test_meshes_and_bridges_are_fine_by_design() -> None:
    for name in ("topo_v100x8_mesh_4mlx5.txt", "topo_2gpu_nv2.txt"):
        assert judge("topo-nvlink", {"n1": recording(name)})["n1"].verdict is Verdict.PASS
    none = judge("topo-nvlink", {"n1": recording("topo_6gpu_ansi.txt")})
    assert verdicts(none) == {"n1": "skip"}


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("topo_4gpu_phb_numaid.txt", "warn"),
        ("topo_5090x2_tabs.txt", "warn"),
        ("topo_a100pcie_x2_bf3.txt", "warn"),
        ("topo_rtx6000ada_x4_4nic.txt", "warn"),
        ("topo_6gpu_ansi.txt", "pass"),
        ("topo_h100x8_nonic.txt", "pass"),
        ("topo_h100_1gpu_raw_ansi.txt", "skip"),
    ],
)
def test_gpus_that_talk_through_the_cpu(name: str, verdict: str) -> None:
    found = judge("topo-gpu-links", {"n1": recording(name)})
    assert verdicts(found) == {"n1": verdict}
    assert verdict != "warn" or "scaling drops after 2-4 GPUs" in found["n1"].summary


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        (DGX, "pass"),
        ("topo_1gpu_5bond.txt", "pass"),
        ("topo_8gpu_1nic_dualport.txt", "warn"),
        ("topo_rtx6000ada_x4_4nic.txt", "warn"),
        ("topo_gb200_4gpu.txt", "skip"),
    ],
)
def test_nics_near_gpus(name: str, verdict: str) -> None:
    found = judge("topo-gpu-nic", {"n1": recording(name), "n2": recording(name)})
    assert verdicts(found) == {"n1": verdict, "n2": verdict}
    alone = judge("topo-gpu-nic", {"n1": recording(name)})
    assert verdicts(alone) == {None: "skip"}


def test_a_near_nic_that_is_down() -> None:
    text = recording("topo_a100pcie_x2_bf3.txt")
    half = recording("rdma_link_bf3_half_down.txt")
    found = judge("topo-gpu-nic", {"n1": text, "n2": text}, ports=half)
    # The other port of each card is up.
    assert verdicts(found) == {"n1": "pass", "n2": "pass"}
    assert found["n1"].evidence == "down: mlx5_0,mlx5_2"
    dead = half.replace("mlx5_1/1 state ACTIVE physical_state LINK_UP", "mlx5_1/1 state DOWN")
    found = judge("topo-gpu-nic", {"n1": text, "n2": text}, ports=dead)
    assert found["n1"].summary == "mlx5_0,mlx5_1, nearest to GPU0, is down"


def test_nccl_ib_hca() -> None:
    text = recording(DGX)
    nodes = {"n1": text, "n2": text}
    assert verdicts(judge("topo-nccl-ib-hca", nodes)) == {None: "skip"}
    right = "=mlx5_0,mlx5_1,mlx5_2,mlx5_3,mlx5_6,mlx5_7,mlx5_8,mlx5_9"
    found = judge("topo-nccl-ib-hca", nodes, env={"NCCL_IB_HCA": right})
    assert verdicts(found) == {"n1": "pass", "n2": "pass"}
    found = judge("topo-nccl-ib-hca", nodes, env={"NCCL_IB_HCA": "mlx5"})
    assert found["n1"].verdict is Verdict.WARN
    assert found["n1"].summary.startswith("NCCL_IB_HCA takes mlx5_4,mlx5_5,mlx5_10,mlx5_11")
    assert found["n1"].hint == f"set NCCL_IB_HCA: '{right}'"


def test_down_devices_are_not_recommended() -> None:
    text = recording("topo_a100pcie_x2_bf3.txt")
    nodes = {"n1": text, "n2": text}
    half = recording("rdma_link_bf3_half_down.txt")
    found = judge("topo-nccl-ib-hca", nodes, env={"NCCL_IB_HCA": "=mlx5_1"}, ports=half)
    assert found["n1"].summary == "NCCL_IB_HCA leaves out mlx5_3, near a GPU"
    assert found["n1"].hint == "set NCCL_IB_HCA: '=mlx5_1,mlx5_3'"
    found = judge("topo-nccl-ib-hca", nodes, env={"NCCL_IB_HCA": "=mlx5_1,mlx5_3"}, ports=half)
    assert verdicts(found) == {"n1": "pass", "n2": "pass"}


def test_numa() -> None:
    text = recording("topo_gb200_4gpu.txt")
    odd = text.replace("72-143  1 ", "72-143  0 ")
    found = judge("topo-numa", {"n1": text, "n2": odd, "n3": text})
    assert verdicts(found) == {"n1": "pass", "n2": "warn", "n3": "pass"}
    assert found["n2"].evidence == "NUMA 0,0,0,0; most nodes: NUMA 0,0,1,1"
    blank = judge("topo-numa", {"n1": recording("topo_2gpu_nv2.txt")})
    assert verdicts(blank) == {"n1": "skip"}
