"""Ranks, groups and places of a parallel layout, against Megatron's arithmetic and torch's own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from math import prod
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterkit.core.errors import UserError
from clusterkit.core.hosts.hostlist import expand
from clusterkit.launch.rank_layout.exports import Export, export
from clusterkit.launch.rank_layout.fabric import Fabric, parse_fabric
from clusterkit.launch.rank_layout.parallelism import (
    DIMENSIONS,
    LayoutRequest,
    Mesh,
    Parallelism,
    arrange,
    parse_order,
)
from clusterkit.launch.rank_layout.placement import (
    Layout,
    Reach,
    even_islands,
    islands_of_groups,
    patterns,
    place,
)
from clusterkit.launch.rank_layout.warnings import layout_warnings
from tests.helpers.needs import module

TREE = """\
SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-4]
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[5-8]
SwitchName=top Level=1 LinkSpeed=1 Nodes=n[1-8] Switches=s[0-1]
"""

few = settings(max_examples=50)
fewer = settings(max_examples=20)

sizes = st.integers(1, 4)
orders = st.permutations(DIMENSIONS).map(tuple)


@st.composite
def parallelisms(draw: st.DrawFn, ep: bool = True) -> Parallelism:
    tp, cp, dp, pp = (draw(sizes) for _ in range(4))
    divisors = [n for n in range(1, cp * dp + 1) if cp * dp % n == 0]
    return Parallelism(
        tp=tp, cp=cp, dp=dp, pp=pp, order=draw(orders),
        ep=draw(st.sampled_from(divisors)) if ep else 1,
    )  # fmt: skip


def coordinates(mesh: Mesh, rank: int) -> tuple[int, ...]:
    return tuple(mesh.coordinate(name, rank) for name in mesh.names)


@few
@given(parallelisms())
def test_coordinates_and_ranks_are_each_others_inverse(parallelism: Parallelism) -> None:
    for mesh in (parallelism.dense, parallelism.experts):
        assert mesh.ranks == parallelism.ranks
        places = [coordinates(mesh, rank) for rank in range(mesh.ranks)]
        ranks = [sum(a * s for a, s in zip(at, mesh.strides, strict=True)) for at in places]
        assert ranks == list(range(mesh.ranks))
        assert len(set(places)) == mesh.ranks


@few
@given(parallelisms())
def test_groups_divide_the_ranks_and_differ_in_one_coordinate(parallelism: Parallelism) -> None:
    for mesh in (parallelism.dense, parallelism.experts):
        for axis, name in enumerate(mesh.names):
            groups = mesh.groups(name)
            assert sorted(rank for group in groups for rank in group) == list(range(mesh.ranks))
            assert [group[0] for group in groups] == sorted(group[0] for group in groups)
            for group in groups:
                places = [coordinates(mesh, rank) for rank in group]
                assert [at[axis] for at in places] == list(range(mesh.size(name)))
                assert len({at[:axis] + at[axis + 1 :] for at in places}) == 1


@few
@given(parallelisms(), st.integers(1, 24))
def test_what_stays_within_a_block_does(parallelism: Parallelism, block: int) -> None:
    mesh = parallelism.dense
    for name in mesh.names:
        inside = all(len({rank // block for rank in group}) == 1 for group in mesh.groups(name))
        # Blocks may cut the last groups off where they do not divide: only one way is promised.
        assert inside or not mesh.stays_within(name, block)
        if mesh.ranks % block == 0:
            assert inside == mesh.stays_within(name, block)


def test_the_examples_in_the_docstrings_of_megatron() -> None:
    mesh = Mesh(names=("tp", "dp", "pp"), sizes=(2, 2, 4))
    assert mesh.groups("dp")[:4] == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert mesh.groups("tp")[:3] == ((0, 1), (2, 3), (4, 5))
    assert mesh.groups("pp") == ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
    mesh = Mesh(names=("tp", "pp", "dp"), sizes=(2, 2, 2))
    assert mesh.groups("dp") == ((0, 4), (1, 5), (2, 6), (3, 7))


@few
@given(parallelisms())
def test_the_formula_of_megatron(parallelism: Parallelism) -> None:
    """`global_rank = tp_rank + dp_rank * tp_size + pp_rank * tp_size * dp_size`, any order."""
    for mesh in (parallelism.dense, parallelism.experts):
        for rank in range(mesh.ranks):
            at = coordinates(mesh, rank)
            assert rank == sum(a * prod(mesh.sizes[:i]) for i, a in enumerate(at))


@pytest.fixture(scope="module")
def fake_group() -> Iterator[Any]:
    """Let torch believe in many processes; without torch, skip."""
    dist = module("torch.distributed")
    fake = module("torch.testing._internal.distributed.fake_pg")

    def start(rank: int, world: int) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("fake", store=fake.FakeStore(), rank=rank, world_size=world)

    yield start
    if dist.is_initialized():
        dist.destroy_process_group()


@fewer
@given(st.data())
def test_torch_gives_each_rank_the_same_place(fake_group: Any, data: st.DataObject) -> None:
    dist = module("torch.distributed")
    parallelism = data.draw(parallelisms())
    rank = data.draw(st.integers(0, parallelism.ranks - 1))
    text = export(parallelism, Export.DEVICEMESH).replace('"cuda"', '"cpu"')
    fake_group(rank, parallelism.ranks)
    names: dict[str, Any] = {}
    exec(text, names)
    pairs = [("mesh", parallelism.dense)]
    pairs += [("expert_mesh", parallelism.experts)] * (parallelism.ep > 1)
    for variable, ours in pairs:
        theirs = names[variable]
        assert tuple(reversed(theirs.get_coordinate())) == coordinates(ours, rank)
        for name in ours.names:
            assert theirs.get_local_rank(name) == ours.coordinate(name, rank)
            group = next(group for group in ours.groups(name) if rank in group)
            assert tuple(dist.get_process_group_ranks(theirs.get_group(name))) == group


@fewer
@given(sizes, sizes, sizes)
def test_deepspeed_gives_each_rank_the_same_place(tp: int, dp: int, pp: int) -> None:
    module("deepspeed.runtime.pipe.topology")
    parallelism = Parallelism(tp=tp, dp=dp, pp=pp)
    names: dict[str, Any] = {}
    exec(export(parallelism, Export.DEEPSPEED), names)
    topology, mesh = names["topology"], parallelism.dense
    assert topology.world_size() == parallelism.ranks
    for rank in range(parallelism.ranks):
        at = topology.get_coord(rank)
        assert (at.model, at.data, at.pipe) == tuple(
            mesh.coordinate(name, rank) for name in ("tp", "dp", "pp")
        )


def test_other_words_for_the_same_layout() -> None:
    parallelism = Parallelism(tp=4, dp=8, pp=2, ep=4)
    assert export(parallelism, Export.MEGATRON).split() == [
        "--tensor-model-parallel-size", "4", "\\", "--pipeline-model-parallel-size", "2", "\\",
        "--context-parallel-size", "1", "\\", "--expert-model-parallel-size", "4",
    ]  # fmt: skip
    env = export(parallelism, Export.ENV).splitlines()
    assert "export MESH_SHAPE=2,8,1,4" in env
    assert "export MESH_DIM_NAMES=pp,dp,cp,tp" in env
    assert "export PP_SIZE=2" in env
    assert "export EXPERT_MESH_SHAPE=2,2,4,4" in env
    assert "export EXPERT_MESH_DIM_NAMES=pp,edp,ep,tp" in env
    assert "EXPERT" not in export(Parallelism(tp=4, dp=8), Export.ENV)


def test_orders_that_a_library_cannot_make() -> None:
    swapped = Parallelism(tp=2, dp=2, pp=2, order=parse_order("tp-cp-ep-pp-dp"))
    assert "--use-tp-pp-dp-mapping" in export(swapped, Export.MEGATRON)
    with pytest.raises(UserError, match="DeepSpeed does not number ranks"):
        export(swapped, Export.DEEPSPEED)
    with pytest.raises(UserError, match="no place for cp 2"):
        export(Parallelism(cp=2), Export.DEEPSPEED)
    strange = Parallelism(tp=2, dp=2, pp=2, order=parse_order("pp-dp-tp"))
    with pytest.raises(UserError, match=r"Megatron-LM cannot number .* pp-dp-tp-cp-ep"):
        export(strange, Export.MEGATRON)
    # Its experts would be in other stages (initialize_model_parallel asserts that they are not).
    folded = Parallelism(tp=2, cp=2, dp=2, pp=2, order=parse_order("tp-cp-ep-pp-dp"))
    with pytest.raises(UserError, match="Megatron-LM cannot number"):
        export(folded, Export.MEGATRON)
    # What has one rank only may stand anywhere.
    same = Parallelism(tp=2, dp=2, order=parse_order("pp-tp-dp"))
    assert "mapping" not in export(same, Export.MEGATRON)


@pytest.mark.parametrize(
    ("asked", "message", "hint"),
    [
        ({"tp": 8, "pp": 3}, "8 nodes x 8 GPUs = 64 do not divide into tp 8 x pp 3 = 24 GPUs",
         "--pp 2 or 4, or --nodes 6 or 9"),
        ({"tp": 8, "pp": 2, "dp": 8}, "tp 8 x dp 8 x pp 2 = 128 GPUs, but 8 nodes",
         "--dp 4, or --nodes 16"),
        ({"tp": 8, "pp": 2, "ep": 3}, "ep 3 does not divide the 4 ranks of dp x cp", "--ep 2, 4"),
        ({"tp": 0}, "--tp is 0", "from 1 on"),
        ({"tp": 2, "pp": 2, "ep": 4, "order": parse_order("tp-cp-ep-pp-dp")},
         "another pipeline stage", "--order tp-cp-ep-dp-pp"),
    ],
)  # fmt: skip
def test_what_does_not_divide_says_what_would(
    asked: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(UserError) as caught:
        arrange(LayoutRequest(nodes=8, gpus_per_node=8, **asked))
    assert message in str(caught.value)
    assert hint in str(caught.value)


@few
@given(st.integers(1, 12), st.integers(1, 8), st.integers(1, 6), st.integers(1, 6))
def test_the_number_of_nodes_that_is_hinted_at_divides(n: int, g: int, tp: int, pp: int) -> None:
    try:
        found = arrange(LayoutRequest(nodes=n, gpus_per_node=g, tp=tp, pp=pp))
    except UserError as error:
        hint = str(error).rpartition("--nodes ")[2]
        for nodes in map(int, hint.split(" or ")):
            assert nodes * g % (tp * pp) == 0
    else:
        assert found.ranks == n * g


@pytest.mark.parametrize(("text", "why"), [("tp-xp", "unknown dimension 'xp'"), ("tp-tp", "twice")])
def test_an_order_that_is_none(text: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        parse_order(text)


def laid_out(
    hosts: str = "n[1-8]",
    gpus: int = 8,
    *,
    island: int | None = None,
    fabric: Fabric | None = None,
    keep_order: bool = False,
    **sizes: Any,
) -> Layout:
    names = expand(hosts)
    return place(
        arrange(LayoutRequest(nodes=len(names), gpus_per_node=gpus, **sizes)),
        hosts=names,
        gpus_per_node=gpus,
        islands=even_islands(island or gpus, gpus),
        fabric=fabric,
        keep_order=keep_order,
    )


def test_a_tree_of_switches() -> None:
    fabric = parse_fabric(TREE)
    assert [leaf.path for leaf in fabric.leaves] == [("top", "s0"), ("top", "s1")]
    assert fabric.switch_of["n5"] == "s1"


def test_switches_of_one_parent_stand_together() -> None:
    text = """
    # a topology.conf
    SwitchName=a Nodes=n1
    SwitchName=b Nodes=n2
    SwitchName=c Nodes=n3
    SwitchName=left Switches=a,c
    SwitchName=right Switches=b
    SwitchName=root Switches=left,right
    """
    assert parse_fabric(text).nodes == ("n1", "n3", "n2")


def test_blocks() -> None:
    fabric = parse_fabric("BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2\n"
                          "BlockName=b2 BlockIndex=1 Nodes=n[3-4] BlockSize=2\n")  # fmt: skip
    assert fabric.switch_of == {"n1": "b1", "n2": "b1", "n3": "b2", "n4": "b2"}


@pytest.mark.parametrize(
    "text", ["", "No topology information available\n", "SwitchName=s Level=0"]
)
def test_no_topology(text: str) -> None:
    with pytest.raises(UserError, match="names no switch with nodes"):
        parse_fabric(text)


def test_pipeline_neighbours_get_nodes_of_one_switch() -> None:
    fabric = parse_fabric(TREE)
    kept = laid_out(tp=8, pp=2, fabric=fabric, keep_order=True)
    assert kept.hosts == expand("n[1-8]")
    (odd,) = layout_warnings(kept)
    assert odd.message == "32 of 32 pairs of pipeline neighbours are not behind the same switch"
    better = laid_out(tp=8, pp=2, fabric=fabric)
    assert better.hosts == expand("n[1,3,5,7,2,4,6,8]")
    assert {better.reach(pair) for pair in better.neighbours()} == {Reach.SWITCH}
    assert layout_warnings(better) == ()


def test_switches_that_hold_no_whole_pipeline_lend_what_is_left() -> None:
    fabric = parse_fabric("SwitchName=a Nodes=n[1-3]\nSwitchName=b Nodes=n[4-8]")
    layout = laid_out(tp=8, pp=2, fabric=fabric)
    far = [pair for pair in layout.neighbours() if layout.reach(pair) is Reach.NETWORK]
    assert {layout.node(rank) for pair in far for rank in pair} == {3, 7}
    assert {layout.hosts[3], layout.hosts[7]} == {"n3", "n8"}


@few
@given(st.integers(0, 2), st.integers(0, 2), st.permutations(list(expand("n[1-8]"))))
def test_a_better_order_loses_no_host_and_is_not_worse(a: int, b: int, hosts: list[str]) -> None:
    fabric = parse_fabric(TREE)
    asked: dict[str, Any] = {"tp": 2**a, "pp": 2**b, "gpus": 4, "fabric": fabric}
    kept = laid_out(",".join(hosts), keep_order=True, **asked)
    better = laid_out(",".join(hosts), **asked)
    assert sorted(better.hosts) == sorted(hosts)

    def far(layout: Layout) -> int:
        return sum(layout.reach(pair) is Reach.NETWORK for pair in layout.neighbours())

    assert far(better) <= far(kept)
    assert far(better) == 0


def test_a_host_that_no_switch_knows() -> None:
    layout = laid_out("n[1-3],x1", tp=8, fabric=parse_fabric(TREE))
    assert layout.hosts[-1] == "x1"
    assert [odd.message for odd in layout_warnings(layout)] == ["the topology does not know x1"]


@pytest.mark.parametrize(
    ("asked", "message", "hint"),
    [
        ({"tp": 8, "island": 4}, "tp 8 leaves its NVLink island in every group", "--tp 4"),
        ({"tp": 16}, "tp 16 leaves its node in every group", "--tp 8"),
        ({"tp": 4, "gpus": 6}, "tp 4 leaves its node in 4 of 12 groups", "--tp 3"),
        ({"tp": 4, "cp": 4}, "cp 4 goes over 2 nodes in every group", "--cp 2"),
        ({"tp": 1, "ep": 16}, "ep 16 goes over 2 nodes in every group", "--ep 8"),
        ({"tp": 8, "pp": 2, "order": parse_order("dp-tp-pp")}, "tp 8 leaves its node",
         "--order tp-cp-ep-dp-pp"),
        ({"tp": 8, "ep": 2}, "ep 2 goes over 2 nodes", "fewer tensor ranks"),
    ],
)  # fmt: skip
def test_what_is_far_is_said_with_what_to_type(
    asked: dict[str, Any], message: str, hint: str
) -> None:
    (odd,) = layout_warnings(laid_out(**asked))
    assert odd.message.startswith(message)
    assert hint in (odd.hint or "")


@few
@given(
    st.sampled_from([1, 2, 4, 8, 16, 32]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]), orders,
)  # fmt: skip
def test_what_the_hint_says_helps(
    tp: int, cp: int, pp: int, island: int, order: tuple[str, ...]
) -> None:
    if tp * cp * pp > 64:
        return
    asked: dict[str, Any] = {"tp": tp, "cp": cp, "pp": pp, "order": order, "island": 2 * island}
    for odd in layout_warnings(laid_out(**asked)):
        flag, _, value = (odd.hint or "").partition(" ")
        name = flag.removeprefix("--")
        if name == "order":
            changed = {**asked, "order": parse_order(value)}
        elif name in {"tp", "cp"} and value.isdigit():
            changed = {**asked, name: int(value)}
        else:
            continue
        again = [other.key for other in layout_warnings(laid_out(**changed))]
        assert odd.key not in again


def test_islands_out_of_order_are_mended_by_the_order_of_gpus() -> None:
    islands = islands_of_groups([[0, 2], [1, 3]], 4, gpus=4, source="topo.txt")
    assert islands.parts == ((0, 2), (1, 3))
    layout = place(Parallelism(tp=2, dp=2), hosts=("n1",), gpus_per_node=4, islands=islands)
    (odd,) = layout_warnings(layout)
    assert odd.hint == "--env CUDA_VISIBLE_DEVICES=0,2,1,3"


def test_gpus_without_nvlink_are_islands_of_one() -> None:
    islands = islands_of_groups([[0, 1]], 4, gpus=4, source="topo.txt")
    assert islands.parts == ((0, 1), (2,), (3,))
    with pytest.raises(UserError, match="shows 4 GPUs, fewer than the 8 of a node"):
        islands_of_groups([[0, 1]], 8, gpus=4, source="topo.txt")


def test_an_island_of_several_nodes() -> None:
    """GB200 NVL72: 18 nodes of 4 GPUs; here 4 nodes, blocks as Slurm's topology/block has them."""
    assert layout_warnings(laid_out("n[1-8]", 4, tp=16, island=16)) == ()
    assert laid_out("n[1-8]", 4, tp=16, island=16).reach(range(16)) is Reach.ISLAND
    blocks = parse_fabric("BlockName=a BlockIndex=0 Nodes=n[1,3,5,7]\n"
                          "BlockName=b BlockIndex=1 Nodes=n[2,4,6,8]\n")  # fmt: skip
    layout = laid_out("n[1-8]", 4, tp=16, island=16, fabric=blocks)
    assert layout.hosts == expand("n[1,3,5,7,2,4,6,8]")
    assert layout_warnings(layout) == ()
    kept = laid_out("n[1-8]", 4, tp=16, island=16, fabric=blocks, keep_order=True)
    assert [odd.key for odd in layout_warnings(kept)] == ["tp"]


@pytest.mark.parametrize("island", [0, 3, 12])
def test_an_island_that_divides_no_node(island: int) -> None:
    with pytest.raises(UserError, match=f"--island {island} does not divide nodes of 8 GPUs"):
        even_islands(island, 8)


@few
@given(parallelisms(), st.integers(1, 8))
def test_patterns_hold_every_node_once_and_say_the_truth(
    parallelism: Parallelism, gpus: int
) -> None:
    if parallelism.ranks % gpus:
        return
    hosts = tuple(f"n{number}" for number in range(parallelism.ranks // gpus))
    layout = place(
        parallelism, hosts=hosts, gpus_per_node=gpus, islands=even_islands(gpus, gpus)
    )  # fmt: skip
    found = patterns(layout)
    rows = [(pattern, row) for pattern in found for row in pattern.rows]
    assert sorted(node for _, row in rows for node in row.nodes) == list(range(len(hosts)))
    for pattern, row in rows:
        for node in row.nodes:
            for name in (*pattern.slots, *row.coordinates):
                mesh = parallelism.mesh(name)
                values = [mesh.coordinate(name, node * gpus + slot) for slot in range(gpus)]
                above = tuple(value - min(values) for value in values)
                assert above == pattern.slots.get(name, (0,) * gpus)
                assert set(values) <= set(row.coordinates.get(name, values))


def test_every_order_of_dimensions_is_one() -> None:
    for order in permutations(DIMENSIONS):
        assert parse_order("-".join(order)) == order
