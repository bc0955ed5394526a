"""Every parser of every probe: text from machines that are not well is a value or `Unparsed`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clusterkit.preflight.checks import all_checks
from clusterkit.preflight.probes import sinfo
from clusterkit.preflight.probes.gpu import kernel_log, nvidia_list
from clusterkit.preflight.probes.net import rdma_ports
from clusterkit.preflight.topology.matrix import NoMatrix, View, parse_topology
from clusterkit.transport import slurm_nodes
from clusterkit.transport.probe import Output, Unparsed, read_output
from tests.helpers.mangling import mangled
from tests.helpers.recordings import recording
from tests.unit.preflight import test_probe_gpu, test_probe_host, test_probe_rdma
from tests.unit.preflight.test_check_nccl import NET
from tests.unit.preflight.test_check_net import GOOD, allreduces, links

PROBES = {probe.name: probe for check in all_checks() for probe in check.probes}

_LINKS = str(links(reach=lambda a, b: "wrong:x" if "d" in (a, b) else "ok")["b"]["net-links"])
_REDUCED = str(
    allreduces((("a", "b", GOOD), ("a", "c", "failed x y"), ("a", "d", "hung")))["a"][
        "net-allreduce"
    ]
)
_NVLINK_ERRORS = """up 86400.25
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)
\t Link 3: Replay Errors: 12
\t Link 3: FEC Errors - 0: 17941761
counters 54
GPU 1: NVIDIA H100 PCIe (UUID: GPU-1)
\t Device does not have or support Nvlink
counters 0
end
"""

OURS = {
    **{probe.name: text for probe, text in test_probe_host.EXAMPLES},
    **test_probe_rdma.OURS,
    "amd-gpus": test_probe_gpu.amd_smi(("41", "0"), ('"N/A"', '"N/A"')),
    "nvidia-processes": test_probe_gpu._PROCESSES,
    "pci-gpus": test_probe_gpu._PCI,
    "nvidia-list": "exit 0\nGPU 0: NVIDIA H200 (UUID: GPU-0)\n"
    "  MIG 1g.10gb Device  0: (UUID: MIG-1)\n",
    "nvidia-nvlink-errors": _NVLINK_ERRORS,
    "nccl-topo-file": "file /etc/nccl/topology.xml\n",
    "kernel-log": "log dmesg\nNVRM: Xid (PCI:0000:9b:00): 119, pid=2\n"
    "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30\n",
    "interfaces": NET,
    "nccl-env": "NCCL_DEBUG=INFO\nNCCL_IB_HCA==mlx5_0:1\n",
    "nccl-conf": "file /etc/nccl.conf\n # ours\n NCCL_DEBUG = INFO\nfile /root/.nccl.conf\n",
    "net-links": _LINKS,
    "net-links-again": _LINKS,
    "net-allreduce": _REDUCED,
    "net-allreduce-again": _REDUCED,
}
"""What our own snippets print."""

RECORDED = {
    "dcgm-diag": (
        "dcgmi_diag_gb10_l1.json", "dcgmi_diag_gb10_l2_allowed.json", "dcgmi_diag_r2_pass.txt",
        "dcgmi_diag_r1_pass_tail_cut.txt",
    ),
    "nccl-tests": ("nccl_ar_a100_1node.txt", "nccl_ar_p5_8gpu_mpiprefix.txt"),
    "nvidia-gpus": (
        "csv_h200_idle_full.csv", "csv_h100_mig_full.csv", "smi_q_a10_remap_pending.txt",
        "smi_q_h100x8_one_powercap.txt", "smi_q_titanv_560.txt",
    ),
    "nvidia-nvlink": (
        "nvlink_s_a100x8.txt", "nvlink_s_a100_all_inactive.txt", "nvlink_s_inActive_610.txt",
        "nvlink_s_h100_mig_unsupported.txt",
    ),
    "nvidia-topo": (
        "topo_dgxa100_12mlx5_tabs.txt", "topo_6gpu_ansi.txt", "topo_2gpu_nv2.txt",
        "topo_v100x8_mesh_4mlx5.txt", "topo_rtx2080s_blank_affinity_raw.txt",
    ),
    "pci-gpus": ("lspci_gb200.txt",),
    "rdma-ports": (
        "ibstat_h100_2of8_down.txt", "ibstatus_a100_9dev.txt", "ibv_devinfo_mlx4_port2_down.txt",
        "rdma_link_bf3_half_down.txt",
    ),
    "slurm-node": ("scontrol_show_node_oneline_25_11.txt",),
}  # fmt: skip
"""What tools print, as recorded."""

OTHERS: dict[str, tuple[Callable[[str], object], str]] = {
    "nvidia-smi -L": (nvidia_list.read_list, "list_h100_mig.txt"),
    "dmesg": (kernel_log.read_kernel_log, "dmesg_xid119_h100.txt"),
    "ibstat": (rdma_ports.parse_tools, "ibstat_a100_9ca.txt"),
    "scontrol": (slurm_nodes.split_records, "scontrol_show_node_h100_drain.txt"),
    "sinfo": (sinfo.parse, "sinfo_deepops_alloc_idle.txt"),
    "topo -p2p": (lambda text: parse_topology(text, view=View.P2P), "topo_p2p_r_h100x8.txt"),
    "topo -mp": (lambda text: parse_topology(text, view=View.PCIE), "topo_mp_juwels_booster.txt"),
}
"""Parsers beside those of the probes."""

_MANY = settings(max_examples=50, suppress_health_check=list(HealthCheck))


def test_no_probe_is_left_out() -> None:
    assert PROBES.keys() == OURS.keys() | RECORDED.keys()


def test_every_recording_is_read_by_some_test() -> None:
    index = recording("INDEX.tsv").splitlines()[1:]
    texts = "".join(path.read_text("utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    assert [line.split("\t")[0] for line in index if line.split("\t")[0] not in texts] == []


@pytest.mark.parametrize("name", OURS)
@_MANY
@given(data=st.data())
def test_answers_of_our_snippets(name: str, data: st.DataObject) -> None:
    _read(PROBES[name].parse, OURS[name], data)


@_MANY
@given(data=st.data())
def test_answers_of_the_older_tool(data: st.DataObject) -> None:
    _read(PROBES["amd-gpus"].parse, test_probe_gpu._ROCM, data)


@pytest.mark.parametrize(
    ("name", "file"), [(name, file) for name, files in RECORDED.items() for file in files]
)
@_MANY
@given(data=st.data())
def test_recordings(name: str, file: str, data: st.DataObject) -> None:
    _read(PROBES[name].parse, recording(file), data)


@pytest.mark.parametrize("name", OTHERS)
@_MANY
@given(data=st.data())
def test_other_parsers(name: str, data: st.DataObject) -> None:
    parse, file = OTHERS[name]
    _read(parse, recording(file), data)


def _read(parse: Callable[[str], Any], text: str, data: st.DataObject) -> None:
    assert parse(text) is not None
    try:
        first = parse(data.draw(mangled(text)))
    except (Unparsed, NoMatrix):
        return
    assert first == first  # noqa: PLR0124 - a value, in which no figure is NaN


@pytest.mark.parametrize("name", OURS)
def test_an_empty_answer_is_no_finding(name: str) -> None:
    """Without any output nothing is known; of some parts that is how they say: there is none."""
    facts = read_output(PROBES[name], Output(stdout=""))
    empty = {"net-interfaces", "nccl-env", "nccl-conf"}
    assert (getattr(facts, "verdict", None) == "unknown") is (name not in empty | {"rdma-counters"})
