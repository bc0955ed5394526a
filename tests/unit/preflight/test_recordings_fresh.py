"""Recordings of strangers' machines, through the checks of preflight and through `topo`.

What is right about each stands beside the recordings, in INDEX.tsv; here is what that means in our
words.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from clusterkit.core.findings import Finding
from clusterkit.preflight.checks import all_checks
from clusterkit.preflight.evaluate import findings_of
from clusterkit.preflight.probes.gpu import kernel_log
from clusterkit.transport.probe import PreflightJob
from tests.helpers.command_line import typed
from tests.helpers.evidence import evidence
from tests.helpers.recordings import recording

_JOB = PreflightJob(hosts=("n1", "n2"), env={"CLUSTERKIT_DCGM_DIAG": "1"})
_BAD = {"warn", "fail", "unknown"}
_REMOVED = "(channel removed after an earlier error)"


def _recorded(name: str) -> str:
    return recording(f"fresh-2026-11/{name}")


def _judge(probe: str, said: str) -> list[Finding]:
    """Return all that our checks have to say of one probe's answer, of one node."""
    return [
        finding
        for check in all_checks()
        if check.area in {"GPU", "IB", "TOPO"} and probe in {p.name for p in check.probes}
        for finding in findings_of(check, evidence({"n1": {probe: said}}, job=_JOB))
        if "was not run" not in finding.summary
    ]


def _bad(findings: list[Finding]) -> list[tuple[str, str, str]]:
    return [(f.id, str(f.verdict), f.summary) for f in findings if f.verdict in _BAD]


def _kernel(name: str, folder: Path) -> list[Finding]:
    """Run the snippet itself over the log, as if the machine's kernel had written it."""
    (folder / "log").write_text(_recorded(name), encoding="utf-8")
    for tool in ("dmesg", "journalctl", "nvidia-smi"):
        (folder / tool).write_text(f"#!/bin/sh\ncat {folder}/log\n", encoding="utf-8")
        (folder / tool).chmod(0o755)
    snippet = kernel_log.PROBE.snippet(_JOB)
    assert snippet is not None
    done = subprocess.run(
        ["sh", "-c", snippet],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": f"{folder}:/usr/bin:/bin", "LC_ALL": "C"},
    )
    return _judge("kernel-log", done.stdout)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "dmesg_gb200_fatal.txt",
            [
                ("GPU011", "fail", "0009:01:00: Xid 149 (NVLink error)"),
                ("GPU011", "fail", "0009:01:00: Xid 154 (recovery action changed)"),
                ("GPU011", "fail", "0008:01:00: Xid 149 (NVLink error)"),
                ("GPU011", "fail", "0019:01:00: Xid 154 (recovery action changed)"),
                ("GPU011", "fail", "0018:01:00: Xid 154 (recovery action changed)"),
            ],
        ),
        (
            "dmesg_gb200_nonfatal.txt",
            [
                ("GPU011", "warn", "0018:01:00: Xid 149 (NVLink error)"),
                ("GPU011", "warn", "0018:01:00: Xid 145 (NVLink error)"),
                ("GPU011", "warn", "0008:01:00: Xid 145 (NVLink error)"),
            ],
        ),
        (
            "dmesg_xid45_caused_by_149.txt",
            [
                (
                    "GPU011",
                    "warn",
                    f"0000:{bus}:00: Xid 45, after Xid {cause} {_REMOVED}",
                )
                for bus, cause in (("dc", 149), ("ed", 145), ("ba", 145), ("97", 145))
            ],
        ),
        ("dmesg_xid13_43_gpud.txt", []),
        (
            "dmesg_fallen_noxid.txt",
            [
                ("GPU011", "fail", "0000:09:00: fallen off the bus"),
                ("GPU011", "fail", "0000:18:00: fallen off the bus"),
            ],
        ),
        (
            "dmesg_gcm_31_48.txt",
            [("GPU011", "fail", "000d:00:00: Xid 48 (double-bit ECC error)")],
        ),
        (
            "dmesg_azure_xid119.txt",
            [("GPU011", "fail", "0002:00:00: Xid 119 (GSP does not answer)")],
        ),
        (
            "dmesg_gpud46_13_109.txt",
            [
                ("GPU011", "warn", "nvidia-peermem met an invalid context"),
                ("GPU011", "fail", "0000:cb:00: Xid 109 (context switch timeout)"),
            ],
        ),
        ("dmesg_xid32_31_app.txt", []),
        ("dmesg_sxid_nonfatal.txt", [("GPU012", "warn", "NVSwitch: SXid 12028, 22013")]),
        (
            "dmesg_xid79_154_reboot.txt",
            [
                ("GPU011", "fail", "0000:02:00: Xid 79 (fallen off the bus)"),
                ("GPU011", "fail", "0000:01:00: Xid 154 (recovery action changed)"),
            ],
        ),
        (
            "dmesg_xid62_46.txt",
            [
                ("GPU011", "fail", "0000:3b:00: Xid 62 (internal micro-controller halt)"),
                ("GPU011", "fail", "0000:86:00: Xid 46 (GPU stopped processing)"),
            ],
        ),
        (
            "syslog_ib_flap_azure.txt",
            [("IB006", "warn", "ib6 lost the carrier again and again")],
        ),
    ],
)
def test_kernel_logs(name: str, expected: list[tuple[str, str, str]], tmp_path: Path) -> None:
    found = _kernel(name, tmp_path)
    assert sorted(_bad(found)) == sorted(expected)
    rebooted = name in {"dmesg_fallen_noxid.txt", "dmesg_xid79_154_reboot.txt"}
    advice = "restart the node" if rebooted else "reset the GPU"
    assert {f.hint for f in found if f.verdict == "fail"} <= {f"NVIDIA's advice: {advice}"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ibv_devinfo_h100_8ib.txt", []),
        (
            "ibstat_vf_down_linkup.txt",
            [("IB002", "fail", "no RDMA port is active: NCCL falls back to TCP")],
        ),
        ("ibstat_mlx4_ibwarn.txt", []),
        ("ibstatus_roce100.txt", []),
        (
            "ibv_devinfo_ib_port_down.txt",
            [("IB002", "fail", "no RDMA port is active: NCCL falls back to TCP")],
        ),
        ("ibstat_mooncake_roce.txt", []),
    ],
)
def test_ports(name: str, expected: list[tuple[str, str, str]]) -> None:
    found = _judge("rdma-ports", _recorded(name))
    assert _bad(found) == expected
    states = next(f for f in found if f.id == "IB002")
    if "vf" in name:
        assert "a virtual function without a LID" in states.hint
    if "mooncake" in name:
        assert "mlx5_10/1 down/disabled" in states.evidence
    if "mlx4" in name:
        assert "mlx4_0/1 down/disabled" in states.evidence


def test_the_reason_of_a_diagnosis() -> None:
    (finding,) = _judge("dcgm-diag", _recorded("dcgmi_diag_r3_h100_cuinit.txt"))
    assert (finding.verdict, finding.summary) == ("fail", "dcgmi diag: GPU Memory Fail")
    assert "cuInit" in finding.evidence
    assert "'system not yet initialized'" in finding.evidence
    assert "nvidia-fabricmanager" in finding.hint


_NOT_PERSISTENT = ("GPU021", "warn", "GPU 0: persistence mode is off")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("smi_q_l40s_load.txt", [_NOT_PERSISTENT]),
        ("smi_q_h100_load_590.txt", []),
        ("csv_h100_load_590.csv", []),
        ("smi_q_rtx2080s_load_595.txt", [_NOT_PERSISTENT]),
        ("csv_rtx2080s_load_610.csv", [_NOT_PERSISTENT]),
        (
            "smi_q_h200_mig_590.txt",
            [
                ("GPU009", "unknown", "GPU 0: row remapping is not told in MIG mode"),
                ("GPU019", "warn", "GPU 0: MIG mode is on"),
            ],
        ),
        ("csv_rtx4080s_load.csv", [_NOT_PERSISTENT]),
        ("smi_q_535_out2.txt", []),
        ("smi_q_535_out3.txt", []),
    ],
)
def test_gpus(name: str, expected: list[tuple[str, str, str]]) -> None:
    found = _judge("nvidia-gpus", _recorded(name))
    assert found
    assert _bad(found) == expected


def test_a_section_alone_is_incomplete() -> None:
    found = _judge("nvidia-gpus", _recorded("smi_q_d_page_retirement_orig.txt"))
    assert {str(finding.verdict) for finding in found} == {"unknown"}


@pytest.mark.parametrize(
    ("name", "gpus"),
    [
        ("rocm_mi100_rocm571.json", "6 x Arcturus GL-XL [Instinct MI100]"),
        ("rocm_mi100_rocm602.json", "4 x Arcturus GL-XL [Instinct MI100]"),
        ("rocm_rx6700xt_rocm612.json", "1 x Navi 22 [Radeon RX 6700/6700 XT / 6800M]"),
        ("rocm_vega-20-WKS-GL-XE.json", "1 x Radeon Instinct MI50 32GB"),
    ],
)
def test_amd(name: str, gpus: str) -> None:
    found = _judge("amd-gpus", _recorded(name))
    assert next(f.summary for f in found if f.id == "GPU023") == f"AMD GPUs {gpus}"
    assert not _bad(found)


def _topo(name: str, folder: Path) -> tuple[int, dict[str, Any]]:
    """Type `clusterkit topo` on a recording: the exit code, and what it says."""
    (folder / name).write_text(_recorded(name), encoding="utf-8")
    done = typed("topo", str(folder / name), "--json")
    return done.returncode, json.loads(done.stdout)


def _near(told: dict[str, Any]) -> str:
    """Return the NICs near each GPU by the numbers in their names, such as `0:3 1:5 2:0,1`."""
    near = {gpu: places["nics"] for gpu, places in told["affinity"].items() if places["nics"]}
    return " ".join(
        f"{gpu.removeprefix('GPU')}:"
        + ",".join(nic.removeprefix("mlx5_").removeprefix("NIC") for nic in nics)
        for gpu, nics in near.items()
    )


_EIGHT = "8 GPUs, all joined by NVLink (NV18)"


@pytest.mark.parametrize(
    ("name", "said", "near"),
    [
        (
            "topo_glm52.txt",
            f"{_EIGHT}; 10 NICs, nearest PIX",
            "0:3 1:5 2:4 3:0,1,2 4:7 5:9 6:8 7:6",
        ),
        (
            "topo_a3ultra_roce_google.txt",
            f"{_EIGHT}; 8 NICs, nearest PIX",
            " ".join(
                f"{gpu}:rocep{a}s0,rocep{a + 1}s0"
                for gpu, a in enumerate((145, 145, 152, 152, 198, 198, 205, 205))
            ),
        ),
        (
            "topo_mp_h100_dell_12nic.txt",
            "8 GPUs, NVLink is not shown (`topo -mp`), all pairs NODE or SYS; 12 NICs, nearest PIX",
            "0:0,1,2 1:3 2:4 3:5 4:6,7,8 5:9 6:10 7:11",
        ),
        ("topo_h200nvl_2x4.txt", "8 GPUs, 2 NVLink islands: GPU[0-3] + GPU[4-7]", ""),
        (
            "topo_h100_mlx5cols_norows.txt",
            f"{_EIGHT}; 10 NICs, nearest PIX",
            " ".join(f"{n}:{n}" for n in range(8)),
        ),
        (
            "topo_oci_4gpu_legend.txt",
            "4 GPUs, all joined by NVLink (NV18); 4 NICs, nearest PXB",
            "0:0,1 1:3 2:2 3:1",
        ),
        (
            "topo_gb200_allsys.txt",
            "4 GPUs, all joined by NVLink (NV18); 6 NICs, nearest SYS",
            " ".join(f"{n}:0,1,2,3,4,5" for n in range(4)),
        ),
        ("topo_h100x4_blank_affinity.txt", "4 GPUs, all joined by NVLink (NV18)", ""),
        ("topo_a100pcie_bridge_pairs.txt", "4 GPUs, 2 NVLink islands: GPU[0-1] + GPU[2-3]", ""),
        (
            "topo_aws_2gpu_pix.txt",
            "2 GPUs, NVLink is not shown (`topo -mp`); 1 PCIe group: GPU[0-1]",
            "",
        ),
        (
            "topo_b200_4numa.txt",
            f"{_EIGHT}; 9 NICs, nearest PIX",
            " ".join(f"{n}:{n}" for n in range(8)),
        ),
        (
            "topo_dgx2_16gpu.txt",
            "16 GPUs, all joined by NVLink (NV6); 10 NICs, nearest PIX",
            " ".join(f"{n}:{(0, 0, 1, 1, 2, 2, 3, 3, 6, 6, 7, 7, 8, 8, 9, 9)[n]}"
                     for n in range(16)),
        ),
        ("topo_l40s_1gpu.txt", "1 GPU", ""),
    ],
)  # fmt: skip
def test_matrices_of_sound_machines(name: str, said: str, near: str, tmp_path: Path) -> None:
    code, told = _topo(name, tmp_path)
    assert (code, told["summary"], told["warnings"]) == (0, said, [])
    assert _near(told) == near


@pytest.mark.parametrize(
    ("name", "warned"),
    [
        ("topo_gb10_spark.txt", "on GB10, whose CPU and GPU share their memory"),
        ("topo_4gpu_all_sys.txt", "no two GPUs have NVLink or a PCIe switch in common (all SYS)"),
        ("topo_h100vm_1nic_sys_indented.txt", "no NIC on the same PCIe switch as GPU[0-7]"),
        ("topo_gb200lab_gpu2_nv16.txt", "GPU2 has NV16 where most pairs have NV18"),
        ("topo_b200_gpu2_no_nvlink.txt", "no NVLink on GPU2, while GPU[0-1,3-7] have it"),
    ],
)
def test_matrices_with_a_fault(name: str, warned: str, tmp_path: Path) -> None:
    code, told = _topo(name, tmp_path)
    (warning,) = told["warnings"]
    assert code == 1
    assert warned in warning


def test_blank_cells_shift_nothing(tmp_path: Path) -> None:
    _, told = _topo("topo_h100x4_blank_affinity.txt", tmp_path)
    places = [told["affinity"][f"GPU{n}"] for n in range(1, 4)]
    assert [(place["cpus"], place["numa"]) for place in places] == [(None, "1")] * 3


def test_columns_that_ran_together_are_refused(tmp_path: Path) -> None:
    code, told = _topo("topo_b200_squeezed_header.txt", tmp_path)
    assert code == 2
    assert "NIC11 and NIC12 have run together" in told["error"]["problems"][0]["message"]


def test_no_recording_is_left_out() -> None:
    """Each has a test beside this one, or in test_recordings_nccl.py, which looks for its own."""
    listed = [line.split("\t")[0] for line in _recorded("INDEX.tsv").splitlines()[1:]]
    read = "".join(path.read_text() for path in Path(__file__).parent.glob("test_recordings_*.py"))
    missing = {
        name
        for name in listed
        if not name.startswith(("nccl_", "mlperf"))
        and name not in read
        and not (name.startswith("sinfo_") and name[6:].removesuffix(".txt") in read)
    }
    assert missing <= {"sysfs_h100 (real tree)"}, "which nobody has kept"
