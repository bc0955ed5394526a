"""`clusterkit layout` as its users meet it: pictures, messages, exit codes."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.command_line import outcome
from tests.helpers.recordings import recording
from tests.unit.launch.test_layout import TREE

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run the verb in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLUSTERKIT_DEBUG", raising=False)

    def run(*args: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        return outcome("layout", *args)

    return run


def test_a_layout_with_nothing_far(run: Run) -> None:
    code, out, err = run("--tp", "8", "--pp", "2", "--hosts", "n[1-8]", "--topology", "-",
                         stdin=TREE)  # fmt: skip
    assert (code, err) == (0, "")
    assert (
        out
        == """\
8 nodes x 8 GPUs = 64 ranks: tp 8 x dp 4 x pp 2
order tp-cp-ep-dp-pp, the fastest first

slot     0  1  2  3  4  5  6  7
tp       0  1  2  3  4  5  6  7

nodes       ranks  dp   pp
n[1,3,5,7]  0-31   0-3  0
n[2,4,6,8]  32-63  0-3  1

      size  groups  each group is in
tp       8       8  one NVLink island
dp       4      16  4 nodes
pp       2      32  2 nodes behind one switch

hosts in rank order: n[1,3,5,7,2,4,6,8]

NVLink is taken to join all GPUs of a node; --island says otherwise.
"""
    )


def test_an_island_that_tensor_ranks_leave(run: Run) -> None:
    code, out, err = run("--tp", "8", "--nodes", "2", "--island", "4")
    assert (code, err) == (1, "")
    assert "slot     0  1  2  3| 4  5  6  7\n" in out
    assert "node-[0-1]  0-15   0-1\n" in out
    assert out.endswith("hint: --tp 4\n")


def test_coordinates_that_go_on_from_node_to_node(run: Run) -> None:
    _, out, _ = run("--tp", "2", "--nodes", "16", "--hosts", "n[01-16]")
    assert "dp       +0  +0  +1  +1  +2  +2  +3  +3\n" in out
    assert "n[01-16]  0-127  0-63\n" in out


@pytest.mark.parametrize("args", [
    ("--tp", "8", "--pp", "64", "--nodes", "4096"),
    ("--tp", "4", "--gpus-per-node", "6", "--nodes", "64"),
    ("--tp", "64", "--gpus-per-node", "64", "--nodes", "3"),
    ("--dp", "96", "--gpus-per-node", "32", "--cp", "3", "--ep", "32"),
    ("--tp", "8", "--hosts", ",".join(f"rack{n % 7}-{n * 37 % 1009}" for n in range(200))),
], ids=lambda args: " ".join(args)[:40])  # fmt: skip
def test_fits_a_terminal(run: Run, args: tuple[str, ...]) -> None:
    code, out, _ = run(*args)
    assert code in {0, 1}
    assert [line for line in out.splitlines() if len(line) > 80] == []
    assert len(out.splitlines()) < 150


def test_a_matrix_of_nvidia_smi_is_an_island(run: Run) -> None:
    Path("topo.txt").write_text(recording("topo_dgxa100_12mlx5_tabs.txt"))
    code, out, _ = run("--tp", "8", "--nodes", "2", "--island", "topo.txt", "--json")
    island = json.loads(out)["island"]
    assert (code, island["assumed"], island["slots"]) == (0, False, [list(range(8))])
    Path("bad.txt").write_text("nothing")
    code, _, err = run("--tp", "8", "--nodes", "2", "--island", "bad.txt")
    assert code == 2
    assert "bad.txt holds no topology matrix" in err


def test_json_has_every_rank(run: Run) -> None:
    code, out, err = run("--tp", "2", "--ep", "2", "--pp", "2", "--nodes", "2", "--gpus-per-node",
                         "4", "--hosts", "b,a", "--json")  # fmt: skip
    said = json.loads(out)
    assert (code, err, said["schema"], said["hosts"]) == (0, "", 1, ["b", "a"])
    assert said["sizes"] == {"tp": 2, "cp": 1, "ep": 2, "dp": 2, "pp": 2, "edp": 1}
    assert said["ranks"][6] == {
        "rank": 6, "host": "a", "node": 1, "slot": 2, "tp": 0, "ep": 1, "dp": 1, "pp": 1,
    }  # fmt: skip
    assert said["dimensions"]["pp"] == {
        "size": 2, "reach": "network", "groups": [[0, 4], [1, 5], [2, 6], [3, 7]],
    }  # fmt: skip
    assert said["dimensions"]["tp"]["reach"] == "island"
    assert said["warnings"] == []


def test_json_has_the_warnings(run: Run) -> None:
    code, out, _ = run("--tp", "16", "--nodes", "2", "--json", "--export", "megatron")
    said = json.loads(out)
    assert code == 1
    assert [(w["about"], w["hint"]) for w in said["warnings"]] == [("tp", "--tp 8")]
    assert said["export"].startswith("--tensor-model-parallel-size 16")


def test_an_export_alone_is_on_stdout(run: Run) -> None:
    code, out, err = run("--tp", "16", "--nodes", "2", "--export", "env")
    assert code == 1
    assert out.splitlines()[0] == "export TP_SIZE=16"
    assert all(line.startswith("export ") for line in out.splitlines())
    assert "tp 16 leaves its node" in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--tp", "8"), "how many machines are there?"),
        (("--nodes", "3", "--hosts", "n[1-4]"), "--hosts has 4 nodes, and --nodes says 3"),
        (("--nodes", "3", "--hosts", "n[1-4]"), "--hosts n[1-3], or --nodes 4"),
        (("--hosts", "n1,n1"), "--hosts names n1 twice"),
        (("--nodes", "2", "--export", "megatrn"), "did you mean 'megatron'?"),
        (("--nodes", "2", "--order", "tp-qp"), "unknown dimension 'qp'"),
        (("--nodes", "2", "--topology", "none.txt"), "none.txt"),
        (("--nodes", "2", "--tp", "3"), "--tp 2 or 4, or --nodes 3"),
        (("--nodes", "2", "--gpus-per-node", "0"), "--gpus-per-node is 0"),
        (("--nodes", "0"), "--nodes is 0"),
        (("--nodes", "300000", "--tp", "8"), "at most 1,048,576 ranks"),
    ],
)
def test_what_cannot_be(run: Run, args: tuple[str, ...], message: str) -> None:
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert message in err


def test_copies_alone_say_how_many_nodes(run: Run) -> None:
    _, out, _ = run("--tp", "4", "--pp", "2", "--dp", "4")
    assert out.startswith("4 nodes x 8 GPUs = 32 ranks: tp 4 x dp 4 x pp 2\n")


def test_a_topology_alone_names_the_hosts(run: Run) -> None:
    code, out, _ = run("--tp", "8", "--pp", "4", "--topology", "-", stdin=TREE)
    assert code == 0
    assert "hosts in rank order: n[1,5,2,6,3,7,4,8]\n" in out
    code, _, err = run("--tp", "8", "--nodes", "4", "--topology", "-", stdin=TREE)
    assert code == 2
    assert "the topology has 8 nodes, and --nodes says 4" in err
    assert "--hosts n[1-4], or --nodes 8" in err


def test_a_cluster_without_switches(run: Run) -> None:
    said = "No topology information available\n"
    code, _, err = run("--nodes", "2", "--tp", "8", "--topology", "-", stdin=said)
    assert code == 2
    assert "<stdin> names no switch with nodes" in err


def test_pipelines_longer_than_a_switch_are_warned_of(run: Run) -> None:
    code, out, _ = run("--tp", "8", "--pp", "8", "--topology", "-", stdin=TREE)
    assert code == 1
    assert "8 of 56 pairs of pipeline neighbours are not behind the same" in out
