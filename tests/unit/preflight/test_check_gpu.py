"""Checks of GPUs, judged on recordings of real machines and on answers of our own."""

from __future__ import annotations

import pytest

from clusterkit.core.findings import Finding, Verdict
from clusterkit.preflight.checks import all_checks
from clusterkit.preflight.evaluate import findings_of
from clusterkit.transport.probe import Output, PreflightJob
from tests.helpers.evidence import evidence
from tests.helpers.paths import TESTS
from tests.helpers.recordings import recording
from tests.unit.preflight.test_probe_gpu import _ROCM, amd_smi

_GPUS = TESTS / "doubles" / "gpus"
_CHECKS = {check.id: check for check in all_checks() if check.area == "GPU"}
_COLUMNS = "index, name, pci.bus_id"
_GEN = "pcie.link.gen.current, pcie.link.gen.max, utilization.gpu [%]"
_H100 = "NVIDIA H100 80GB HBM3"


def _findings(
    check: str, nodes: dict[str, dict[str, str | Output]], job: PreflightJob | None = None
) -> tuple[Finding, ...]:
    return findings_of(_CHECKS[check], evidence(nodes, job=job))


def _one(check: str, *, job: PreflightJob | None = None, **outputs: str | Output) -> Finding:
    """Judge one node whose probes said `outputs`, by probe name with `_` for `-`."""
    said = {name.replace("_", "-"): output for name, output in outputs.items()}
    (finding,) = _findings(check, {"n1": said}, job)
    assert finding.id == check
    return finding


def _gpu(columns: str, cells: str, *, name: str = _H100, index: int = 0) -> str:
    row = f"{index}, {name}, 00000000:{index + 1:02X}:00.0"
    return f"{_COLUMNS}, {columns}\n{row}, {cells}\n"


def _recorded(check: str, name: str) -> Finding:
    return _one(check, nvidia_gpus=recording(name))


@pytest.mark.parametrize(
    ("check", "name", "verdict", "summary"),
    [
        ("GPU007", "csv_h200_idle_full.csv", "pass", "the driver asks for no recovery"),
        ("GPU008", "csv_h200_idle_full.csv", "pass", "no uncorrected memory errors"),
        ("GPU009", "csv_h200_idle_full.csv", "pass", "no row waits to be remapped"),
        ("GPU010", "csv_h200_idle_full.csv", "skip", "no page retirement (before Ampere only)"),
        ("GPU013", "csv_h200_idle_full.csv", "pass", "clocks are not held down"),
        ("GPU016", "csv_h200_idle_full.csv", "pass", "PCIe links have their full width"),
        ("GPU018", "csv_h200_idle_full.csv", "pass", "the NVLink fabric is ready"),
        ("GPU009", "csv_h100_mig_full.csv", "unknown", "GPU 0: row remapping is not told in MIG"),
        ("GPU019", "csv_h100_mig_full.csv", "warn", "GPU 0: MIG mode is on"),
        ("GPU008", "csv_rtx4080s_idle_full.csv", "skip", "no ECC memory"),
        ("GPU009", "csv_rtx4080s_idle_full.csv", "skip", "no row remapping"),
        ("GPU016", "csv_rtx4080s_idle_full.csv", "pass", "PCIe links have their full width"),
        ("GPU008", "smi_q_4090x8.txt", "skip", "ECC is off"),
        ("GPU010", "smi_q_4090x8.txt", "skip", "no page retirement (before Ampere only)"),
        ("GPU018", "smi_q_4090x8.txt", "skip", "no NVLink fabric"),
        ("GPU009", "smi_q_a10_remap_pending.txt", "fail", "GPU 0: a row remap is pending"),
        ("GPU013", "smi_q_h100x8_one_powercap.txt", "warn", "GPU 2: software thermal slowdown"),
        ("GPU018", "smi_q_h100x8_one_powercap.txt", "pass", "the NVLink fabric is ready"),
        ("GPU007", "smi_q_h200_idle_590.txt", "pass", "the driver asks for no recovery"),
        ("GPU013", "smi_q_h200_idle_590.txt", "pass", "clocks are not held down"),
        ("GPU018", "smi_q_h200_idle_590.txt", "pass", "the NVLink fabric is ready"),
        ("GPU021", "smi_q_titanv_560.txt", "warn", "GPU 0: persistence mode is off"),
        ("GPU018", "smi_q_titanv_560.txt", "skip", "no NVLink fabric"),
    ],
)
def test_recordings_of_nvidia_smi(check: str, name: str, verdict: str, summary: str) -> None:
    finding = _recorded(check, name)
    assert finding.verdict == verdict
    assert finding.summary.startswith(summary)


@pytest.mark.parametrize(
    ("name", "verdict", "summary"),
    [
        ("nvlink_s_a100x8.txt", "pass", "all NVLinks are up"),
        ("nvlink_s_h100_18.txt", "pass", "all NVLinks are up"),
        ("nvlink_s_a100_all_inactive.txt", "fail", "GPU 6: all NVLinks are down"),
        ("nvlink_s_inActive_610.txt", "skip", "no NVLink, or no bridge on it"),
        ("nvlink_s_h100_mig_unsupported.txt", "unknown", "GPU 0: NVLink is not told in MIG mode"),
    ],
)
def test_recordings_of_nvlink(name: str, verdict: str, summary: str) -> None:
    finding = _one("GPU017", nvidia_nvlink=recording(name))
    assert (finding.verdict, finding.summary) == (verdict, summary)


def test_recordings_of_the_kernel_log() -> None:
    gsp = _one("GPU011", kernel_log="log dmesg\n" + recording("dmesg_xid119_h100.txt"))
    remap = _one("GPU011", kernel_log="log dmesg\n" + recording("dmesg_xid63_line.txt"))
    assert gsp.verdict is Verdict.FAIL
    assert gsp.summary == "0000:9b:00: Xid 119 (GSP does not answer)"
    assert "reset the GPU" in gsp.hint
    assert remap.verdict is Verdict.WARN
    assert "reset the GPU" in remap.hint


@pytest.mark.parametrize(
    ("name", "verdicts"),
    [
        ("dcgmi_diag_gb10_l1.json", {"warn"}),
        ("dcgmi_diag_gb10_l2_allowed.json", {"warn"}),
        ("dcgmi_diag_r1_pass_tail_cut.txt", {"pass"}),
        ("dcgmi_diag_r2_pass.txt", {"pass"}),
    ],
)
def test_recordings_of_dcgm(name: str, verdicts: set[str]) -> None:
    job = PreflightJob(hosts=("n1",), env={"CLUSTERKIT_DCGM_DIAG": "1"})
    found = _findings("GPU022", {"n1": {"dcgm-diag": recording(name)}}, job)
    assert {finding.verdict for finding in found} == verdicts
    assert _findings("GPU022", {"n1": {}}) == ()  # nobody asked


def _dcgm_table(*rows: tuple[str, str]) -> str:
    """Return a table of dcgmi: texts are cut at 45 characters and go on below."""
    lines = ["| Diagnostic                | Result                                         |"]
    lines.append("+-----  Integration  -------+------------------------------------------------+")
    for name, said in rows:
        lines += [
            f"| {'' if start else name:<25} | {said[start : start + 45]:<46} |"
            for start in range(0, len(said), 45)
        ]
    return "\n".join(lines)


def test_the_reasons_in_a_table_are_kept() -> None:
    job = PreflightJob(hosts=("n1",), env={"CLUSTERKIT_DCGM_DIAG": "1"})
    why = "Error using CUDA API cuInit Check DCGM and system logs for errors. Unable to initialize "
    why += "CUDA library: 'system not yet initialized'. "
    old = _dcgm_table(
        ("GPU Memory", "Fail - All"), *(("Warning", f"GPU {n} {why}") for n in range(8))
    )
    finding = _one("GPU022", job=job, dcgm_diag=old)
    assert finding.evidence == f"GPU 0 {why}".strip()
    assert (
        finding.hint == "CUDA waits for the fabric manager: systemctl status nvidia-fabricmanager"
    )
    # DCGM 4 repeats the result of every GPU, and names one beside the reason.
    new = _dcgm_table(
        ("memory", "Pass"), ("", "GPU0: Pass"), ("pcie", "Fail"), ("", "GPU0: Pass"),
        ("", "GPU3: Fail"), ("Warning: GPU3", "The link generation 1 is below the minimum of 4."),
    )  # fmt: skip
    finding = _one("GPU022", job=job, dcgm_diag=new)
    assert (finding.verdict, finding.summary) == ("fail", "dcgmi diag: pcie GPU3 Fail")
    assert finding.evidence == "GPU3 The link generation 1 is below the minimum of 4."
    mild = _dcgm_table(("software", "Fail"), ("Warning", "Persistence mode for GPU 0 is disabled."))
    assert _one("GPU022", job=job, dcgm_diag=mild).verdict is Verdict.WARN


def test_a_broken_gpu_fails_the_diagnosis_and_skipped_tests_do_not_pass() -> None:
    job = PreflightJob(hosts=("n1",), env={"CLUSTERKIT_DCGM_DIAG": "1"})
    table = "| Diagnostic | Result |\n|-----  Hardware  ---+-----|\n| GPU Memory | {} |\n"
    failed = _one("GPU022", job=job, dcgm_diag=table.format("Fail - GPUs: 3"))
    skipped = _one("GPU022", job=job, dcgm_diag=table.format("Skip - All"))
    assert (failed.verdict, failed.summary) == ("fail", "dcgmi diag: GPU Memory GPUs: 3 Fail")
    assert skipped.verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("check", "columns", "cells", "verdict", "summary"),
    [
        ("GPU007", "gpu_recovery_action", "Drain and Reset", "fail", "asks for: Drain and Reset"),
        ("GPU007", "gpu_recovery_action", "[N/A]", "skip", "names no recovery action"),
        ("GPU008", "ecc.errors.uncorrected.volatile.total", "3", "fail", "GPU 0: uncorrected ECC"),
        (
            "GPU008",
            "ecc.errors.uncorrected.volatile.total, ecc.errors.uncorrected.aggregate.total",
            "0, 5",
            "warn",
            "none since boot: 5",
        ),
        (
            "GPU009",
            "remapped_rows.pending, remapped_rows.failure",
            "No, Yes",
            "fail",
            "could not be remapped",
        ),
        (
            "GPU009",
            "remapped_rows.pending, remapped_rows.failure, remapped_rows.uncorrectable",
            "No, No, 2",
            "warn",
            "rows remapped after uncorrectable errors: 2",
        ),
        ("GPU010", "retired_pages.double_bit.count", "1", "fail", "double-bit errors: 1"),
        (
            "GPU010",
            "retired_pages.double_bit.count, retired_pages.pending",
            "0, Yes",
            "fail",
            "a page waits",
        ),
        (
            "GPU010",
            "retired_pages.double_bit.count, retired_pages.single_bit_ecc.count",
            "0, 61",
            "warn",
            "single-bit errors: 61",
        ),
        ("GPU013", "clocks_event_reasons.active", "0x48", "fail", "hardware thermal slowdown"),
        ("GPU013", "clocks_event_reasons.active", "0x88", "fail", "power brake slowdown"),
        ("GPU013", "clocks_event_reasons.active", "0x8", "fail", "hardware slowdown"),
        ("GPU013", "clocks_event_reasons.active", "0x24", "warn", "software thermal slowdown"),
        ("GPU013", "clocks_event_reasons.active", "0x4", "pass", "clocks are not held down"),
        ("GPU013", "clocks_event_reasons.active", "0x1000", "unknown", "0x1000 are not known"),
        ("GPU014", "temperature.gpu", "85", "pass", "temperatures are fine"),
        ("GPU014", "temperature.gpu", "86", "warn", "GPU 0: 86 C"),
        ("GPU014", "temperature.gpu, temperature.gpu.tlimit", "78, 9", "warn", "9 C from its slow"),
        ("GPU014", "temperature.gpu, temperature.gpu.tlimit", "89, 0", "fail", "at its slowdown"),
        (
            "GPU015",
            "enforced.power.limit [W], power.default_limit [W]",
            "500.00 W, 700.00 W",
            "warn",
            "power limit 500 W, its default is 700 W",
        ),
        (
            "GPU016",
            "pcie.link.width.current, pcie.link.width.max",
            "8, 16",
            "fail",
            "GPU 0: PCIe x8 of x16",
        ),
        (
            "GPU016",
            f"pcie.link.width.current, pcie.link.width.max, {_GEN}",
            "16, 16, 3, 5, 80 %",
            "warn",
            "PCIe generation 3 of 5 under load",
        ),
        ("GPU018", "fabric.state, fabric.status", "In Progress, N/A", "fail", "is In Progress"),
        ("GPU018", "fabric.state, fabric.status", "Completed, Failure", "fail", "(Failure)"),
    ],
)
def test_thresholds(check: str, columns: str, cells: str, verdict: str, summary: str) -> None:
    finding = _one(check, nvidia_gpus=_gpu(columns, cells))
    assert finding.verdict == verdict
    assert summary in finding.summary
    if verdict == "fail":
        assert finding.hint
        assert finding.command


def test_culprits_with_the_same_trouble_are_named_together() -> None:
    rows = "".join(
        f"{i}, {_H100}, 00000000:0{i}:00.0, {0x41 if i in {1, 4} else 1:#x}\n" for i in range(6)
    )
    finding = _one("GPU013", nvidia_gpus=f"{_COLUMNS}, clocks_event_reasons.active\n{rows}")
    assert finding.summary == "GPUs 1,4: hardware thermal slowdown"
    assert finding.command == "nvidia-smi -q -d PERFORMANCE -i 1"


class TestDriver:
    def test_runs(self) -> None:
        said = f"exit 0\nGPU 0: {_H100} (UUID: GPU-0)\n"
        assert _one("GPU001", nvidia_list=said).verdict is Verdict.PASS

    def test_a_gpu_without_nvidia_smi_fails(self) -> None:
        finding = _one("GPU001", nvidia_list=Output(stdout="", stderr="not on PATH", exit_code=127))
        assert (finding.verdict, finding.summary) == (
            "fail",
            "an NVIDIA GPU is there and nvidia-smi is not",
        )

    @pytest.mark.parametrize(
        ("said", "verdict", "summary"),
        [
            ("exit 9\nNVIDIA-SMI has failed\n", "fail", "the NVIDIA driver does not run"),
            (
                "exit 15\nUnable to determine the device handle for GPU 0000:9B:00.0: GPU is lost.",
                "fail",
                "nvidia-smi cannot reach a GPU (exit 15)",
            ),
            (
                "exit 14\nGPU 0: A (UUID: GPU-0)\nWARNING: infoROM is corrupted at 0000:9B:00.0",
                "warn",
                "the infoROM of a GPU is corrupt",
            ),
        ],
    )
    def test_what_nvidia_smi_says_beside_gpus(self, said: str, verdict: str, summary: str) -> None:
        finding = _one("GPU001", nvidia_list=said)
        assert (finding.verdict, finding.summary) == (verdict, summary)

    def test_a_hung_driver_is_unknown(self) -> None:
        finding = _one("GPU001", nvidia_list=Output(stdout="", exit_code=124))
        assert finding.verdict is Verdict.UNKNOWN


def _list(count: int) -> str:
    return "exit 0\n" + "".join(f"GPU {i}: {_H100} (UUID: GPU-{i})\n" for i in range(count))


class TestCount:
    def test_seven_of_a_board_of_eight(self) -> None:
        finding = _one("GPU002", nvidia_list=_list(7))
        assert (finding.verdict, finding.summary) == ("warn", "7 GPUs, such boards have 8")
        assert _one("GPU002", nvidia_list=_list(8)).verdict is Verdict.PASS
        cards = _list(7).replace(_H100, "NVIDIA L40S")
        assert _one("GPU002", nvidia_list=cards).verdict is Verdict.PASS

    def test_fewer_than_the_job_wants(self) -> None:
        job = PreflightJob(hosts=("n1",), gpus_per_node=8)
        finding = _one("GPU002", job=job, nvidia_list=_list(7))
        assert (finding.verdict, finding.summary) == ("fail", "7 GPUs, the job wants 8")

    def test_the_majority_says_what_is_usual(self) -> None:
        nodes = {f"n{i}": {"nvidia-list": _list(7 if i == 3 else 8)} for i in range(1, 6)}
        fine, odd = _findings("GPU002", nodes)
        assert (fine.verdict, fine.nodes) == ("pass", ("n1", "n2", "n4", "n5"))
        assert (odd.verdict, odd.nodes, odd.summary) == (
            "fail",
            ("n3",),
            "7 GPUs, most nodes have 8",
        )

    def test_mig_devices_count_in_place_of_their_gpu(self) -> None:
        job = PreflightJob(hosts=("n1",), gpus_per_node=4)
        said = "exit 0\n" + recording("list_h100_mig.txt")
        assert _one("GPU002", job=job, nvidia_list=said).summary == "4 GPUs"


def _table(name: str, *, driver: str = "550.1", vbios: str = "96.0") -> str:
    return _gpu("driver_version, vbios_version", f"{driver}, {vbios}", name=name)


class TestUniform:
    def test_one_driver_on_all_nodes(self) -> None:
        nodes = {
            f"n{i}": {"nvidia-gpus": _table(_H100, driver="550.1" if i < 3 else "535.9")}
            for i in range(4)
        }
        _, odd = _findings("GPU004", nodes)
        assert (odd.verdict, odd.nodes) == ("fail", ("n3",))
        assert odd.summary == "driver version is 535.9, most nodes have 550.1"

    def test_one_vbios_on_all_nodes(self) -> None:
        nodes = {f"n{i}": {"nvidia-gpus": _table(_H100, vbios=f"9{i // 3}.0")} for i in range(4)}
        assert _findings("GPU005", nodes)[-1].verdict is Verdict.WARN

    def test_one_model_in_the_job(self) -> None:
        names = (_H100, _H100, _H100, "NVIDIA A10")
        nodes = {f"n{i}": {"nvidia-gpus": _table(name)} for i, name in enumerate(names)}
        _, odd = _findings("GPU003", nodes)
        assert (odd.verdict, odd.nodes) == ("fail", ("n3",))
        # 125 of 989 TFLOP/s (NVIDIA's data sheets, 16 bits, dense)
        assert "at up to 13% of its speed, that of NVIDIA A10 (micro" in (odd.hint or "")
        both = "clusterkit estimate --gpu 1xA10-24GB+3xH100-SXM5-80GB"
        assert f"batches of 7.9 : 1 would use both: {both}" in (odd.hint or "")

    @pytest.mark.parametrize("name", ["NVIDIA Toaster 9", "custom:tflops=-1", ":"])
    def test_what_a_model_costs_that_nobody_knows_is_not_told(self, name: str) -> None:
        nodes = {f"n{i}": {"nvidia-gpus": _table(_H100 if i else name)} for i in range(3)}
        found = [one for one in _findings("GPU003", nodes) if one.verdict is Verdict.FAIL]
        assert [(one.hint or "")[:10] for one in found] == ["a job runs"]

    def test_two_models_in_one_node(self) -> None:
        text = f"{_COLUMNS}\n0, NVIDIA A10, 00000000:01:00.0\n1, NVIDIA T4, 00000000:02:00.0\n"
        found = _findings("GPU003", {"n1": {"nvidia-gpus": text}})
        assert found[-1].verdict is Verdict.WARN
        assert found[-1].summary == "different GPUs in one node: NVIDIA A10 + NVIDIA T4"


class TestPci:
    _TWO = (
        "0000:19:00.0 0x030200 0x10de:0x2330 nvidia- de103023\n"
        "0000:3b:00.0 0x030200 0x10de:0x2330 {}- {}\n"
    )

    @pytest.mark.parametrize(
        ("head", "driver", "bytes_", "verdict", "summary"),
        [
            ("pci 2", "nvidia", "ffffffff", "fail", "GPU at 0000:3b:00.0 has fallen off the bus"),
            ("pci 2", "nvidia", "de103023", "fail", "2 GPUs on the PCI bus, nvidia-smi shows 1"),
            ("pci 1", "nvidia", "de103023", "pass", "all GPUs on the PCI bus answer"),
            ("pci 0", "nvidia", "de103023", "fail", "2 GPUs on the PCI bus, nvidia-smi shows 1"),
            ("pci 1", "vfio-pci", "de103023", "pass", "all GPUs on the PCI bus answer"),
        ],
    )
    def test_one_of_two(
        self, head: str, driver: str, bytes_: str, verdict: str, summary: str
    ) -> None:
        said = f"{head}\n{self._TWO.format(driver, bytes_)}"
        finding = _one("GPU006", pci_gpus=said, nvidia_list=_list(1))
        assert (finding.verdict, finding.summary) == (verdict, summary)

    def test_an_instance_that_lost_one(self) -> None:
        """Whatever the job wants of it, and however many others have lost theirs."""
        said = f"pci 2\n{self._TWO.format('nvidia', 'de103023')}"
        job = PreflightJob(hosts=("n1",), instance_gpus=8, gpus_per_node=1)
        finding = _one("GPU006", job=job, pci_gpus=said, nvidia_list=_list(2))
        summary = "2 GPUs on the PCI bus, the instance type has 8"
        assert (finding.verdict, finding.summary) == ("fail", summary)


class TestKernelLog:
    _LOST = "log dmesg\n[9.1] NVRM: Xid (PCI:0000:01:00): {}, pid=7, text\n"

    @pytest.mark.parametrize(
        ("code", "recovery", "verdict"),
        [
            (79, "None", "fail"),  # the log and not the driver knows of cables
            (119, "None", "warn"),  # the GPU was reset since
            (119, "Reset", "fail"),
            (31, "None", "pass"),
            (45, "None", "pass"),
            (999, "None", "warn"),
        ],
    )
    def test_the_driver_knows_what_is_settled(self, code: int, recovery: str, verdict: str) -> None:
        finding = _one(
            "GPU011",
            kernel_log=self._LOST.format(code),
            nvidia_gpus=_gpu("gpu_recovery_action", recovery),
        )
        assert finding.verdict == verdict
        if verdict != "pass":
            assert finding.summary.startswith(f"GPU 0: Xid {code}")

    def test_xid_45_is_judged_by_what_caused_it(self) -> None:
        line = (
            "NVRM: Xid (PCI:0000:01:00): 45, pid=7, name=python3, Ch 01 caused by previous Xid {}\n"
        )
        nvlink = _one("GPU011", kernel_log="log dmesg\n" + line.format(149))
        assert (nvlink.verdict, nvlink.summary.partition(" (")[0]) == (
            "warn", "0000:01:00: Xid 45, after Xid 149"
        )  # fmt: skip
        assert _one("GPU011", kernel_log="log dmesg\n" + line.format(31)).verdict == "pass"
        assert _one("GPU011", kernel_log="log dmesg\n" + line.format(119)).verdict == "fail"
        # The cause is in the log: it decides, whichever line comes first.
        fatal = "NVRM: Xid (PCI:0000:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 01\n"
        both = _one("GPU011", kernel_log="log dmesg\n" + line.format(149) + fatal)
        assert (both.verdict, both.summary) == ("fail", "0000:01:00: Xid 149 (NVLink error)")

    @pytest.mark.parametrize(
        ("to", "verdict", "count"),
        [
            ("0x0 (None)", "warn", 1),
            ("0x1 (GPU Reset Required)", "fail", 2),
            ("0x2 (OS Reboot)", "fail", 2),
        ],
    )
    def test_the_drivers_last_word_settles_what_came_before(
        self, to: str, verdict: str, count: int
    ) -> None:
        first = "log dmesg\nNVRM: Xid (PCI:0000:01:00): 95, pid=7, Uncontained\n"
        last = (
            f"NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x1 (x) to {to}\n"
        )
        found = _findings("GPU011", {"n1": {"kernel-log": first + last}})
        assert len(found) == count
        assert str(next(f for f in found if "Xid 95" in f.summary).verdict) in {verdict, "fail"}
        assert max(str(f.verdict) == "fail" for f in found) is (verdict == "fail")

    def test_crashes_and_peermem_are_told(self) -> None:
        log = (
            "log dmesg\nnvidia-peermem nv_get_p2p_free:127 ERROR detected invalid context\n"
            "python[9]: segfault at 7f ip 00 sp 00 error 4 in libnccl.so.2[7f+d3]\n"
        )
        found = _findings("GPU011", {"n1": {"kernel-log": log}})
        assert [(str(f.verdict), f.summary) for f in found] == [
            ("warn", "nvidia-peermem met an invalid context"),
            ("warn", "python crashed in libnccl"),
        ]

    def test_a_log_that_may_not_be_read_is_unknown(self) -> None:
        denied = Output(stdout="", stderr="kernel log: permission denied", exit_code=1)
        assert _one("GPU011", kernel_log=denied).verdict is Verdict.UNKNOWN
        assert _one("GPU012", kernel_log=denied).verdict is Verdict.UNKNOWN

    def test_switches(self) -> None:
        line = "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, {}, Link 30\n"
        fatal = _one("GPU012", kernel_log="log dmesg\n" + line.format("Fatal"))
        other = _one("GPU012", kernel_log="log dmesg\n" + line.format("Non-fatal"))
        assert (fatal.verdict, other.verdict) == ("fail", "warn")
        assert fatal.summary == "NVSwitch: fatal SXid 20034"


def test_processes_of_others() -> None:
    finding = _one("GPU020", nvidia_processes="processes\nada 4711, 40 MiB, python\n")
    assert (finding.verdict, finding.summary) == ("warn", "1 process on the GPUs, of ada")
    assert finding.command == "ps -o pid,user,etime,args -p 4711"
    assert _one("GPU020", nvidia_processes="processes\n").verdict is Verdict.PASS


class TestAmd:
    _ROCM = (
        '{{"card0": {{"Temperature (Sensor junction) (C)": "{}", "Card Series": "MI300X"}},'
        ' "system": {{"Driver version": "{}"}}}}'
    )

    def test_count_driver_and_temperature(self) -> None:
        said = self._ROCM.format("91.0", "6.8.5")
        job = PreflightJob(hosts=("n1",), gpus_per_node=8)
        assert _one("GPU023", amd_gpus=said).verdict is Verdict.PASS
        short = _one("GPU023", job=job, amd_gpus=said)
        assert (short.verdict, short.summary) == ("fail", "1 x MI300X, the job wants 8")
        hot = _one("GPU025", amd_gpus=said)
        assert (hot.verdict, hot.summary) == ("warn", "GPU 0: 91 C")

    def test_one_driver_on_all_nodes(self) -> None:
        nodes = {
            f"n{i}": {"amd-gpus": self._ROCM.format("40.0", "6.8.5" if i else "6.7.0")}
            for i in range(3)
        }
        assert _findings("GPU024", nodes)[-1].nodes == ("n0",)


@pytest.mark.parametrize("check", sorted(_CHECKS))
def test_what_does_not_apply_is_skipped_and_what_is_garbled_is_unknown(check: str) -> None:
    asked = dict.fromkeys(("CLUSTERKIT_DCGM_DIAG", "CLUSTERKIT_NCCL_TESTS"), "1")
    job = PreflightJob(hosts=("n1",), nodes=2, env=asked)
    probes = [probe.name for probe in _CHECKS[check].probes]
    skipped: dict[str, str | Output] = {
        name: Output(stdout="no GPU here\n", exit_code=77) for name in probes
    }
    garbled: dict[str, str | Output] = dict.fromkeys(probes, "Welcome to the cluster!\n")
    assert {f.verdict for f in _findings(check, {"n1": skipped}, job)} == {"skip"}
    assert {f.verdict for f in _findings(check, {"n1": garbled}, job)} == {"unknown"}


@pytest.mark.parametrize("check", sorted(_CHECKS))
def test_every_check_explains_itself(check: str) -> None:
    about = _CHECKS[check].about
    for text in (about.what, about.why, about.how, about.fix, about.source):
        assert text.endswith((".", ")"))
    assert _CHECKS[check].name.startswith("gpu-")


class TestNvlinkErrors:
    _GPU = "GPU {}: NVIDIA H100 80GB HBM3 (UUID: GPU-{})\n"

    def _said(self, *errors: str, hours: float = 100) -> str:
        gpus = [self._GPU.format(i, i) + said + "counters 54\n" for i, said in enumerate(errors)]
        return f"up {hours * 3600:.2f}\n" + "".join(gpus) + "end\n"

    @pytest.mark.parametrize(
        ("errors", "hours", "verdict", "summary"),
        [
            ("", 100, "pass", "NVLinks gather no errors"),
            ("Link 3: CRC Errors: 99\n", 100, "pass", "NVLinks gather no errors"),
            ("Link 3: CRC Errors: 100\n", 100, "warn", "GPU 1: NVLink 3 gathers errors"),
            # Shortly after boot a few are no rate.
            ("Link 3: Replay Errors: 4\n", 0.1, "pass", "NVLinks gather no errors"),
            (
                "Link 3: Replay Errors: 4\nLink 3: Recovery Errors: 1\n",
                0.1,
                "warn",
                "GPU 1: NVLink 3 gathers errors",
            ),
            # Blackwell counts what it corrects, and packets.
            ("Link 3: Symbol Errors: 90000\nLink 3: Symbol BER: 1e-12\n", 1, "pass", "NVLinks"),
            ("Link 0: Tx packets: 12345\nLink 0: FEC Errors - 0: 179417\n", 1, "pass", "NVLinks"),
            ("Link 2: Link recovery failed events: 9\n", 1, "warn", "GPU 1: NVLink 2 gathers"),
        ],
    )
    def test_by_the_hour(self, errors: str, hours: float, verdict: str, summary: str) -> None:
        finding = _one("GPU026", nvidia_nvlink_errors=self._said("", errors, hours=hours))
        assert finding.verdict == verdict
        assert finding.summary.startswith(summary)

    def test_a_board_without_nvlink_is_skipped(self) -> None:
        body = "\t Device does not have or support Nvlink\n"
        text = f"up 9.5\n{self._GPU.format(0, 0)}{body}counters 0\nend\n"
        assert _one("GPU026", nvidia_nvlink_errors=text).verdict is Verdict.SKIP

    @pytest.mark.parametrize(
        "words", ["counters 0\nend\n", "Link 3: CRC Errors: x\ncounters 1\nend\n"]
    )
    def test_what_is_not_known_is_not_guessed(self, words: str) -> None:
        text = f"up 9.5\n{self._GPU.format(0, 0)}Something else\n{words}"
        assert _one("GPU026", nvidia_nvlink_errors=text).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("check", "gpus", "verdict", "summary"),
    [
        ("GPU023", (("41", "0"), ("42", "0")), "pass", "AMD GPUs 2 x AMD Instinct MI300X"),
        ("GPU024", (("41", "0"),), "pass", "amdgpu driver 6.10.5"),
        ("GPU025", (("41", "0"), ("85", "0")), "pass", "temperatures are fine"),
        ("GPU025", (("41", "0"), ("86", "0")), "warn", "GPU 1: 86 C"),
        ("GPU025", (("100", "0"), ("80", "0")), "fail", "GPU 0: 100 C, at its slowdown"),
        ("GPU025", (('"N/A"', "0"),), "skip", "no temperature is told"),
        ("GPU028", (("41", "0"), ("42", "3")), "fail", "GPU 1: uncorrected ECC errors"),
        ("GPU028", (("41", "0"), ("42", '"N/A"')), "pass", "no uncorrected memory errors"),
        ("GPU028", (("41", '"N/A"'),), "skip", "no errors are told"),
    ],
)
def test_amd_smi(check: str, gpus: tuple[tuple[str, str], ...], verdict: str, summary: str) -> None:
    finding = _one(check, amd_gpus=amd_smi(*gpus))
    assert finding.verdict == verdict
    assert finding.summary.startswith(summary)


def test_rocm_smi_tells_no_errors() -> None:
    assert _one("GPU028", amd_gpus=_ROCM).verdict is Verdict.SKIP
