"""Probes of RDMA devices, GPUDirect and interfaces: recordings, and a sysfs of our own."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterkit.preflight.probes.gpu import nvidia_links, pci_gpus
from clusterkit.preflight.probes.net import interfaces, rdma_ports
from clusterkit.preflight.probes.net.rdma_ports import Rdma, number, physical, rate, state
from clusterkit.transport.probe import NOT_APPLICABLE, PreflightJob, Probe, Unparsed
from clusterkit.transport.script import compose
from tests.helpers.answers import read_answer
from tests.helpers.mangling import mangled
from tests.helpers.needs import require
from tests.helpers.recordings import recording

SHELLS = (("sh",), ("dash",), ("busybox", "sh"), ("bash", "--posix"))
JOB = PreflightJob(hosts=("n1", "n2"))
PROBES: tuple[Probe[object], ...] = (
    rdma_ports.PROBE,
    rdma_ports.ERROR_COUNTERS,
    pci_gpus.GPUDIRECT,
    interfaces.PROBE,
    nvidia_links.TOPO,
)
TOOLS = (
    "ibstat_a100_9ca.txt",
    "ibstat_h100_2of8_down.txt",
    "ibstat_h100_3eth_down.txt",
    "ibstat_h100_roce_12ca.txt",
    "ibstatus_a100_9dev.txt",
    "ibv_devinfo_mlx4_port2_down.txt",
    "rdma_link_bf3_half_down.txt",
)


def read(name: str) -> Rdma:
    return rdma_ports.parse(recording(name))


def test_ibstat_of_nine() -> None:
    rdma = read("ibstat_a100_9ca.txt")
    ports = rdma.ports
    assert len(ports) == 9
    assert {(port.state, port.physical, port.rate_gbps) for port in ports} == {
        ("active", "link up", 200)
    }
    layers = [(port.layer, port.sm_lid) for port in ports]
    assert layers == [("Ethernet", 0)] + [("InfiniBand", 83)] * 8
    assert {device.model for device in rdma.devices} == {"MT4126"}
    # One chip name, two generations of firmware: two kinds of board.
    assert [device.family for device in rdma.devices] == ["MT4126/22"] + ["MT4126/28"] * 8


def test_ibstat_with_ports_down() -> None:
    ports = read("ibstat_h100_2of8_down.txt").ports
    assert len(ports) == 12
    assert sum(port.active for port in ports) == 10
    down = [(port.name, port.physical) for port in ports if not port.active]
    assert down == [("mlx5_11/1", "disabled"), ("mlx5_5/1", "disabled")]
    ports = read("ibstat_h100_3eth_down.txt").ports
    fast = [port for port in ports if port.layer == "InfiniBand"]
    assert {(port.active, port.rate_gbps) for port in fast} == {(True, 400)}
    assert len(fast) == 8
    assert [port.active for port in ports if port.layer == "Ethernet"].count(False) == 3


def test_ibstat_of_roce() -> None:
    ports = read("ibstat_h100_roce_12ca.txt").ports
    assert {(port.state, port.layer, port.sm_lid) for port in ports} == {("active", "Ethernet", 0)}
    assert sorted(port.rate_gbps or 0 for port in ports) == [100] * 4 + [400] * 8


def test_ibstatus() -> None:
    ports = read("ibstatus_a100_9dev.txt").ports
    assert len(ports) == 9
    assert {(port.state, port.physical, port.width) for port in ports} == {("active", "link up", 4)}
    assert [port.rate_gbps for port in ports] == [200] * 8 + [40]
    assert [port.sm_lid for port in ports] == [1] * 8 + [0]
    assert ports[0].lid == 0x33BF


def test_ibv_devinfo() -> None:
    rdma = read("ibv_devinfo_mlx4_port2_down.txt")
    (device,) = rdma.devices
    assert (device.name, device.firmware, device.board) == ("mlx4_0", "2.7.000", "MT_0D80120009")
    assert [(p.number, p.state, p.sm_lid) for p in device.ports] == [
        (1, "active", 4),
        (2, "down", 0),
    ]


def test_rdma_link() -> None:
    ports = read("rdma_link_bf3_half_down.txt").ports
    assert [(port.name, port.state, port.physical) for port in ports] == [
        ("mlx5_0/1", "down", "disabled"),
        ("mlx5_1/1", "active", "link up"),
        ("mlx5_2/1", "down", "disabled"),
        ("mlx5_3/1", "active", "link up"),
    ]


def test_rdma_link_of_old_iproute2() -> None:
    text = (
        "0/1: mlx5_bond_0/1: state ACTIVE physical_state LINK_UP netdev bond0\n"
        "1/1: mlx5_0/1: subnet_prefix fe80:0000:0000:0000 lid 13 sm_lid 49399 lmc 0"
        " state ACTIVE physical_state LINK_UP \n"
    )
    bond, infiniband = rdma_ports.parse(text).ports
    assert (bond.name, bond.layer) == ("mlx5_bond_0/1", None)
    assert (infiniband.layer, infiniband.lid, infiniband.sm_lid) == ("InfiniBand", 13, 49399)


def test_ibstat_that_panics() -> None:
    text = recording("ibstat_h100_3eth_down.txt")
    text += "\nibpanic: [1234] main: stat of IB device 'mlx5_99' failed: (No such file)\n"
    rdma = rdma_ports.parse(text)
    assert len(rdma.devices) == 13
    assert [device.name for device in rdma.devices if not device.ports] == ["mlx5_99"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4: ACTIVE", "active"),
        ("1: DOWN", "down"),
        ("2: INIT", "init"),
        ("Initializing", "init"),
        ("PORT_ACTIVE (4)", "active"),
        ("PORT_INITIALIZE (2)", "init"),
        ("5: ACTIVE_DEFER", "active"),
        ("ARMED", "armed"),
    ],
)
def test_states(text: str, expected: str) -> None:
    assert state(text) == expected


def test_values_that_are_not_known() -> None:
    assert physical("<unknown>") is None
    assert physical("2: Polling") == "polling"
    assert physical("PORT_CONFIGURATION_TRAINING") == "training"
    assert rate("2.5 Gb/sec (1X SDR)") == (2.5, 1)
    assert rate("800 Gb/sec (4X XDR)") == (800, 4)
    assert rate("") == (None, None)
    assert number("0x53") == 83
    for broken in (lambda: state("9: WHAT"), lambda: rate("fast"), lambda: number("1.5")):
        with pytest.raises(Unparsed):
            broken()


@given(data=st.data())
@pytest.mark.parametrize("name", TOOLS)
def test_mangled_tools_are_unparsed_or_sound(name: str, data: st.DataObject) -> None:
    text = data.draw(mangled(recording(name)))
    try:
        rdma = rdma_ports.parse(text)
    except Unparsed:
        return
    assert rdma.devices
    assert all(port.state in {"nop", "down", "init", "armed", "active"} for port in rdma.ports)


def port_files(**changes: str) -> dict[str, str]:
    files = {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate": "400 Gb/sec (4X NDR)",
        "link_layer": "InfiniBand",
        "lid": "0x55a",
        "sm_lid": "0x53",
        "counters/link_downed": "0",
        "counters/symbol_error": "7",
    }
    return {f"ports/1/{name}": text for name, text in {**files, **changes}.items()}


def device(root: Path, name: str, files: Mapping[str, str]) -> None:
    for path, text in {"fw_ver": "28.39.1002", "board_id": "MT_0838", **files}.items():
        file = root / name / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n" if text else "")


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Return an infiniband class folder with an InfiniBand and a RoCE device."""
    zero = "0000:0000:0000:0000:0000:0000:0000:0000"
    device(tmp_path, "mlx5_0", {"hca_type": "MT4129", **port_files()})
    gids = {
        "gids/0": "fe80:0000:0000:0000:a288:c2ff:fead:eab8",
        "gid_attrs/types/0": "IB/RoCE v1",
        "gid_attrs/ndevs/0": "eth2",
        "gids/1": zero,
        "gid_attrs/types/1": "",
        "gids/3": "0000:0000:0000:0000:0000:ffff:0a00:0001",
        "gid_attrs/types/3": "RoCE v2",
        "gid_attrs/ndevs/3": "eth2",
    }
    device(tmp_path, "mlx5_1", port_files(link_layer="Ethernet", sm_lid="0x0", lid="0x0", **gids))
    return tmp_path


def snippet(probe: Probe[object], root: Path | None = None) -> str:
    text = probe.snippet(JOB)
    assert text is not None
    return text if root is None else text.replace("/sys/class/infiniband", str(root))


def run(shell: tuple[str, ...], text: str) -> subprocess.CompletedProcess[str]:
    require(shell[0])
    return subprocess.run([*shell, "-c", text], capture_output=True, text=True, check=False)


DEVINFO = (
    "hca_id:\tmlx5_0\n\ttransport:\t\t\tInfiniBand (0)\n\tfw_ver:\t\t\t\t28.41.1000\n"
    "\tvendor_part_id:\t\t\t4129\n\tboard_id:\t\t\tDEL0000000036\n\tphys_port_cnt:\t\t\t1\n"
    "\t\tport:\t1\n\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n\t\t\tsm_lid:\t\t\t5790\n"
    "\t\t\tport_lid:\t\t3697\n\t\t\tlink_layer:\t\tInfiniBand\n\n"
)
VERBOSE = (
    "\tdevice_cap_flags:\t\t0xe97e1c36\n\t\t\t\t\tBAD_PKEY_CNTR\n\t\t\t\t\tXRC\n"
    "\tphys_port_cnt:\t\t\t1\n"
)


@pytest.mark.parametrize(
    "text",
    [
        DEVINFO,
        DEVINFO.replace("\tphys_port_cnt:\t\t\t1\n", VERBOSE),
        DEVINFO.replace("\t\tport:", "\tDevice ports:\n\t\tport:"),
        DEVINFO.replace("\t\tInfiniBand\n\n", "\t\tIB\n\n\t\t\tGID[  0]:\t\tfe80:0000::1\n"),
        "root@n1:~# ibv_devinfo\n" + DEVINFO + "root@n1:~# \n",
    ],
)
def test_ibv_devinfo_as_it_prints(text: str) -> None:
    (device,) = rdma_ports.parse(text).devices
    assert (device.name, device.family) == ("mlx5_0", "DEL0000000036/28")
    (port,) = device.ports
    assert (port.active, port.layer, port.lid, port.sm_lid) == (True, "InfiniBand", 3697, 5790)


def test_ibv_devinfo_of_a_machine_without_rdma() -> None:
    assert rdma_ports.parse("No IB devices found\n").devices == ()


def test_warnings_and_prompts_around_ibstat() -> None:
    text = (
        "ibwarn: [168988] umad_init: umad_init\n[ada@n1 ~]$ ibstat\nCA 'mlx4_0'\n\tPort 1:\n"
        "\t\tState: Down\n\t\tPhysical state: Disabled\n[ada@n1 ~]$ \n"
    )
    (port,) = rdma_ports.parse(text).ports
    assert (port.name, port.state, port.physical) == ("mlx4_0/1", "down", "disabled")


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
def test_ports_of_sysfs(shell: tuple[str, ...], sysfs: Path) -> None:
    done = run(shell, snippet(rdma_ports.PROBE, sysfs))
    assert (done.returncode, done.stderr) == (0, "")
    rdma = rdma_ports.parse(done.stdout)
    first, second = rdma.devices
    assert (first.model, first.family, second.model) == ("MT4129", "MT_0838/28", None)
    (port,) = first.ports
    assert (port.state, port.physical, port.rate_gbps, port.width) == ("active", "link up", 400, 4)
    assert (port.layer, port.lid, port.sm_lid, port.gids) == ("InfiniBand", 0x55A, 83, ())
    (port,) = second.ports
    assert [(gid.index, gid.kind) for gid in port.gids] == [(0, "IB/RoCE v1"), (3, "RoCE v2")]
    assert port.gids[1].value.endswith("ffff:0a00:0001")


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
def test_counters_of_sysfs(shell: tuple[str, ...], sysfs: Path) -> None:
    # The error arrives between the two readings.
    text = snippet(rdma_ports.ERROR_COUNTERS, sysfs).replace(
        "sleep 1", f"echo 9 >{sysfs}/mlx5_1/ports/1/counters/symbol_error"
    )
    done = run(shell, text)
    assert (done.returncode, done.stderr) == (0, "")
    first, second = rdma_ports.parse_counters(done.stdout).ports
    assert (first.port, dict(first.total), dict(first.rising)) == (
        "mlx5_0/1",
        {"symbol_error": 7},
        {},
    )
    assert dict(second.rising) == {"symbol_error": 2}


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
@pytest.mark.parametrize(
    "probe",
    [rdma_ports.PROBE, rdma_ports.ERROR_COUNTERS, pci_gpus.GPUDIRECT],
    ids=lambda probe: probe.name,
)
def test_no_rdma_is_not_applicable(
    shell: tuple[str, ...], probe: Probe[object], tmp_path: Path
) -> None:
    for root in (tmp_path, tmp_path / "absent"):
        done = run(shell, snippet(probe, root))
        assert (done.returncode, done.stdout) == (NOT_APPLICABLE, "no RDMA device\n")


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
def test_interfaces_of_this_machine(shell: tuple[str, ...]) -> None:
    done = run(shell, snippet(interfaces.PROBE))
    assert (done.returncode, done.stderr) == (0, "")
    here = Path("/sys/class/net")
    for interface in interfaces.parse(done.stdout):
        assert interface.mtu == int((here / interface.name / "mtu").read_text())
        assert interface.name != "lo"


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
def test_interfaces_that_count(shell: tuple[str, ...], tmp_path: Path) -> None:
    for name, state_, speed in (
        ("ib0", "up", "400000"),
        ("eth0", "up", "-1"),
        ("eth1", "down", ""),
        ("docker0", "up", "10000"),
    ):
        device(tmp_path, name, {"operstate": state_, "mtu": "9000", "speed": speed,
                                "type": "32" if name == "ib0" else "1"})  # fmt: skip
    text = snippet(interfaces.PROBE).replace("/sys/class/net", str(tmp_path))
    found = interfaces.parse(run(shell, text).stdout)
    assert [(i.name, i.speed_mbps) for i in found] == [("eth0", None), ("ib0", 400000)]


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
def test_gpudirect_of_a_machine(shell: tuple[str, ...], sysfs: Path) -> None:
    (sysfs.parent / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n"
        "GCC version:  gcc version 12.3.0\n"
    )
    text = snippet(pci_gpus.GPUDIRECT, sysfs)
    text = text.replace("/proc/driver/nvidia/version", str(sysfs.parent / "version"))
    facts = pci_gpus.parse_gpudirect(run(shell, text).stdout)
    assert (facts.open_driver, facts.peermem) == (True, None)
    assert facts.kernel >= (2, 6)


@pytest.mark.parametrize("shell", SHELLS, ids=lambda shell: shell[0])
def test_efa_of_a_machine(shell: tuple[str, ...], tmp_path: Path) -> None:
    cards = {"0": ("0x1d0f", "0xefa1"), "1": ("0x1d0f", "0xefa1"), "2": ("0x1d0f", "0xec20")}
    for name, (vendor, kind) in cards.items():
        card = tmp_path / "pci" / name
        card.mkdir(parents=True)
        (card / "vendor").write_text(f"{vendor}\n")
        (card / "device").write_text(f"{kind}\n")
    (tmp_path / "pci" / "no-card").mkdir()
    for name, vendor in (("rdmap0s0", "0x1d0f"), ("mlx5_0", "0x15b3")):
        (tmp_path / "ib" / name / "device").mkdir(parents=True)
        (tmp_path / "ib" / name / "device" / "vendor").write_text(f"{vendor}\n")
    for name in ("uverbs0", "uverbs1"):
        (tmp_path / name).touch()
    text = snippet(rdma_ports.EFA)
    for path, there in [
        ("/sys/bus/pci/devices", "pci"), ("/sys/class/infiniband", "ib"), ("/dev/infiniband/", ""),
        ("/opt/amazon/efa/bin", "bin"),
    ]:  # fmt: skip
        text = text.replace(path, f"{tmp_path}/{there}")
    without = run(shell, text)
    assert without.stderr == ""
    found = rdma_ports.parse_efa(without.stdout)
    assert (found.pci, found.bound, found.usable, found.provider) == (2, 1, 2, None)
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "fi_info"
    tool.write_text('#!/bin/sh\n[ "$*" = "-p efa -t FI_EP_RDM" ]\n')
    tool.chmod(0o755)
    assert rdma_ports.parse_efa(run(shell, text).stdout).provider is True
    tool.write_text("#!/bin/sh\nexit 61\n")
    assert rdma_ports.parse_efa(run(shell, text).stdout).provider is False
    assert run(shell, text.replace("0xefa", "0xfff")).returncode == NOT_APPLICABLE


def test_gpudirect() -> None:
    closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19\n"
    facts = pci_gpus.parse_gpudirect(f"kernel 5.15.0-91-generic\nmodule nvidia_peermem\n{closed}")
    assert (facts.peermem, facts.open_driver, facts.dma_buf) == ("nvidia_peermem", False, False)
    ours = pci_gpus.parse_gpudirect(f"kernel 5.15.0\nmodule efa_nv_peermem\n{closed}")
    assert ours.peermem == "efa_nv_peermem"
    opened = closed.replace("x86_64 Kernel", "Open Kernel")
    assert pci_gpus.parse_gpudirect(f"kernel 5.12.0\n{opened}").dma_buf
    assert not pci_gpus.parse_gpudirect(f"kernel 5.4.0\n{opened}").dma_buf
    for text in ("", "kernel 5.4\n", opened):
        with pytest.raises(Unparsed):
            pci_gpus.parse_gpudirect(text)


COUNTED = "1 mlx5_0/ports/1 symbol_error=3\n2 mlx5_0/ports/1 symbol_error=5 link_downed=1\n"
OURS = {
    rdma_ports.PROBE.name: "device|mlx5_0|28.39.1002|MT_0838|MT4129\n"
    "port|mlx5_0|1|4: ACTIVE|5: LinkUp|400 Gb/sec (4X NDR)|Ethernet|0x0|0x0\n"
    "gid|mlx5_0|1|3|RoCE v2|0000:0000:0000:0000:0000:ffff:0a00:0001|eth2\n",
    rdma_ports.ERROR_COUNTERS.name: COUNTED,
    rdma_ports.EFA.name: "pci=32\nbound=32\nusable=32\nprovider=there\nend\n",
    pci_gpus.GPUDIRECT.name: "kernel 5.15.0\nmodule nvidia_peermem\nNVRM version: NVIDIA UNIX\n",
    interfaces.PROBE.name: "eth0|1500|25000|1\nib0|4092|-1|32\n",
}


def test_counters_rise() -> None:
    (port,) = rdma_ports.parse_counters(COUNTED).ports
    assert dict(port.rising) == {"symbol_error": 2, "link_downed": 1}
    (port,) = rdma_ports.parse_counters("1 a_0/ports/1 symbol_error=9\n2 a_0/ports/1\n").ports
    assert not port.rising  # reset in between
    with pytest.raises(Unparsed, match="same ports"):
        rdma_ports.parse_counters("1 a_0/ports/1\n")


def test_all_in_one_compound() -> None:
    compound = compose(PROBES, JOB, token="T0")
    done = subprocess.run(
        ["sh"], input=compound.script, capture_output=True, text=True, check=False, timeout=60
    )
    answer = read_answer(done.stdout, compound)
    assert answer is not None
    assert answer.complete
    assert set(answer.outputs) == {probe.name for probe in PROBES}
    assert answer.outputs["net-interfaces"].exit_code == 0
    assert all(output.exit_code in {0, NOT_APPLICABLE} for output in answer.outputs.values())
