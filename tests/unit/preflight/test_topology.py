"""Topology matrices: every recording means what its machine is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterkit.preflight.checks.topo import differences, usual_links
from clusterkit.preflight.probes.gpu.nvidia_links import parse_topo as parse_probe
from clusterkit.preflight.topology.analysis import (
    compare_hca,
    far_nics,
    islands,
    nearest_nics,
    parse_names,
    pcie_groups,
    recommended_nics,
    summary,
    warnings,
)
from clusterkit.preflight.topology.matrix import NoMatrix, Topology, View, parse_topology
from clusterkit.transport.probe import Unparsed
from tests.helpers.mangling import mangled
from tests.helpers.recordings import recording

MATRICES = (
    "topo_1gpu_5bond.txt",
    "topo_2gpu_nv1_leading_blank.txt",
    "topo_2gpu_nv2.txt",
    "topo_2gpu_oldlegend.txt",
    "topo_4gpu_phb_numaid.txt",
    "topo_5090x2_tabs.txt",
    "topo_6gpu_ansi.txt",
    "topo_8gpu_1nic_dualport.txt",
    "topo_a100pcie_x2_bf3.txt",
    "topo_dgxa100_12mlx5_tabs.txt",
    "topo_gb200_4gpu.txt",
    "topo_h100_1gpu_raw_ansi.txt",
    "topo_h100x8_nonic.txt",
    "topo_mp_juwels_booster.txt",
    "topo_p2p_r_h100x8.txt",
    "topo_rtx2080s_blank_affinity_raw.txt",
    "topo_rtx6000ada_x4_4nic.txt",
    "topo_v100x8_mesh_4mlx5.txt",
)


def read(name: str) -> Topology:
    return parse_topology(recording(f"topo_{name}.txt"))


def numa(topology: Topology) -> list[str | None]:
    return [affinity.numa for affinity in topology.affinity]


def link(topology: Topology, a: str, b: str) -> str:
    return topology.cells[topology.names.index(a)][topology.names.index(b)]


def classes(topology: Topology) -> set[str]:
    return {cell for _, _, cell in topology.gpu_pairs()}


def near(topology: Topology) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {found.gpu: (found.link, found.nics) for found in nearest_nics(topology)}


def test_one_gpu_of_a_larger_host() -> None:
    topology = read("1gpu_5bond")
    assert near(topology) == {"GPU0": ("PXB", ("mlx5_bond_3",))}
    assert [topology.nic_link(0, nic) for nic in range(5)] == ["SYS", "SYS", "SYS", "PXB", "NODE"]
    assert numa(topology) == ["1"]
    assert warnings(topology) == ()
    # The other HCAs may be near GPUs that this job does not see.
    assert tuple(compare_hca(topology, "mlx5_bond")) == ()


@pytest.mark.parametrize(
    ("name", "width"), [("2gpu_nv1_leading_blank", "NV1"), ("2gpu_nv2", "NV2")]
)
def test_two_bridged_gpus(name: str, width: str) -> None:
    topology = read(name)
    assert len(topology.gpus) == 2
    assert classes(topology) == {width}
    assert topology.nics == ()
    assert warnings(topology) == ()


def test_affinity_of_expanded_tabs() -> None:
    topology = read("2gpu_nv1_leading_blank")
    assert [(a.cpus, a.numa, a.gpu_numa) for a in topology.affinity] == [("0-15", "0", None)] * 2
    assert numa(read("2gpu_nv2")) == [None, None]


def test_old_legend() -> None:
    topology = read("2gpu_oldlegend")
    assert classes(topology) == {"NV1"}
    assert near(topology)["GPU1"] == ("PHB", ("mlx5_0",))
    assert topology.affinity[0].cpus == "0-7"


@pytest.mark.parametrize(("name", "gpus"), [("4gpu_phb_numaid", 4), ("5090x2_tabs", 2)])
def test_all_through_the_host_bridge(name: str, gpus: int) -> None:
    topology = read(name)
    assert len(topology.gpus) == gpus
    assert classes(topology) == {"PHB"}
    assert islands(topology) == ()
    assert numa(topology) == ["0"] * gpus
    assert [affinity.gpu_numa for affinity in topology.affinity] == [None] * gpus
    (warning,) = warnings(topology)
    assert "scaling drops after 2-4 GPUs" in warning


def test_pcie_pairs_with_colours() -> None:
    topology = read("6gpu_ansi")
    pairs = (("GPU0", "GPU1"), ("GPU2", "GPU3"), ("GPU4", "GPU5"))
    assert pcie_groups(topology) == pairs
    assert [link(topology, a, b) for a, b in pairs] == ["PIX"] * 3
    assert link(topology, "GPU0", "GPU2") == "NODE"
    assert link(topology, "GPU0", "GPU4") == "SYS"
    assert numa(topology) == ["0", "0", "0", "0", "1", "1"]
    assert topology.affinity[0].cpus == "0-23,48-71"
    assert warnings(topology) == ()


def test_one_dual_port_nic_for_eight_gpus() -> None:
    topology = read("8gpu_1nic_dualport")
    assert classes(topology) == {"NV18"}
    found = near(topology)
    assert found["GPU0"] == ("PIX", ("NIC0", "NIC1"))
    assert {found[f"GPU{n}"][0] for n in range(4, 8)} == {"SYS"}
    (warning,) = warnings(topology)
    assert "GPU[1-7]" in warning
    assert recommended_nics(topology) == ()  # no legend, no names


def test_a100_pcie_with_bluefields() -> None:
    topology = read("a100pcie_x2_bf3")
    assert classes(topology) == {"SYS"}
    assert near(topology) == {
        "GPU0": ("PIX", ("mlx5_0", "mlx5_1")),
        "GPU1": ("PIX", ("mlx5_2", "mlx5_3")),
    }
    assert numa(topology) == ["0", "1"]


def test_dgx_a100() -> None:
    topology = read("dgxa100_12mlx5_tabs")
    assert classes(topology) == {"NV12"}
    pairs = {0: (0, 1), 2: (2, 3), 4: (6, 7), 6: (8, 9)}
    for gpu, (a, b) in pairs.items():
        expected = ("PXB", (f"mlx5_{a}", f"mlx5_{b}"))
        assert near(topology)[f"GPU{gpu}"] == near(topology)[f"GPU{gpu + 1}"] == expected
    assert far_nics(topology) == ("mlx5_4", "mlx5_5", "mlx5_10", "mlx5_11")
    assert recommended_nics(topology) == tuple(f"mlx5_{n}" for n in (0, 1, 2, 3, 6, 7, 8, 9))
    assert numa(topology) == ["3", "3", "1", "1", "7", "7", "5", "5"]
    assert {affinity.gpu_numa for affinity in topology.affinity} == {None}
    assert warnings(topology) == ()


def test_an_error_is_no_empty_topology() -> None:
    text = recording("topo_error_missing_value.txt")
    with pytest.raises(NoMatrix, match="Option -m is missing its value"):
        parse_topology(text)
    with pytest.raises(Unparsed):
        parse_probe(text)


def test_gb200_tray() -> None:
    topology = read("gb200_4gpu")
    (island,) = islands(topology)
    assert (len(island.gpus), island.links, island.all_to_all) == (4, ("NV18",), True)
    assert numa(topology) == ["0", "0", "1", "1"]
    assert [affinity.cpus for affinity in topology.affinity] == ["0-71"] * 2 + ["72-143"] * 2
    assert {affinity.gpu_numa for affinity in topology.affinity} == {None}
    assert topology.nics == ()
    assert warnings(topology) == ()


def test_one_gpu_in_raw_bytes() -> None:
    topology = read("h100_1gpu_raw_ansi")
    assert topology.gpus == ("GPU0",)
    assert (topology.affinity[0].cpus, topology.affinity[0].numa) == ("0-19", "0")
    assert list(topology.gpu_pairs()) == []
    assert warnings(topology) == ()


def test_hgx_h100_without_nics() -> None:
    topology = read("h100x8_nonic")
    (island,) = islands(topology)
    assert (len(island.gpus), island.links, island.all_to_all) == (8, ("NV18",), True)
    assert numa(topology) == ["0"] * 4 + ["1"] * 4
    assert topology.affinity[4].cpus == "52-103,156-207"


def test_pcie_view_hides_nvlink() -> None:
    text = recording("topo_mp_juwels_booster.txt")
    topology = parse_topology(text)
    assert topology.view is None
    assert near(topology) == {f"GPU{n}": ("PIX", (f"mlx5_{n}",)) for n in range(4)}
    assert classes(topology) == {"SYS"}
    assert numa(topology) == ["3", "1", "7", "5"]
    assert topology.affinity[0].cpus == "18-23,66-71"
    (warning,) = warnings(topology)
    assert "unless this is `topo -mp`" in warning
    named = parse_topology("$ nvidia-smi topo -mp\n" + text)
    assert named.view is View.PCIE
    assert warnings(named) == ()


_PCIE_LEGEND = "".join(
    f"\n  {name:<4} = Connection" for name in ("SYS", "NODE", "PHB", "PXB", "PIX")
)


def even_matrix(
    gpus: int, link: str, nics: str = "", *, cpus: str = "0-31", numa_id: str = "N/A"
) -> str:
    """Return a matrix in which all pairs of GPUs, and all GPUs and NICs, have the same link."""
    names = [f"GPU{n}" for n in range(gpus)]
    columns = [*names, *(["mlx5_0"] if nics else [])]
    rows = ["\t".join(["", *columns, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for row in names:
        cells = [" X " if row == name else link for name in names] + ([nics] if nics else [])
        rows.append("\t".join([row, *cells, cpus, "0", "", numa_id]))
    if nics:
        rows.append("\t".join(["mlx5_0", *[nics] * gpus, " X "]))
    return "\n".join(rows) + "\n"


def test_the_legend_tells_the_pcie_view() -> None:
    text = even_matrix(8, "SYS", "PIX") + "\nLegend:\n\n  X    = Self" + _PCIE_LEGEND
    topology = parse_topology(text)
    assert topology.view is View.PCIE
    assert "NVLink is not shown (`topo -mp`)" in summary(topology)
    assert warnings(topology) == ()
    whole = parse_topology(text + "\n  NV#  = Connection traversing NVLinks")
    assert whole.view is View.LINKS
    assert "no NVLink" in summary(whole)


def test_rows_of_nics_may_be_left_out() -> None:
    text = even_matrix(4, "NV18", "PIX")
    without = parse_topology("\n".join(text.split("\n")[:5]))
    assert near(without) == near(parse_topology(text))
    assert without.cells[4] == ("PIX",) * 4 + ("X",)
    with pytest.raises(NoMatrix, match="the row of GPU3 is missing"):
        parse_topology("\n".join(text.split("\n")[:4]))


def test_columns_that_ran_together() -> None:
    with pytest.raises(NoMatrix, match="GPU2 and GPU3 have run together"):
        parse_topology(even_matrix(4, "NV18").replace("GPU2\tGPU3", "GPU2GPU3", 1))


@pytest.mark.parametrize(
    ("text", "warned"),
    [
        (even_matrix(1, "", "SYS", numa_id="1"), False),  # GH200
        (even_matrix(4, "NV18", "SYS", cpus="0-71"), False),  # GB200
        (even_matrix(4, "NV18", "NODE", cpus="72-143"), False),
        (even_matrix(4, "NV18", "SYS", cpus="0-35,72-107"), True),
        (even_matrix(8, "NV18", "SYS", cpus="0-71"), True),
        (even_matrix(4, "PHB", "PHB", cpus="0-71"), True),  # one socket of 36 cores
        (even_matrix(1, "", "PHB"), True),
    ],
)
def test_far_nics_of_grace_are_no_fault(text: str, warned: bool) -> None:
    assert bool(warnings(parse_topology(text))) is warned


@pytest.mark.parametrize(
    ("gpus", "link", "told"),
    [(7, "NV18", True), (7, "NV12", True), (15, "NV6", True), (8, "NV18", False),
     (6, "NV18", False), (7, "PIX", False), (7, "NV2", False)],
)  # fmt: skip
def test_seven_of_eight(gpus: int, link: str, told: bool) -> None:
    found = warnings(parse_topology(even_matrix(gpus, link)))
    assert any("one is missing" in warning for warning in found) is told


def test_p2p_view_is_no_distance() -> None:
    text = recording("topo_p2p_r_h100x8.txt")
    topology = parse_topology(text)
    assert topology.view is View.P2P
    assert classes(topology) == {"OK"}
    assert len(list(topology.gpu_pairs())) == 28
    assert islands(topology) == ()
    assert summary(topology) == "8 GPUs, peer-to-peer access between all pairs"
    with pytest.raises(Unparsed, match="states of `topo -p2p`"):
        parse_probe(text)
    broken = parse_topology("\tGPU0\tGPU1\n GPU0\tX\tCNS\n GPU1\tCNS\tX\n")
    assert "GPU0 and GPU1 (CNS)" in warnings(broken)[0]


def test_blank_affinity() -> None:
    (affinity,) = read("rtx2080s_blank_affinity_raw").affinity
    assert (affinity.cpus, affinity.numa, affinity.gpu_numa) == (None, None, None)


def test_no_nic_near_any_gpu() -> None:
    topology = read("rtx6000ada_x4_4nic")
    assert islands(topology) == ()
    assert link(topology, "GPU0", "GPU1") == "NODE"
    assert link(topology, "GPU0", "GPU2") == "SYS"
    assert {found.link for found in nearest_nics(topology)} == {"NODE"}
    cpu, nic = warnings(topology)
    assert "scaling drops" in cpu
    assert "best is NODE" in nic


def test_hybrid_cube_mesh() -> None:
    topology = read("v100x8_mesh_4mlx5")
    (island,) = islands(topology)
    assert (len(island.gpus), island.links, island.all_to_all) == (8, ("NV2", "NV1"), False)
    assert [link(topology, "GPU0", f"GPU{n}") for n in (1, 3, 5)] == ["NV2", "NV1", "NODE"]
    assert [near(topology)[f"GPU{n}"] for n in range(8)] == (
        [("PIX", ("mlx5_0",))] * 4 + [("PIX", ("mlx5_2",))] * 4
    )
    assert numa(topology) == [None] * 8
    assert topology.affinity[0].cpus == "18-35,54-71"
    assert warnings(topology) == ()


def matrix(text: str) -> str:
    """Return a matrix as nvidia-smi prints it, of words."""
    return "\n".join("\t".join(line.split()) for line in text.strip("\n").split("\n"))


def square(rows: str, header: str = "") -> str:
    """Return a matrix whose columns are its rows."""
    names = [line.split()[0] for line in rows.strip().splitlines()]
    return "\t" + "\t".join(names) + header + "\n" + matrix(rows.strip()) + "\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("hello\n", "says 'hello'"),
        (square("GPU0 X NV1\nGPU1 NV2 X"), "not symmetric"),
        (square("GPU0 X FOO\nGPU1 FOO X"), "unknown class 'FOO'"),
        (square("GPU0 X X\nGPU1 X X"), "X between GPU0 and GPU1"),
        (square("GPU0 NV1 NV1\nGPU1 NV1 X"), "NV1 between GPU0 and GPU0"),
        (square("GPU0 X NV1\nGPU0 NV1 X"), "same name"),
        (square("GPU0 X NV1\nGPU1 NV1"), "cut off"),
        (square("mlx5_0 X PIX\nGPU0 PIX X"), "it says"),
        (square("GPU0 X PIX SYS\nmlx5_0 PIX X SYS\nGPU1 SYS SYS X"), "GPUs first"),
        (square("GPU0 X OK PIX\nGPU1 OK X PIX\nGPU2 PIX PIX X"), "states of"),
        ("\tGPU0\tGPU1\nGPU0\tX\tNV1\n", "row of GPU1 is missing"),
        ("\tGPU0\tCPU Affinity\tMoon\nGPU0\tX\t0\t1\n", "unknown column 'Moon'"),
        ("\tGPU0\tCPU Affinity\nGPU0\tX\t0\t1\n", "more cells"),
        (square("GPU0 X PIX PIX\nNIC0 PIX X PIX\nNIC1 PIX PIX X") + "NIC Legend:\n  NIC0: a1\n",
         "does not know NIC1"),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_refused(text: str, why: str) -> None:
    with pytest.raises(NoMatrix, match=why):
        parse_topology(text)


def test_memory_of_the_gpu_as_a_numa_node() -> None:
    # GH200: the row keeps the second tab that other machines have before N/A.
    text = "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-71\t0\t\t4\n"
    (affinity,) = parse_topology(text).affinity
    assert (affinity.cpus, affinity.numa, affinity.gpu_numa) == ("0-71", "0", "4")


def test_another_tool_is_named() -> None:
    text = "==== ROCm System Management Interface ====\n       GPU0\nGPU0   0\n"
    with pytest.raises(NoMatrix, match="it is of rocm-smi"):
        parse_topology(text)


def test_what_drivers_of_old_called_a_class() -> None:
    text = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tSOC\t0-7\nGPU1\tSOC\t X \t8-15\n"
    assert parse_topology(text).cells == (("X", "SYS"), ("SYS", "X"))


def test_blank_affinity_in_blanks() -> None:
    raw = "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t\t0\t\tN/A\n"
    assert parse_topology(raw) == parse_topology(raw.expandtabs())
    assert parse_topology(raw).affinity[0].numa == "0"
    assert parse_topology(raw).affinity[0].cpus is None


@pytest.mark.parametrize("name", MATRICES)
def test_terminals_may_expand_tabs(name: str) -> None:
    text = recording(name)
    assert parse_topology(text.expandtabs()) == parse_topology(text)
    assert parse_topology(text.replace("\n", "\r\n")) == parse_topology(text)


@given(data=st.data())
@pytest.mark.parametrize("name", [*MATRICES, "topo_error_missing_value.txt"])
def test_mangled_text_is_unparsed_or_sound(name: str, data: st.DataObject) -> None:
    text = data.draw(mangled(recording(name)))
    try:
        topology = parse_probe(text)
    except Unparsed:
        return
    size = len(topology.names)
    assert all(len(row) == size for row in topology.cells)
    assert len(topology.affinity) == len(topology.gpus)
    assert summary(topology)
    assert all(warnings(topology))
    tuple(compare_hca(topology, "mlx5"))


EIGHT = square("\n".join(
    f"GPU{a} " + " ".join("X" if a == b else "NV18" for b in range(8)) for a in range(8)
))  # fmt: skip


def with_link(a: int, b: int, cell: str) -> Topology:
    """Return eight GPUs joined all to all, with one link changed."""
    lines = [line.split("\t") for line in EIGHT.split("\n")]
    lines[a + 1][b + 1] = lines[b + 1][a + 1] = cell
    return parse_topology("\n".join("\t".join(line) for line in lines))


def test_a_gpu_that_lost_nvlink_is_named() -> None:
    rows = [
        " ".join(["X" if a == b else "SYS" if 3 in {a, b} else "NV18" for b in range(8)])
        for a in range(8)
    ]
    topology = parse_topology(square("\n".join(f"GPU{n} {row}" for n, row in enumerate(rows))))
    assert warnings(topology) == ("no NVLink on GPU3, while GPU[0-2,4-7] have it",)
    assert "GPU2 has NV17" in warnings(with_link(2, 5, "NV17"))[0]


def test_numa_nodes_that_contradict_the_links() -> None:
    text = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\tX\tPIX\t0\t0\nGPU1\tPIX\tX\t0\t{}\n"
    assert "NUMA nodes 0 and 1" in warnings(parse_topology(text.format(1)))[0]
    assert "no NUMA affinity for GPU1" in warnings(parse_topology(text.format("N/A")))[0]
    assert warnings(parse_topology(text.format(0))) == ()


def test_majority_of_each_pair() -> None:
    # No two nodes are the same, but each pair has a majority.
    nodes = [with_link(0, 1, "NV16"), with_link(2, 3, "NV16"), with_link(4, 5, "SYS")]
    most = usual_links(nodes)
    assert [found for node in nodes for found in differences(node, most)] == [
        ("GPU0-GPU1", "NV16", "NV18"),
        ("GPU2-GPU3", "NV16", "NV18"),
        ("GPU4-GPU5", "SYS", "NV18"),
    ]
    assert usual_links([]) == {}


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        ("", "mlx5_0 mlx5_1 mlx5_10 ib0"),
        ("mlx5_1", "mlx5_1 mlx5_10"),
        ("=mlx5_1", "mlx5_1"),
        ("=mlx5_1:1,ib0", "mlx5_1 ib0"),
        ("^mlx5_1", "mlx5_0 ib0"),
        ("^=mlx5_1", "mlx5_0 mlx5_10 ib0"),
        ("=^mlx5_1", ""),  # `^` has to come first
        ("mlx5", "mlx5_0 mlx5_1 mlx5_10"),
        (" mlx5_1", ""),
        (":1,mlx5_1", "mlx5_1 mlx5_10"),  # an item without a name is none
    ],
)
def test_which_devices_nccl_takes(value: str, taken: str) -> None:
    wanted = parse_names(value)
    devices = ("mlx5_0", "mlx5_1", "mlx5_10", "ib0")
    assert [device for device in devices if wanted.takes(device)] == taken.split()


def test_ports_of_a_device() -> None:
    wanted = parse_names("=mlx5_0:2")
    assert wanted.takes("mlx5_0", 2)
    assert not wanted.takes("mlx5_0", 1)
    assert parse_names("mlx5_0").takes("mlx5_0", 7)


def test_nccl_ib_hca_against_the_affinity() -> None:
    topology = read("dgxa100_12mlx5_tabs")
    right = "=" + ",".join(recommended_nics(topology))
    assert tuple(compare_hca(topology, right)) == ()
    far, left_out = compare_hca(topology, "mlx5_1")
    assert far == "NCCL_IB_HCA takes mlx5_10,mlx5_11, near no GPU (its names are prefixes)"
    assert left_out.startswith("NCCL_IB_HCA leaves out mlx5_0,mlx5_2")
    (far,) = compare_hca(topology, right + ",mlx5_4")
    assert far == "NCCL_IB_HCA takes mlx5_4, near no GPU"
    (nothing,) = compare_hca(topology, "=bnxt_re0")
    assert nothing.endswith("takes none of the NICs")
    without = "=" + ",".join(recommended_nics(topology)[1:])
    assert tuple(compare_hca(topology, without, down=frozenset({"mlx5_0"}))) == ()
