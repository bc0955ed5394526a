"""Parsers of what GPUs, the kernel log and the PCI bus say, by recordings of real machines."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterkit.preflight.probes.gpu import (
    amd_gpus,
    dcgm_diag,
    kernel_log,
    nvidia_gpus,
    nvidia_links,
    nvidia_list,
    pci_gpus,
)
from clusterkit.preflight.probes.gpu.kernel_log import (
    XidAction,
    harmless_lines,
    xid_action,
    xid_name,
)
from clusterkit.preflight.probes.gpu.nvidia_links import NvlinkState
from clusterkit.transport.probe import Output, PreflightJob, Probe, Unparsed
from tests.helpers.needs import require
from tests.helpers.paths import TESTS
from tests.helpers.probe_run import SHELLS, run_probe
from tests.helpers.recordings import recording

_DOUBLES = TESTS / "doubles"
_SICK = _DOUBLES / "gpus" / "sick8"

_ROCM = (
    '{"card0": {"Temperature (Sensor edge) (C)": "35.0", "Temperature (Sensor junction) (C)": '
    '"41.0", "Card Series": "AMD Instinct MI300X", "Card Model": "0x74a1"},\n'
    '"card1": {"Temperature (Sensor edge) (C)": "N/A", "Temperature (Sensor junction) (C)": '
    '"91.0", "Card Series": "AMD Instinct MI300X"},\n"system": {"Driver version": "6.8.5"}}\n'
)
_AMD_STATIC = """    {
        "gpu": %d,
        "asic": {"market_name": "AMD Instinct MI300X", "vendor_id": "0x1002"},
        "limit": {"slowdown_hotspot_temperature": {"value": 100, "unit": "C"}},
        "driver": {"name": "amdgpu", "version": "6.10.5"}
    }"""
_AMD_METRIC = """    {
        "gpu": %d,
        "temperature": {"edge": "N/A", "hotspot": {"value": %s, "unit": "C"}},
        "ecc": {"total_correctable_count": 5, "total_uncorrectable_count": %s}
    }"""


def amd_smi(*gpus: tuple[str, str], wrapped: bool = False) -> str:
    """Return what the snippet prints of GPUs by hotspot and uncorrected errors."""
    static = ",\n".join(_AMD_STATIC % k for k in range(len(gpus)))
    metric = ",\n".join(_AMD_METRIC % (k, *gpu) for k, gpu in enumerate(gpus))
    form = '{"gpu_data": [\n%s\n]}\n' if wrapped else "[\n%s\n]\n"
    return f"amd-smi\n{form % static}{form % metric}"


_PROCESSES = "processes\nada 4711, 40211 MiB, python, train.py\n- 12, [N/A], [Not Found]\n"
_PCI = (
    "pci 2\n0000:19:00.0 0x030200 0x10de:0x2330 nvidia- de103023\n"
    "0000:3b:00.0 0x030200 0x10de:0x2330 - ffffffff\n"
)


class TestQueryGpu:
    def test_an_idle_h200(self) -> None:
        facts = nvidia_gpus.parse(recording("csv_h200_idle_full.csv"))
        (gpu,) = facts.gpus
        assert facts.driver == "590.48.01"
        assert (gpu.name, gpu.clock_reasons, gpu.recovery_action) == ("NVIDIA H200", 0x1, "None")
        assert (gpu.remap_pending, gpu.remap_failed) == (False, False)
        assert (gpu.pcie_gen, gpu.pcie_width) == (5, 16)
        assert gpu.retired_double_bit is None  # [N/A] is not a number

    def test_mig_hides_the_row_remapper(self) -> None:
        (gpu,) = nvidia_gpus.parse(recording("csv_h100_mig_full.csv")).gpus
        assert gpu.mig is True
        assert gpu.remap_pending is None
        assert gpu.clock_reasons == 0x1

    def test_a_card_without_ecc(self) -> None:
        (gpu,) = nvidia_gpus.parse(recording("csv_rtx4080s_idle_full.csv")).gpus
        assert (gpu.ecc, gpu.uncorrected, gpu.remap_pending) == (None, None, None)

    def test_old_names_of_columns(self) -> None:
        text = (
            "index, name, pci.bus_id, clocks_throttle_reasons.active\n"
            "0, Tesla V100-SXM2-16GB, 00000000:06:00.0, 0x0000000000000004\n"
        )
        (gpu,) = nvidia_gpus.parse(text).gpus
        assert gpu.clock_reasons == 0x4

    def test_a_section_of_q_below_adds_the_slowdown(self) -> None:
        table = "index, name, pci.bus_id, temperature.gpu\n0, NVIDIA A10, 00000000:07:00.0, 33\n"
        facts = nvidia_gpus.parse(table + recording("smi_q_a10_remap_pending.txt"))
        (gpu,) = facts.gpus
        assert facts.cuda == "12.2"
        assert gpu.margin_c == 98 - 33
        assert gpu.remap_pending is True

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "No devices were found\n",
            "index, name, pci.bus_id\n",
            "index, name, pci.bus_id\n0, NVIDIA H100\n",
            "index, name, pci.bus_id\nx, NVIDIA H100, 00000000:07:00.0\n",
            "index, name, pci.bus_id, temperature.gpu\n0, NVIDIA H100, 00000000:07:00.0, hot\n",
            "index, name, pci.bus_id, temperature.gpu\n0, NVIDIA H100, 00000000:07:00.0, nan\n",
            "index, name, pci.bus_id, mig.mode.current\n0, H100, 00000000:07:00.0, maybe\n",
            "index, name, pci.bus_id\n0, A, 00000000:07:00.0\n0, A, 00000000:08:00.0\n",
        ],
    )
    def test_what_is_no_table_is_unparsed(self, text: str) -> None:
        with pytest.raises(Unparsed):
            nvidia_gpus.parse(text)


class TestQuery:
    def test_eight_4090_support_little(self) -> None:
        facts = nvidia_gpus.parse(recording("smi_q_4090x8.txt"))
        assert len(facts.gpus) == 8
        for gpu in facts.gpus:
            assert (gpu.uncorrected, gpu.retired_double_bit, gpu.fabric_state) == (None, None, None)

    def test_a_remap_is_pending_on_an_a10(self) -> None:
        (gpu,) = nvidia_gpus.parse(recording("smi_q_a10_remap_pending.txt")).gpus
        assert (gpu.remapped_uncorrectable, gpu.remap_pending, gpu.remap_failed) == (4, True, False)

    def test_one_of_eight_h100_at_its_power_cap(self) -> None:
        facts = nvidia_gpus.parse(recording("smi_q_h100x8_one_powercap.txt"))
        capped = [gpu.index for gpu in facts.gpus if (gpu.clock_reasons or 0) & 0x4]
        assert (len(facts.gpus), capped) == (8, [2])
        assert {gpu.fabric_status for gpu in facts.gpus} == {"Success"}

    def test_an_idle_h200(self) -> None:
        facts = nvidia_gpus.parse(recording("smi_q_h200_idle_590.txt"))
        (gpu,) = facts.gpus
        assert (facts.driver, facts.cuda) == ("590.48.01", "13.1")
        assert (gpu.fabric_state, gpu.fabric_status) == ("Completed", "Success")
        assert (gpu.recovery_action, gpu.clock_reasons, gpu.uncorrected) == ("None", 0x1, 0)
        assert gpu.margin_c == 59 + 2

    def test_a_titan_v_without_persistence(self) -> None:
        (gpu,) = nvidia_gpus.parse(recording("smi_q_titanv_560.txt")).gpus
        assert (gpu.persistence, gpu.fabric_state, gpu.margin_c) == (False, None, 97 - 44)

    def test_both_forms_of_the_same_machine_agree(self) -> None:
        for folder in ("healthy8", "sick8"):
            here = _DOUBLES / "gpus" / folder
            table = nvidia_gpus.parse((here / "gpus.csv").read_text(encoding="utf-8"))
            query = nvidia_gpus.parse((here / "q.txt").read_text(encoding="utf-8"))
            for a, b in zip(table.gpus, query.gpus, strict=True):
                assert (a.clock_reasons, a.remap_pending, a.uncorrected, a.temperature_c) == (
                    b.clock_reasons,
                    b.remap_pending,
                    b.uncorrected,
                    b.temperature_c,
                )

    def test_a_text_that_was_cut_off_is_unparsed(self) -> None:
        whole = (_SICK / "q.txt").read_text(encoding="utf-8")
        with pytest.raises(Unparsed, match="attached"):
            nvidia_gpus.parse(whole[: len(whole) // 2])


class TestList:
    def test_mig_devices_are_no_gpus(self) -> None:
        (gpu,) = nvidia_list.read_list(recording("list_h100_mig.txt")).gpus
        assert gpu.mig == ("3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb")

    def test_a_driver_that_does_not_run(self) -> None:
        said = "exit 9\nNVIDIA-SMI has failed because it couldn't communicate with the driver.\n"
        facts = nvidia_list.parse(said)
        assert (facts.exit_code, facts.gpus) == (9, ())
        assert facts.problems[0].startswith("NVIDIA-SMI has failed")

    @pytest.mark.parametrize("text", ["", "exit x\n", "exit 0\n", "exit 0\nGPU 0: half of a li\n"])
    def test_what_is_no_list_is_unparsed(self, text: str) -> None:
        with pytest.raises(Unparsed):
            nvidia_list.parse(text)


class TestNvlink:
    def test_eight_a100(self) -> None:
        gpus = nvidia_links.parse_nvlink(recording("nvlink_s_a100x8.txt"))
        assert [gpu.links for gpu in gpus] == [12] * 8
        assert {speed for gpu in gpus for speed in gpu.gb_s} == {25.0}
        assert not any(gpu.inactive for gpu in gpus)

    def test_one_h100(self) -> None:
        (gpu,) = nvidia_links.parse_nvlink(recording("nvlink_s_h100_18.txt"))
        assert (gpu.links, gpu.inactive, set(gpu.gb_s)) == (18, (), {26.562})

    def test_all_inactive_in_both_spellings(self) -> None:
        (a100,) = nvidia_links.parse_nvlink(recording("nvlink_s_a100_all_inactive.txt"))
        (rtx,) = nvidia_links.parse_nvlink(recording("nvlink_s_inActive_610.txt"))
        assert (a100.index, a100.state) == (6, NvlinkState.ALL_INACTIVE)
        assert rtx.state is NvlinkState.ALL_INACTIVE

    def test_mig_mode_does_not_tell(self) -> None:
        (gpu,) = nvidia_links.parse_nvlink(recording("nvlink_s_h100_mig_unsupported.txt"))
        assert (gpu.state, gpu.links) == (NvlinkState.MIG, 0)

    def test_one_link_down(self) -> None:
        gpus = nvidia_links.parse_nvlink((_SICK / "nvlink.txt").read_text(encoding="utf-8"))
        assert [(gpu.index, gpu.inactive) for gpu in gpus if gpu.inactive] == [(1, (7,))]

    @pytest.mark.parametrize("text", ["", "Link 0: 25 GB/s\n", "GPU 0: A (UUID: GPU-0)\n Link ?\n"])
    def test_what_is_no_status_is_unparsed(self, text: str) -> None:
        with pytest.raises(Unparsed):
            nvidia_links.parse_nvlink(text)


class TestKernelLog:
    def test_one_xid_119_however_often(self) -> None:
        log = kernel_log.read_kernel_log(recording("dmesg_xid119_h100.txt"))
        (xid,) = log.xids
        assert (xid.code, xid.bus, xid.count) == (119, "0000:9b:00", 5)
        assert xid_action(xid) is XidAction.RESET

    def test_xid_63_is_no_reason_to_replace_the_gpu(self) -> None:
        (xid,) = kernel_log.read_kernel_log(recording("dmesg_xid63_line.txt")).xids
        assert (xid.code, xid.bus) == (63, "0000:10:1c")
        assert "reset gpu" in xid.detail
        assert xid_action(xid) is XidAction.ACTIVATE

    @pytest.mark.parametrize(
        ("line", "action"),
        [
            ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.", "REBOOT"),
            ("NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 13, pid='<unknown>', SM Warp", "NOTHING"),
            ("NVRM: Xid (0000:3b:00): 31, Ch 00000010", "NOTHING"),
            ("NVRM: Xid (PCI:0000:3b:00): 149, NETIR_LINK_EVT Nonfatal XC0", "WATCH"),
            ("NVRM: Xid (PCI:0000:3b:00): 149, NETIR_LINK_EVT Fatal XC0", "RESET"),
            (
                "NVRM: Xid (PCI:0000:3b:00): 154, changed from 0x0 (None) to 0x2 (Node Reboot)",
                "REBOOT",
            ),
            (
                "NVRM: Xid (PCI:0000:3b:00): 154, changed from 0x1 (GPU Reset) to 0x0 (None)",
                "NOTHING",
            ),
        ],
    )
    def test_what_an_xid_asks_for(self, line: str, action: str) -> None:
        (xid,) = kernel_log.parse(f"log dmesg\n[1.5] {line}\n").xids
        assert xid_action(xid) is XidAction[action]

    @pytest.mark.parametrize(
        ("codes", "action"),
        [
            # NVIDIA's catalogue: RESTART_APP and IGNORE
            (
                (8, 11, 13, 25, 31, 32, 39, 60, 68, 72, 77, 80, 89, 94, 105, 126, 135, 139),
                "NOTHING",
            ),
            (
                (14, 37, 38, 43, 44, 66, 67, 92, 93, 106, 108, 121, 137, 141, 152, 157, 161),
                "NOTHING",
            ),
            ((46, 48, 62, 64, 74, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158), "RESET"),
            ((79, 151), "REBOOT"),
            ((54,), "REPAIR"),
            ((78,), "UPDATE"),
            ((142,), "REPORT"),
            ((1, 56, 61, 159, 167, 171, 172, 999, 99999), "WATCH"),
        ],
    )
    def test_the_catalogue(self, codes: tuple[int, ...], action: str) -> None:
        lines = "".join(f"NVRM: Xid (PCI:0000:3b:00): {code}, pid=1, text\n" for code in codes)
        found = {x.code: xid_action(x) for x in kernel_log.read_kernel_log(lines).xids}
        assert found == dict.fromkeys(codes, XidAction[action])
        # Diagnose goes by the same table.
        harmless = re.compile(harmless_lines())
        matched = [bool(harmless.search(line)) for line in lines.splitlines()]
        assert set(matched) == {action == "NOTHING"}

    @pytest.mark.parametrize(
        ("line", "harmless"),
        [
            ("63, pid=1, Row Remapper: New row marked for remapping", True),
            ("149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 03", True),
            ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 03", False),
            ("154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", True),
        ],
    )
    def test_what_diagnose_leaves_alone(self, line: str, harmless: bool) -> None:
        text = f"NVRM: Xid (PCI:0000:3b:00): {line}"
        assert bool(re.search(harmless_lines(), text)) is harmless

    @pytest.mark.parametrize(
        "text",
        [
            "[9.1] NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
            "[9.1] NVRM: GPU 3b:00.0: GPU has fallen off the bus.",
            "NVRM: GPU at 0000:3b:00.0 has fallen off the bus.",
            (
                "Jun 01 12:34:56 n1 kernel: NVRM: The NVIDIA GPU 0000:3b:00.0 (PCI ID: 10de:1e07)\n"
                "Jun 01 12:34:56 n1 kernel: NVRM: system has fallen off the bus and is not"
            ),
            (
                "NVRM: The NVIDIA GPU 0000:3b:00.0\nNVRM: (PCI ID: 10de:2330) installed in this\n"
                "NVRM: fallen off the bus and is not responding to commands."
            ),
            "NVRM: The NVIDIA GPU 0000:3b:00.0 installed in this system has fallen off the bus",
            (
                "[9.1] nvidia 0000:3b:00.0: Unable to change power state from D3cold to D0, device "
                "inaccessible"
            ),
        ],
    )
    def test_a_gpu_is_lost_without_an_xid(self, text: str) -> None:
        (xid,) = kernel_log.read_kernel_log(text).xids
        assert (xid.bus, xid_name(xid), xid_action(xid)) == (
            "0000:3b:00", "fallen off the bus", XidAction.REBOOT
        )  # fmt: skip
        # With an Xid 79 of the same GPU it is said once.
        line = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
        (both,) = kernel_log.read_kernel_log(line + text).xids
        assert xid_name(both) == "Xid 79 (fallen off the bus)"

    def test_a_gpu_that_does_not_initialise(self) -> None:
        text = "NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x24:0xffff:1211)"
        (xid,) = kernel_log.read_kernel_log(text).xids
        assert (xid.bus, xid_name(xid)) == ("0000:3b:00", "the GPU did not initialise")

    def test_notes_of_others(self) -> None:
        log = kernel_log.read_kernel_log(
            "pt_main_thread[77]: segfault at 7f ip 00 sp 00 error 4 in libnccl.so.2[7f+d3]\n"
            "python[9]: segfault at 7f ip 00 sp 00 error 4 in libcuda.so.1[7f+d3]\n"
            "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping\n"
            "n1 systemd-networkd[99]: ib6: Lost carrier\n"
            "n1 systemd-networkd[99]: ib6: Gained carrier\n"
            "n1 systemd-networkd[99]: veth12: Lost carrier\n"
        )
        assert (log.xids, dict(log.crashes), log.peermem, dict(log.flaps)) == (
            (), {"pt_main_thread": 1}, 1, {"ib6": 1}
        )  # fmt: skip

    def _asked(self, folder: Path, tools: Mapping[str, str]) -> Output:
        """Return what the snippet prints where each tool prints one of the files of `folder`."""
        for tool, file in tools.items():
            (folder / tool).write_text(f"#!/bin/sh\ncat {folder}/{file}\n", encoding="utf-8")
            (folder / tool).chmod(0o755)
        path = {"PATH": f"{folder}:{os.environ['PATH']}", "LC_ALL": "C"}
        return run_probe(kernel_log.PROBE, PreflightJob(hosts=("n1",)), env=path)

    def test_the_snippet_keeps_what_is_read(self, tmp_path: Path) -> None:
        kept = (
            "NVRM: Xid (PCI:0000:3b:00): 79\nNVRM: GPU 3c:00.0: GPU has fallen off the bus.\n"
            "NVRM: The NVIDIA GPU 0000:18:00.0\nNVRM: fallen off the bus and is not responding\n"
            "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal\n"
        )
        (tmp_path / "log").write_text("[0.1] Linux\n" + kept, encoding="utf-8")
        (tmp_path / "net").write_text("ib0: Lost carrier\neth7: Lost carrier\n", encoding="utf-8")
        done = self._asked(tmp_path, {"dmesg": "log", "journalctl": "net", "nvidia-smi": "log"})
        assert done.stdout == f"log dmesg\n{kept}ib0: Lost carrier\n"
        assert (done.exit_code, done.stderr) == (0, "")

    def test_of_a_long_log_the_snippet_keeps_the_newest_errors(self, tmp_path: Path) -> None:
        lines = [f"[{second}.0] NVRM: Xid (PCI:0000:3b:00): 13, pid=1" for second in range(2000)]
        lines.append("[2000.0] NVRM: Xid (PCI:0000:3c:00): 79, GPU has fallen off the bus.")
        (tmp_path / "log").write_text("\n".join(lines), encoding="utf-8")
        done = self._asked(tmp_path, {"dmesg": "log", "nvidia-smi": "log"})
        assert done.exit_code == 0
        assert {xid.code for xid in kernel_log.parse(done.stdout).xids} == {13, 79}

    def test_a_fatal_switch_stays_fatal(self) -> None:
        head = "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, "
        (sxid,) = kernel_log.read_kernel_log(
            f"{head}Fatal, Link 30 LTSSM Fault Up\n{head}Severity 1 Engine instance 30\n"
            f"{head}Data {{0x50610002, 0x10100030}}\n"
        ).sxids
        assert (sxid.fatal, sxid.count, sxid.detail) == (True, 1, "Fatal, Link 30 LTSSM Fault Up")

    def test_switches_have_codes_of_their_own(self) -> None:
        line = "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"
        log = kernel_log.parse(f"log journalctl\n{line}\n")
        assert log.xids == ()
        assert [sxid.code for sxid in log.sxids] == [20034]

    @pytest.mark.parametrize("text", ["", "dmesg\n", "log dmesg\nNVRM: Xid (PCI:0000:3b\n"])
    def test_what_is_no_log_is_unparsed(self, text: str) -> None:
        with pytest.raises(Unparsed):
            kernel_log.parse(text)


class TestPci:
    def test_lspci_of_a_machine_that_somebody_looked_at_by_hand(self) -> None:
        text = recording("lspci_gb200.txt")
        facts = pci_gpus.parse(text)
        assert [(gpu.address, gpu.gone) for gpu in facts.gpus] == [
            (address, False)
            for address in ("0008:01:00.0", "0009:01:00.0", "0018:01:00.0", "0019:01:00.0")
        ]
        dead = "3b:00.0 3D controller: NVIDIA Corporation GA100 [A100 SXM4 80GB] (rev ff)\n"
        assert [gpu.gone for gpu in pci_gpus.parse(dead).gpus] == [True]

    def test_a_gpu_that_reads_as_ones_is_gone(self) -> None:
        facts = pci_gpus.parse(_PCI)
        assert [(g.address, g.driver, g.gone) for g in facts.gpus] == [
            ("0000:19:00.0", "nvidia", False),
            ("0000:3b:00.0", "", True),
        ]


class TestDcgm:
    def test_level_1_of_a_gb10_fails_by_a_setting(self) -> None:
        diag = dcgm_diag.parse(recording("dcgmi_diag_gb10_l1.json"))
        (test,) = diag.tests
        assert (test.name, test.result) == ("software", "Fail")
        assert test.configuration
        assert "Persistence mode for GPU 0 is disabled" in test.warnings[0]

    def test_level_2_of_a_gb10(self) -> None:
        diag = dcgm_diag.parse(recording("dcgmi_diag_gb10_l2_allowed.json"))
        assert [test.result for test in diag.tests] == ["Fail", "Pass", "Pass"]

    def test_a_table_without_its_last_rule(self) -> None:
        diag = dcgm_diag.parse(recording("dcgmi_diag_r1_pass_tail_cut.txt"))
        assert {t.result for t in diag.tests} == {"Pass"}
        assert len(diag.tests) == 9

    def test_level_2_of_a_p4de(self) -> None:
        diag = dcgm_diag.parse(recording("dcgmi_diag_r2_pass.txt"))
        assert {test.result for test in diag.tests} == {"Pass"}

    def test_it_runs_only_where_it_was_asked_for(self) -> None:
        assert dcgm_diag.PROBE.snippet(PreflightJob(hosts=("a",))) is None
        asked = PreflightJob(hosts=("a",), env={"CLUSTERKIT_DCGM_DIAG": "1"})
        assert "dcgmi diag" in (dcgm_diag.PROBE.snippet(asked) or "")


def test_processes_keep_commas_in_their_names() -> None:
    first, second = nvidia_list.parse_processes(_PROCESSES)
    assert (first.pid, first.user, first.name) == (4711, "ada", "python, train.py")
    assert (second.user, second.memory) == (None, None)


def test_amd_gpus() -> None:
    facts = amd_gpus.parse("WARNING: AMD GPU device(s) is/are in a low-power state\n" + _ROCM)
    assert facts.driver == "6.8.5"
    assert [(gpu.name, gpu.junction_c) for gpu in facts.gpus] == [
        ("AMD Instinct MI300X", 41.0),
        ("AMD Instinct MI300X", 91.0),
    ]


@pytest.mark.parametrize("wrapped", [False, True])
def test_amd_smi_before_and_since_rocm_7(wrapped: bool) -> None:
    facts = amd_gpus.parse(amd_smi(("41", "0"), ('"N/A"', '"N/A"'), wrapped=wrapped))
    assert facts.driver == "6.10.5"
    first, second = facts.gpus
    assert (first.name, first.junction_c, first.slowdown_c, first.uncorrected) == (
        "AMD Instinct MI300X",
        41.0,
        100.0,
        0,
    )
    assert (second.junction_c, second.uncorrected) == (None, None)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("works", [True, False])
def test_amd_smi_goes_first_and_rocm_smi_second(
    tmp_path: Path, shell: tuple[str, ...], works: bool
) -> None:
    """Doubles of both tools, as no AMD GPU is here."""
    _, static, metric = amd_smi(("41", "0")).split("[")
    for verb, text in (("static", static), ("metric", metric)):
        (tmp_path / verb).write_text(f"[{text}", encoding="utf-8")
    (tmp_path / "rocm").write_text(_ROCM.replace("\n", " "), encoding="utf-8")
    for tool, body in {
        "amd-smi": f'cat "{tmp_path}/$1"; exit {0 if works else 1}',
        "rocm-smi": f"cat {tmp_path}/rocm",
    }.items():
        (tmp_path / tool).write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        (tmp_path / tool).chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = run_probe(amd_gpus.PROBE, PreflightJob(hosts=("a",)), shell=shell, env=env)
    assert done.exit_code == 0, done
    facts = amd_gpus.parse(done.stdout)
    assert (facts.driver, len(facts.gpus)) == (("6.10.5", 1) if works else ("6.8.5", 2))


_PROBES = (
    nvidia_gpus.PROBE,
    nvidia_list.PROBE,
    nvidia_links.NVLINK,
    nvidia_links.NVLINK_ERRORS,
    nvidia_list.PROCESSES,
    kernel_log.PROBE,
    pci_gpus.PROBE,
    amd_gpus.PROBE,
)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("probe", _PROBES, ids=lambda probe: probe.name)
def test_a_machine_without_gpus_is_skipped(probe: Any, shell: tuple[str, ...]) -> None:
    if Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi") or shutil.which("rocm-smi"):
        pytest.skip("this machine has a GPU")
    done = run_probe(probe, PreflightJob(hosts=("a",)), shell=shell)
    assert done.exit_code == 77, done
    assert done.stdout.strip()
    assert not done.stderr


def _pci_bus(folder: Path) -> str:
    """Make a PCI bus of a GPU that answers, one that fell off it, and a network card."""
    for address, vendor, kind, config in (
        ("0000:19:00.0", "0x10de", "0x030200", b"\xde\x10\x30\x23"),
        ("0000:3b:00.0", "0x10de", "0x030200", b"\xff\xff\xff\xff"),
        ("0000:5e:00.0", "0x15b3", "0x020700", b"\xb3\x15\x21\x10"),
    ):
        device = folder / address
        device.mkdir()
        for name, text in (("vendor", vendor), ("class", kind), ("device", "0x2330")):
            (device / name).write_text(text + "\n", encoding="ascii")
        (device / "config").write_bytes(config)
    return str(folder)


def _on_bus(probe: Probe[Any], folder: Path, shell: Sequence[str]) -> Output:
    """Return what a probe prints where that bus is the machine's."""
    job = PreflightJob(hosts=("a",))
    snippet = str(probe.snippet(job)).replace("/sys/bus/pci/devices", _pci_bus(folder))
    return run_probe(replace(probe, command=snippet), job, shell=shell)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_gpu_on_the_bus_without_nvidia_smi_is_not_passed_over(
    tmp_path: Path, shell: tuple[str, ...]
) -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has nvidia-smi")
    done = _on_bus(nvidia_list.PROBE, tmp_path, shell)
    assert (done.exit_code, done.stdout) == (127, "")
    assert "not on PATH" in done.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_the_bus_of_a_machine(tmp_path: Path, shell: tuple[str, ...]) -> None:
    facts = pci_gpus.parse(_on_bus(pci_gpus.PROBE, tmp_path, shell).stdout)
    assert [(gpu.address, gpu.gone) for gpu in facts.gpus] == [
        ("0000:19:00.0", False),
        ("0000:3b:00.0", True),
    ]


@pytest.mark.parametrize("probe", _PROBES, ids=lambda probe: probe.name)
def test_a_job_without_gpus_asks_nothing(probe: Any) -> None:
    done = run_probe(probe, PreflightJob(hosts=("a",), uses_gpus=False))
    assert (done.exit_code, done.stdout) == (77, "the job uses no GPU\n")


def test_snippets_and_doubles_are_clean_posix_sh(tmp_path: Path) -> None:
    require("shellcheck")
    job = PreflightJob(hosts=("a",), env={"CLUSTERKIT_DCGM_DIAG": "1"})
    scripts = [_DOUBLES / "nvidia-smi", _DOUBLES / "dmesg"]
    for probe in (*_PROBES, dcgm_diag.PROBE):
        script = tmp_path / probe.name
        script.write_text(f"#!/bin/sh\n{probe.snippet(job)}", encoding="utf-8")
        scripts.append(script)
    done = subprocess.run(
        ["shellcheck", "-s", "sh", "-e", "SC3043", "-S", "warning", *scripts],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_one_gpu_that_fails_is_a_failure_whatever_stands_above() -> None:
    text = """\
| Diagnostic                | Result                                         |
|-----  Deployment  --------+------------------------------------------------|
| software                  | Pass                                           |
|                           | GPU0: Pass                                     |
|                           | GPU1: Fail                                     |
"""
    (test,) = dcgm_diag.parse(text).tests
    assert (test.name, test.result, test.entity) == ("software", "Fail", "GPU1")
