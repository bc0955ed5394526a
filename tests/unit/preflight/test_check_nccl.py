"""The checks of NCCL variables, on what nodes would have printed, and on this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import Check
from clusterkit.preflight.probes.host.nccl_settings import (
    CONF,
    ENVIRONMENT,
    parse_conf,
    parse_environment,
)
from clusterkit.preflight.probes.net.interfaces import NAMED as PROBE
from clusterkit.preflight.probes.net.interfaces import parse_named as parse_interfaces
from clusterkit.preflight.topology.analysis import parse_names
from clusterkit.transport.probe import Output, PreflightJob
from tests.helpers.evidence import evidence
from tests.helpers.needs import require
from tests.helpers.probe_run import named
from tests.helpers.recordings import recording

HCAS = named("nccl-hcas")
INTERFACES = named("nccl-interfaces")
JOB_ENV = named("nccl-job-env")
NODE_ENV = named("nccl-node-env")
NVLINK = named("nccl-nvlink")
UNIFORM = named("nccl-uniform")
NET = """\
interface|lo|unknown
interface|eth1|up
interface|eth10|up
interface|ib0|down
address|lo|127.0.0.1/8
address|eth1|10.0.0.1/24
address|eth10|10.9.0.1/24
address|eth10|fe80::1/64
"""
RDMA = "".join(
    f"device|mlx5_{n}|28.39|MT_1|MT4129\n"
    f"port|mlx5_{n}|1|{state}|{phys}|400 Gb/sec (4X NDR)|InfiniBand|1|1\n"
    for n, state, phys in [
        (0, "4: ACTIVE", "5: LinkUp"), (1, "4: ACTIVE", "5: LinkUp"),
        (2, "1: DOWN", "2: Polling"), (10, "4: ACTIVE", "5: LinkUp"),
    ]
)  # fmt: skip
NO_RDMA = Output(stdout="no RDMA device\n", exit_code=77)


def judged(
    check: Check,
    *,
    env: dict[str, str] | None = None,
    interface: str | None = None,
    **nodes: dict[str, object],
) -> dict[str | None, list[tuple[str, str]]]:
    """Return verdicts and summaries by node; every node has quiet probes unless given."""
    quiet: dict[str, object] = {
        "nccl-env": "", "nccl-conf": "", "interfaces": NET, "rdma-ports": RDMA,
    }  # fmt: skip
    there = {name: {**quiet, **said} for name, said in (nodes or {"n1": {}}).items()}
    job = PreflightJob(hosts=tuple(there), env=env or {}, network_interface=interface)
    found: dict[str | None, list[tuple[str, str]]] = {}
    for node, ruling in check.judge(evidence(there, job=job)):
        found.setdefault(node, []).append((ruling.verdict.value, ruling.summary))
    return found


def test_the_job() -> None:
    assert judged(JOB_ENV)[None][0][0] == "skip"
    assert judged(JOB_ENV, env={"NCCL_SOCKET_IFNAME": "=eth1"})[None][0][0] == "pass"
    ((verdict, summary),) = judged(JOB_ENV, env={"NCCL_IB_DISABLE": "true"})[None]
    assert (verdict, summary) == (
        "fail",
        "NCCL_IB_DISABLE=true: not a number: it is read as 0",
    )


def test_the_nodes_own_variables() -> None:
    conf = "file /etc/nccl.conf\n # ours\n NCCL_DEBUG=INFO\n NCCL_CHECK_DISABLE=1\n"
    found = judged(NODE_ENV, n1={"nccl-conf": conf}, n2={}, n3={"nccl-env": "NCCL_NET=Socket\n"})
    assert [verdict for verdict, _ in found["n1"]] == ["warn", "fail"]
    assert found["n1"][1][1].startswith("/etc/nccl.conf:3: NCCL_CHECK_DISABLE=1: ")
    assert found["n2"] == found["n3"] == [("pass", "nothing wrong with what the node sets")]
    beaten = judged(NODE_ENV, env={"NCCL_DEBUG": "WARN"}, n1={"nccl-conf": conf})
    assert [verdict for verdict, _ in beaten["n1"]] == ["fail"]


@pytest.mark.parametrize(
    ("name", "value", "verdict", "words"),
    [
        ("NCCL_SOCKET_IFNAME", "=eth1", "pass", "usable"),
        ("NCCL_SOCKET_IFNAME", "eth1", "warn", "matches eth1, eth10"),
        ("NCCL_SOCKET_IFNAME", "eth", "pass", "usable"),
        ("NCCL_SOCKET_IFNAME", "bond0", "fail", "no interface bond0"),
        ("NCCL_SOCKET_IFNAME", "=eth1,=ib9", "warn", "no interface =ib9"),
        ("NCCL_SOCKET_IFNAME", "ib", "fail", "ib0 is down"),
        ("NCCL_SOCKET_IFNAME", "^lo,docker", "pass", "usable"),
        ("NCCL_SOCKET_IFNAME", "^lo,eth,ib", "fail", "leaves no interface"),
        ("GLOO_SOCKET_IFNAME", "eth1", "pass", "usable"),
        ("GLOO_SOCKET_IFNAME", "eth", "fail", "no interface eth"),
        ("GLOO_SOCKET_IFNAME", "eth1,ib9", "fail", "no interface ib9"),
        ("GLOO_SOCKET_IFNAME", "eth1,ib0", "pass", "usable"),
        ("NCCL_FASTRAK_IFNAME", "eth1,eth10", "pass", "usable"),
        ("NCCL_FASTRAK_IFNAME", "eth1,ib0", "fail", "ib0 is down"),
        ("NCCL_GPUDIRECTTCPX_SOCKET_IFNAME", "eth1,eth2", "fail", "no interface eth2"),
        ("NCCL_FASTRAK_CTRL_DEV", "eth0", "fail", "no interface eth0"),
    ],
)
def test_interfaces(name: str, value: str, verdict: str, words: str) -> None:
    ((found, summary),) = judged(INTERFACES, env={name: value})["n1"]
    assert (found, words in summary) == (verdict, True), summary


def test_the_device_of_out_of_band_traffic_is_an_interface_with_sockets_only() -> None:
    devices = {"NCCL_OOB_NET_ENABLE": "1", "NCCL_OOB_NET_IFNAME": "=mlx5_1"}
    assert judged(INTERFACES, env=devices)["n1"][0][0] == "skip"
    with_sockets = judged(INTERFACES, env={**devices, "NCCL_NET": "Socket"})
    assert "no interface" in with_sockets["n1"][0][1]


def test_interfaces_come_from_everywhere() -> None:
    assert judged(INTERFACES)["n1"][0][0] == "skip"
    assert [v for v, _ in judged(INTERFACES, interface="bond0")["n1"]] == ["fail", "fail"]
    found = judged(
        INTERFACES,
        n1={"nccl-env": "NCCL_SOCKET_IFNAME==eth1\n"},
        n2={"nccl-conf": "file /etc/nccl.conf\n NCCL_SOCKET_IFNAME=ens1\n"},
        n3={"interfaces": Output(stdout="", exit_code=127), "nccl-env": "GLOO_SOCKET_IFNAME=x\n"},
    )
    assert {node: said[0][0] for node, said in found.items()} == {
        "n1": "pass", "n2": "fail", "n3": "unknown",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "verdict", "words"),
    [
        ("NCCL_IB_HCA", "=mlx5_0:1,mlx5_1:1", "pass", "fits"),
        ("NCCL_IB_HCA", "mlx5_1", "warn", "matches mlx5_1, mlx5_10"),
        ("NCCL_IB_HCA", "=mlx5_0,mlx5_7", "fail", "no HCA mlx5_7"),
        ("NCCL_IB_HCA", "=mlx5_2", "fail", "takes no active HCA"),
        ("NCCL_IB_HCA", "=mlx5_0,mlx5_2", "warn", "mlx5_2 has no active port"),
        ("NCCL_IB_HCA", "^mlx5_2", "pass", "fits"),
        ("UCX_NET_DEVICES", "mlx5_0:1", "pass", "fits"),
        ("UCX_NET_DEVICES", "mlx5_9:1", "fail", "takes no active HCA"),
        ("NCCL_IB_DISABLE", "1", "fail", "active HCAs"),
        ("NCCL_IB_DISABLE", "0", "pass", "fits"),
        ("NCCL_NET", "Socket", "fail", "active HCAs"),
    ],
)
def test_hcas(name: str, value: str, verdict: str, words: str) -> None:
    ((found, summary),) = judged(HCAS, env={name: value})["n1"]
    assert (found, words in summary) == (verdict, True), summary


@pytest.mark.parametrize(
    ("matrix", "setting", "verdict", "words"),
    [
        ("topo_h100x8_nonic.txt", "NCCL_P2P_DISABLE=1", "fail", "NCCL_P2P_DISABLE=1 on a node"),
        ("topo_h100x8_nonic.txt", "NCCL_P2P_LEVEL=LOC", "fail", "NCCL_P2P_LEVEL=LOC on a node"),
        ("topo_h100x8_nonic.txt", "NCCL_P2P_LEVEL=NVL", "skip", "no variable"),
        ("topo_h100x8_nonic.txt", "NCCL_P2P_DISABLE=0", "skip", "no variable"),
        # Every pair has NVLink, so that shared memory is not used anyway.
        ("topo_h100x8_nonic.txt", "NCCL_SHM_DISABLE=1", "pass", "not switched off"),
        # In the hybrid mesh of eight V100 some pairs have none.
        ("topo_v100x8_mesh_4mlx5.txt", "NCCL_SHM_DISABLE=1", "fail", "NCCL_SHM_DISABLE=1"),
        ("topo_4gpu_phb_numaid.txt", "NCCL_P2P_DISABLE=1", "skip", "no NVLink"),
        ("topo_error_missing_value.txt", "NCCL_P2P_DISABLE=1", "unknown", "unparsed"),
    ],
)
def test_nvlink_that_is_switched_off(matrix: str, setting: str, verdict: str, words: str) -> None:
    name, _, value = setting.partition("=")
    text = recording(matrix)
    by_job = judged(NVLINK, env={name: value}, n1={"nvidia-topo": text})
    by_node = judged(NVLINK, n1={"nvidia-topo": text, "nccl-env": setting + "\n"})
    by_file = judged(
        NVLINK, n1={"nvidia-topo": text, "nccl-conf": f"file /etc/nccl.conf\n {setting}\n"}
    )
    ((found, summary),) = by_job["n1"]
    assert (found, words in summary) == (verdict, True), summary
    assert by_job == by_node == by_file


@pytest.mark.parametrize(
    ("check", "name", "value"),
    [
        (NVLINK, "NCCL_P2P_DISABLE", "1"),
        (HCAS, "NCCL_IB_DISABLE", "1"),
        (HCAS, "NCCL_NET", "Socket"),
    ],
)
def test_a_site_may_vouch_for_a_path_that_is_off(check: Check, name: str, value: str) -> None:
    job = PreflightJob(hosts=("n1",), env={name: value}, allowed_names=(name,))
    said = {"nccl-env": "", "nccl-conf": "", "rdma-ports": RDMA}
    topology = {"nvidia-topo": recording("topo_h100x8_nonic.txt")}
    ((_, ruling),) = check.judge(evidence({"n1": said | topology}, job=job))
    assert ruling.verdict is Verdict.SKIP


def test_machines_without_hcas() -> None:
    assert judged(HCAS, n1={"rdma-ports": NO_RDMA})["n1"][0][0] == "skip"
    assert (
        judged(HCAS, env={"NCCL_IB_DISABLE": "1"}, n1={"rdma-ports": NO_RDMA})["n1"][0][0] == "skip"
    )
    named = judged(HCAS, env={"NCCL_IB_HCA": "=mlx5_0"}, n1={"rdma-ports": NO_RDMA})
    assert named["n1"] == [("fail", "NCCL_IB_HCA==mlx5_0: takes no active HCA")]


def test_values_that_differ() -> None:
    two = {"nccl-env": "NCCL_IB_TC=106\nNCCL_SOCKET_IFNAME=eth0\n"}
    other = {"nccl-env": "NCCL_IB_TC=104\nNCCL_SOCKET_IFNAME=eth1\n"}
    found = judged(UNIFORM, n1=two, n2=two, n3=other, n4={})
    assert found["n3"][0] == ("fail", "NCCL_IB_TC differs, and no value has a majority")
    found = judged(UNIFORM, n1=two, n2=two, n3=two, n4={})
    assert found["n1"][0][0] == "pass"
    assert found["n4"] == [("fail", "NCCL_IB_TC is not set, on most nodes '106'")]
    assert {
        said[0][0] for said in judged(UNIFORM, env={"NCCL_IB_TC": "1"}, n1=two, n2=other).values()
    } == {"pass"}


def test_selection() -> None:
    assert parse_names("^=a,b").taken(["a", "ab", "b"]) == ("ab",)
    assert parse_names("").taken(["a"]) == ()
    assert parse_names("a").by_item(["a", "ab"]) == {"a": ("a", "ab")}
    assert parse_names("^a,=b", plain=True).by_item(["a", "b"]) == {"^a": (), "=b": ()}


@pytest.mark.parametrize("shell", ["sh", "dash", "busybox"])
def test_snippets_run_here(shell: str, tmp_path: Path) -> None:
    require(shell)
    words = [shell, "sh", "-c"] if shell == "busybox" else [shell, "-c"]
    conf = tmp_path / "it's.conf"
    conf.write_text("NCCL_DEBUG=WARN\nNCCL_IB_TC=1")
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "NCCL_DEBUG": "INFO", "SECRET": "x"}

    def run(snippet: str | None) -> str:
        assert snippet is not None
        return subprocess.run(
            [*words, snippet], env=environment, check=True, capture_output=True, text=True
        ).stdout

    job = PreflightJob(hosts=("a",), env={"NCCL_CONF_FILE": str(conf)})
    assert "lo" in {interface.name for interface in parse_interfaces(run(PROBE.snippet(job)))}
    said = parse_environment(run(ENVIRONMENT.snippet(job)))
    assert [(s.name, s.value) for s in said.settings] == [("NCCL_DEBUG", "INFO")]
    files = parse_conf(run(CONF.snippet(job)))
    assert [s.value for s in files[0].settings] == ["WARN", "1"]
    run(CONF.snippet(PreflightJob(hosts=("a",))))
