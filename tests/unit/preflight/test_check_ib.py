"""IB checks: ports that should be up, and nothing said of those that nobody uses."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks import all_checks
from clusterkit.preflight.checks.base import Check, Ruling
from clusterkit.transport.probe import NOT_APPLICABLE, Output, PreflightJob
from tests.helpers.evidence import evidence
from tests.helpers.recordings import recording

CHECKS = {check.name: check for check in all_checks() if check.area == "IB"}
HEALTHY = "ibstat_h100_roce_12ca.txt"


def judge(name: str, nodes: Mapping[str, str | Output], **job: object) -> dict[str | None, Ruling]:
    check = CHECKS[name]
    outputs = {node: {probe.name: said for probe in check.probes} for node, said in nodes.items()}
    known = PreflightJob(hosts=job.pop("hosts", tuple(nodes)), **job)
    return dict(check.judge(evidence(outputs, job=known)))


def one(name: str, said: str, **job: object) -> Ruling:
    return judge(name, {"n1": said}, hosts=("n1", "n2"), **job)["n1"]


def verdicts(rulings: Mapping[str | None, Ruling]) -> list[str]:
    return [ruling.verdict.value for ruling in rulings.values()]


@pytest.mark.parametrize("check", CHECKS.values(), ids=lambda check: check.name)
def test_a_machine_without_rdma_is_skipped(check: Check) -> None:
    absent = Output(stdout="no RDMA device\n", exit_code=NOT_APPLICABLE)
    found = judge(check.name, dict.fromkeys(("n1", "n2"), absent))
    assert {ruling.verdict for ruling in found.values()} == {Verdict.SKIP}


@pytest.mark.parametrize("check", CHECKS.values(), ids=lambda check: check.name)
def test_garbled_output_is_unknown(check: Check) -> None:
    assert one(check.name, "Killed\n").verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        (HEALTHY, "pass"),
        ("ibstat_a100_9ca.txt", "pass"),
        ("ibstat_h100_3eth_down.txt", "pass"),  # side ports that nobody uses
        ("ibstat_h100_2of8_down.txt", "fail"),
        ("ibstatus_a100_9dev.txt", "pass"),
        ("ibv_devinfo_mlx4_port2_down.txt", "pass"),  # second port of a dual-port card
        ("rdma_link_bf3_half_down.txt", "pass"),  # one port of each card is up
    ],
)
def test_ports_of_one_node(name: str, verdict: str) -> None:
    assert one("ib-port-state", recording(name)).verdict == verdict


def test_a_node_has_as_many_devices_as_its_instance_type() -> None:
    absent = Output(stdout="no RDMA device\n", exit_code=NOT_APPLICABLE)
    port = "|1|4: ACTIVE|5: LinkUp|100 Gb/sec (4X EDR)|Unspecified|0x0|0x0\n"
    each = [f"device|rdmap{k}s0|0.0|efa|EFA\nport|rdmap{k}s0{port}" for k in range(4)]
    all_four = "".join(each)
    nodes = {"n0": all_four, "n1": all_four, "n2": "".join(each[:3]), "n3": absent}
    found = judge("ib-devices", nodes, rdma_devices=4)
    assert [found[f"n{k}"].verdict for k in range(4)] == ["pass", "pass", "fail", "fail"]
    assert found["n2"].summary == "3 RDMA devices, the instance type has 4"
    assert found["n3"].summary == "no RDMA devices, the instance type has 4"
    assert one("ib-devices", "Killed\n", rdma_devices=4).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("said", "verdict", "summary"),
    [
        ("pci=4\nbound=4\nusable=4\nprovider=there\nend\n", "pass", "4 EFA devices"),
        ("pci=4\nbound=4\nusable=5\nprovider=unknown\nend\n", "pass", "4 EFA devices"),
        (
            "pci=4\nbound=3\nusable=3\nprovider=there\nend\n",
            "fail",
            "1 of 4 EFA devices have no driver",
        ),
        (
            "pci=4\nbound=4\nusable=0\nprovider=absent\nend\n",
            "fail",
            "only 0 of 4 EFA devices may be opened",
        ),
        ("pci=4\nbound=4\nusable=4\nprovider=absent\nend\n", "warn", "libfabric finds no EFA"),
        ("pci=4\nbound=4\nusable=4\nprovider=maybe\nend\n", "unknown", "efa: unparsed"),
        (Output(stdout="no EFA device\n", exit_code=NOT_APPLICABLE), "skip", "no EFA device"),
    ],
)
def test_devices_of_efa(said: str | Output, verdict: str, summary: str) -> None:
    (found,) = judge("ib-efa", {"n1": said}).values()
    assert found.verdict == verdict
    assert found.summary.startswith(summary)


def test_two_of_eight_are_down() -> None:
    ruling = one("ib-port-state", recording("ibstat_h100_2of8_down.txt"))
    assert ruling.summary == "mlx5_11/1,mlx5_5/1 are down"
    assert "6 of 8 such ports are active" in ruling.evidence
    assert "turned off" in ruling.hint


def test_nodes_vote_on_each_port() -> None:
    text = recording("ibstat_h100_3eth_down.txt")
    # mlx5_1 is up on most nodes: here it has no cable.
    odd = down(text, "mlx5_1", "Polling")
    found = judge("ib-port-state", {"n1": text, "n2": odd, "n3": text})
    assert verdicts(found) == ["pass", "fail", "pass"]
    assert found["n2"].summary == "mlx5_1/1 is down"
    assert "check the cable" in found["n2"].hint
    # Down on most nodes: it is not used, though its kin on the node are up.
    spare = down(text, "mlx5_0", "Disabled")
    found = judge("ib-port-state", {"n1": spare, "n2": spare, "n3": spare})
    assert verdicts(found) == ["pass"] * 3


def down(text: str, name: str, why: str) -> str:
    """Return an ibstat in which one device is down."""
    before, rest = text.split(f"CA '{name}'\n")
    rest = rest.replace("State: Active", "State: Down", 1)
    return f"{before}CA '{name}'\n" + rest.replace("state: LinkUp", f"state: {why}", 1)


def test_infiniband_is_down_and_ethernet_up() -> None:
    port = "port|mlx5_{}|1|{}|5: LinkUp|100 Gb/sec (4X EDR)|{}|0x0|0x0\n"
    down = [("1: DOWN", "InfiniBand")] * 3

    def said(*ports: tuple[str, str]) -> Ruling:
        lines = [
            f"device|mlx5_{n}|28.1|A{n}|MT4129\n" + port.format(n, state, layer)
            for n, (state, layer) in enumerate(ports)
        ]
        return one("ib-port-state", "".join(lines))

    ruling = said(*down, ("4: ACTIVE", "Ethernet"))
    assert (ruling.verdict, ruling.summary) == (Verdict.WARN, "no InfiniBand port is active")
    assert said(down[0], ("4: ACTIVE", "Ethernet")).verdict is Verdict.PASS
    assert said(*down, ("4: ACTIVE", "InfiniBand")).verdict is Verdict.PASS


def test_no_port_at_all() -> None:
    text = "link mlx5_0/1 state DOWN physical_state POLLING netdev eth0\n"
    assert one("ib-port-state", text).verdict is Verdict.WARN


def test_a_port_without_a_subnet_manager() -> None:
    text = recording("ibstat_a100_9ca.txt")
    # 0 on the Ethernet device is normal.
    assert one("ib-sm-lid", text).verdict is Verdict.PASS
    assert one("ib-sm-lid", recording(HEALTHY)).verdict is Verdict.SKIP
    # The second port is down: it needs none.
    assert one("ib-sm-lid", recording("ibv_devinfo_mlx4_port2_down.txt")).verdict is Verdict.PASS
    before, after = text.split("CA 'mlx5_8'")
    ruling = one("ib-sm-lid", f"{before}CA 'mlx5_8'" + after.replace("SM lid: 83", "SM lid: 0"))
    assert (ruling.verdict, ruling.summary) == (Verdict.FAIL, "no subnet manager for mlx5_8/1")


def test_rates_of_one_node() -> None:
    ruling = one("ib-port-rate", recording(HEALTHY))
    assert (ruling.verdict, ruling.summary) == (Verdict.PASS, "active ports run at 400/100 Gb/s")
    # `Rate: 40` of ports that are down is no rate.
    for name in ("ibstat_h100_3eth_down.txt", "ibstat_h100_2of8_down.txt"):
        assert one("ib-port-rate", recording(name)).verdict is Verdict.PASS
    assert one("ib-port-rate", recording("ibstatus_a100_9dev.txt")).verdict is Verdict.PASS
    assert one("ib-port-rate", recording("rdma_link_bf3_half_down.txt")).verdict is Verdict.SKIP
    slow = recording(HEALTHY).replace("Rate: 400", "Rate: 200", 1)
    ruling = one("ib-port-rate", slow)
    assert ruling.verdict is Verdict.FAIL
    assert ruling.summary == "mlx5_0/1 runs at 200 Gb/s, usual is 400 Gb/s"


def test_rates_against_the_instance_type() -> None:
    """What all nodes have in common may be wrong; slow ports beside the fabric are no fault."""
    instance = {"rdma_devices": 8, "rdma_gbps": 400}
    text = recording(HEALTHY)
    assert text.count("Rate: 400") == 8
    assert one("ib-port-rate", text, **instance).verdict is Verdict.PASS
    ruling = one("ib-port-rate", text.replace("Rate: 400", "Rate: 200"), **instance)
    assert ruling.verdict is Verdict.FAIL
    assert ruling.summary == "no ports run at 400 Gb/s, the instance type has 8"


def test_width_against_other_nodes() -> None:
    text = recording("ibstatus_a100_9dev.txt")
    odd = text.replace("200 Gb/sec (4X HDR)", "100 Gb/sec (2X HDR)", 1)
    found = judge("ib-port-rate", {"n1": text, "n2": text, "n3": odd})
    assert verdicts(found) == ["pass", "pass", "fail"]
    assert found["n3"].summary == "mlx5_0/1 runs at 100 Gb/s 2X, usual is 200 Gb/s 4X"
    assert found["n3"].command == "sudo mlxlink -d mlx5_0"


def test_firmware_is_compared_within_a_kind() -> None:
    text = recording("ibstat_a100_9ca.txt")
    assert one("ib-firmware", text).verdict is Verdict.PASS  # two kinds, each uniform
    odd = text.replace("28.37.1014", "28.33.0800", 1)
    found = judge("ib-firmware", {"n1": text, "n2": odd})
    assert verdicts(found) == ["pass", "warn"]
    assert found["n2"].summary == "firmware 28.33.0800 on mlx5_1, usual is 28.37.1014"
    assert one("ib-firmware", recording("rdma_link_bf3_half_down.txt")).verdict is Verdict.SKIP
    tied = recording("ibv_devinfo_mlx4_port2_down.txt")
    found = judge("ib-firmware", {"n1": tied, "n2": tied.replace("2.7.000", "2.9.000")})
    assert verdicts(found) == ["warn", "warn"]
    assert "none is usual" in found["n1"].summary


def test_devices_that_are_missing() -> None:
    text = recording(HEALTHY)
    fewer = text[: text.index("CA 'mlx5_9'")]
    found = judge("ib-devices", {"n1": text, "n2": fewer, "n3": text})
    assert verdicts(found) == ["pass", "fail", "pass"]
    assert found["n2"].summary == "11 RDMA devices, most nodes have 12"
    assert "7 x MT4129/28" in found["n2"].evidence
    found = judge("ib-devices", {"n1": fewer, "n2": fewer, "n3": text})
    assert verdicts(found) == ["pass", "pass", "warn"]
    assert verdicts(judge("ib-devices", {"n1": text, "n2": fewer})) == ["warn", "warn"]
    panic = text + "\nibpanic: [7] main: stat of IB device 'mlx5_12' failed: (No such file)\n"
    ruling = one("ib-devices", panic)
    assert (ruling.verdict, ruling.summary) == (Verdict.FAIL, "mlx5_12 cannot be read")


@pytest.mark.parametrize(
    ("second", "verdict", "summary"),
    [
        ("symbol_error=5", "pass", "no error counter rises"),
        ("symbol_error=6", "warn", "errors rise on mlx5_0/1: symbol_error +1"),
        ("link_downed=1 symbol_error=5", "fail", "errors rise on mlx5_0/1: link_downed +1"),
    ],
)
def test_counters(second: str, verdict: str, summary: str) -> None:
    text = f"1 mlx5_0/ports/1 symbol_error=5\n2 mlx5_0/ports/1 {second}\n"
    ruling = one("ib-counters", text)
    assert (ruling.verdict, ruling.summary) == (verdict, summary)
    assert one("ib-counters", "").verdict is Verdict.SKIP


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ("link_downed=255", "warn"),  # 8 bits
        ("symbol_error=65535", "warn"),  # 16
        ("port_xmit_discards=4294967295", "warn"),  # a driver that counts to 32
        ("local_link_integrity_errors=15", "pass"),  # 4: full on sound machines, too
        ("symbol_error=255", "pass"),
        ("link_downed=254", "pass"),
    ],
)
def test_counters_at_their_end_tell_no_more(said: str, verdict: str) -> None:
    ruling = one("ib-counters", f"1 mlx5_0/ports/1 {said}\n2 mlx5_0/ports/1 {said}\n")
    assert ruling.verdict == verdict
    if verdict == "warn":
        name = said.replace("=", " ")
        assert ruling.summary == f"counters of mlx5_0/1 are full, and tell no more: {name}"


@pytest.mark.parametrize(("times", "verdict"), [(2, "pass"), (3, "warn"), (6, "warn")])
def test_links_that_flap(times: int, verdict: str) -> None:
    log = "log dmesg\n" + "n1 systemd-networkd[9]: ib6: Lost carrier\n" * times
    quiet = "1 mlx5_0/ports/1\n2 mlx5_0/ports/1\n"
    facts = evidence({"n1": {"rdma-counters": quiet, "kernel-log": log}})
    ((_, ruling),) = CHECKS["ib-counters"].judge(facts)
    assert ruling.verdict == verdict
    if verdict == "warn":
        assert ruling.summary == "ib6 lost the carrier again and again"
        assert ruling.evidence == f"ib6 {times}x in a day"


VF = (
    "CA 'mlx5_7'\n\tCA type: MT4124\n\tPort 1:\n\t\tState: Down\n\t\tPhysical state: {}\n"
    "\t\tRate: 200\n\t\tBase lid: {}\n\t\tSM lid: 1\n\t\tLink layer: InfiniBand\n"
)


@pytest.mark.parametrize(
    ("physical", "lid", "why"),
    [
        ("LinkUp", 65535, "a virtual function without a LID"),
        ("LinkUp", 4, "the link is up, the port is not"),
        ("Disabled", 65535, "turned off"),
        ("Polling", 65535, "no signal"),
    ],
)
def test_why_a_port_is_down(physical: str, lid: int, why: str) -> None:
    ruling = one("ib-port-state", VF.format(physical, lid))
    assert ruling.verdict is Verdict.FAIL
    assert why in ruling.hint
    assert "mlx5_7/1 down/" in ruling.evidence
    # Nobody uses InfiniBand where no node has a port that is up, or where NCCL may not.
    said = VF.format(physical, lid)
    both = judge("ib-port-state", {"n1": said, "n2": said})
    assert verdicts(both) == ["warn", "warn"]
    assert one("ib-port-state", said, env={"NCCL_IB_DISABLE": "1"}).verdict is Verdict.WARN
    other = said.replace("Down", "Active").replace("mlx5_7", "mlx5_0")
    assert verdicts(judge("ib-port-state", {"n1": said, "n2": other})) == ["fail", "pass"]
    # Alone a node needs no port.
    alone = judge("ib-port-state", {"n1": VF.format(physical, lid)})["n1"]
    assert alone.verdict is Verdict.WARN


def test_sm_lids_that_are_not_told() -> None:
    text = "device|mlx5_0|28.39.1002|MT_0838|MT4129\n"
    text += "port|mlx5_0|1|4: ACTIVE|5: LinkUp|400 Gb/sec (4X NDR)|InfiniBand||\n"
    ruling = one("ib-sm-lid", text)
    assert (ruling.verdict, ruling.summary) == (Verdict.SKIP, "SM lids are not told")


ROCE = (
    "device|mlx5_0|28.39.1002|MT_0838|MT4129\n"
    "port|mlx5_0|1|4: ACTIVE|5: LinkUp|400 Gb/sec (4X NDR)|Ethernet|0x0|0x0\n"
    "gid|mlx5_0|1|1|RoCE v2|fe80:0000:0000:0000:a288:c2ff:fead:eab8|eth2\n"
    "gid|mlx5_0|1|3|RoCE v2|0000:0000:0000:0000:0000:ffff:0a00:0001|eth2\n"
)


@pytest.mark.parametrize(
    ("env", "verdict"),
    [
        ({}, "pass"),
        ({"NCCL_IB_GID_INDEX": "3"}, "pass"),
        ({"NCCL_IB_GID_INDEX": "-1"}, "pass"),
        ({"NCCL_IB_GID_INDEX": "0"}, "fail"),
        ({"NCCL_IB_GID_INDEX": "5"}, "fail"),
        ({"NCCL_IB_GID_INDEX": "5", "NCCL_IB_HCA": "^mlx5_0"}, "skip"),
    ],
)
def test_gids(env: dict[str, str], verdict: str) -> None:
    assert one("ib-roce-gid", ROCE, env=env).verdict == verdict


def test_a_port_without_an_address() -> None:
    text = "\n".join(ROCE.split("\n")[:3]) + "\n"
    ruling = one("ib-roce-gid", text)
    assert ruling.summary == "no routable RoCE v2 GID on mlx5_0/1"
    assert ruling.verdict is Verdict.WARN
    assert one("ib-roce-gid", recording("ibstat_a100_9ca.txt")).verdict is Verdict.SKIP


NVRM = "NVRM version: NVIDIA UNIX {} Module  570.86.15\n"


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ("kernel 4.18.0\nmodule nvidia_peermem\n" + NVRM.format("x86_64 Kernel"), "pass"),
        ("kernel 6.8.0\n" + NVRM.format("Open Kernel"), "pass"),
        ("kernel 6.8.0\n" + NVRM.format("x86_64 Kernel"), "warn"),
        ("kernel 5.4.0\n" + NVRM.format("Open Kernel"), "warn"),
    ],
)
def test_gpudirect(said: str, verdict: str) -> None:
    assert one("ib-gpudirect", said).verdict == verdict
    assert verdicts(judge("ib-gpudirect", {"n1": said})) == ["skip"]
    assert verdicts(judge("ib-gpudirect", {"n1": said, "n2": said}, uses_gpus=False)) == ["skip"]


def test_mtu() -> None:
    jumbo, small = "eth0|9000|25000|1\nib0|4092|400000|32\n", "eth0|1500|25000|1\n"
    found = judge("ib-mtu", {"n1": jumbo, "n2": small, "n3": jumbo})
    assert verdicts(found) == ["pass", "fail", "pass"]
    assert found["n2"].summary == "MTU of eth0 is 1500, on most nodes 9000"
    assert verdicts(judge("ib-mtu", {"n1": jumbo, "n2": small})) == ["warn", "warn"]
    assert one("ib-mtu", "").verdict is Verdict.SKIP


def test_interface_speed() -> None:
    fast, slow, silent = "eth0|1500|25000|1\n", "eth0|1500|1000|1\n", "eth0|1500|-1|1\n"
    found = judge("ib-interface-speed", {"n1": fast, "n2": fast, "n3": slow, "n4": silent})
    assert verdicts(found) == ["pass", "pass", "warn", "skip"]
    assert found["n3"].summary == "eth0 runs at 1000 Mb/s, on most nodes 25000"


def test_ids_and_explanations() -> None:
    assert [check.id for check in sorted(CHECKS.values(), key=lambda check: check.id)] == [
        f"IB{n:03}" for n in range(1, 12)
    ]
