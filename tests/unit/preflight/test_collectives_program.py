"""The program that runs on the nodes, as far as one process tells: what it decides and writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from clusterkit.core.data import data_dir
from clusterkit.observe.bench.allreduce.document import read_document
from clusterkit.observe.bench.allreduce.result import MEASURED
from tests.helpers.loading import load
from tests.helpers.needs import require
from tests.helpers.recordings import recording
from tests.unit.observe.test_collectives import A100, WRONG

require("torch")
FOLDER = data_dir("templates/programs/collectives")
WISHES: dict[str, Any] = {
    "ops": ["all_reduce"],
    "sizes": [1 << 20, 1 << 30],
    "iterations": 20,
    "seconds": 30,
    "backend": "auto",
    "by": "auto",
}


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import the program, as torchrun finds what it imports: beside it."""
    monkeypatch.syspath_prepend(FOLDER)
    return load(FOLDER / "clusterkit_collectives.py")


def rank(node: str, gpus: int, **changes: Any) -> dict[str, Any]:
    device = "NVIDIA H100 80GB HBM3" if gpus else "cpu"
    known = {"node": node, "gpus": gpus, "ranks": 2, "device": device}
    return {**known, "free": 80e9, "host_free": 4e9, **changes}


def test_nodes_with_gpus_use_them(program: ModuleType) -> None:
    agreed = program._decide(WISHES, [rank("n1", 2), rank("n1", 2), rank("n2", 8, free=8e9)])
    assert agreed == {
        "backend": "nccl",
        "device": "NVIDIA H100 80GB HBM3",
        "limit": int(2e9),
        "one_node": False,
    }


def test_nodes_without_gpus_use_gloo(program: ModuleType) -> None:
    agreed = program._decide(WISHES, [rank("n1", 0), rank("n1", 0)])
    assert (agreed["backend"], agreed["device"], agreed["limit"]) == ("gloo", "cpu", int(1e9))
    assert agreed["one_node"] is True
    asked = program._decide({**WISHES, "backend": "gloo"}, [rank("n1", 2), rank("n2", 2)])
    assert (asked["backend"], asked["device"]) == ("gloo", "cpu")


@pytest.mark.parametrize("wanted", ["auto", "nccl"])
def test_a_node_that_lacks_gpus_is_named(program: ModuleType, wanted: str) -> None:
    agreed = program._decide({**WISHES, "backend": wanted}, [rank("n1", 2), rank("n2", 1)])
    why = "nccl needs a GPU for each of the 2 ranks on n2, and torch sees 1 there"
    assert agreed == {"error": why}


def nccl_tests(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, code: int = 0) -> Path:
    """Put a double of all_reduce_perf on PATH, as no GPU is here; return what it was asked."""
    (folder / "said").write_text(text, encoding="utf-8")
    tool = folder / "all_reduce_perf"
    body = f'echo "$*" >{folder}/asked; cat {folder}/said; exit {code}'
    tool.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setenv("CK_RESULTS", str(folder / "results"))
    return folder / "asked"


def bench(program: ModuleType, **changes: Any) -> Any:
    found = program.Bench({**WISHES, **changes}, None, 0, 8)
    found.document.update(nodes=["n1"] * 8, backend="nccl", device="NVIDIA A100-SXM4-80GB")
    return found


def test_nccl_tests_are_used_where_they_are(
    program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = nccl_tests(tmp_path, monkeypatch, recording(A100))
    assert program.run_nccl_tests(bench(program))
    assert asked.read_text() == f"-b {1 << 20} -e {1 << 30} -f 2 -g 8 -n 20 -c 1\n"
    result = read_document(json.loads((tmp_path / "results" / "collectives.json").read_text()))
    assert (result.source, result.ranks, result.correct) == ("nccl-tests", 8, True)
    assert max(one.busbw for one in result.measured) == 231.72e9


def test_wrong_values_of_nccl_tests_are_kept(
    program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nccl_tests(tmp_path, monkeypatch, recording(WRONG), code=1)
    assert program.run_nccl_tests(bench(program))
    result = read_document(json.loads((tmp_path / "results" / "collectives.json").read_text()))
    assert (result.correct, result.suspects) == (False, ("n1",))


def test_nccl_tests_that_do_not_run_leave_it_to_torch(
    program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not program.run_nccl_tests(bench(program, ops=["no_such_collective"]))
    said = "all_reduce_perf: error while loading shared libraries: libcudart.so.11.0\n"
    nccl_tests(tmp_path, monkeypatch, said, code=127)
    assert not program.run_nccl_tests(bench(program))
    assert not (tmp_path / "results").exists()


def test_nccl_tests_that_hang_are_ended(
    program: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nccl_tests(tmp_path, monkeypatch, "")
    tool = tmp_path / "all_reduce_perf"
    tool.write_text("#!/bin/sh\nsleep 600\n", encoding="utf-8")
    assert not program.run_nccl_tests(bench(program, seconds=1))


@pytest.mark.parametrize("op", [op.value for op in MEASURED])
def test_a_collective_that_does_nothing_is_wrong(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, op: str
) -> None:
    """Rank 32 of 64 has, of what it sends, the values of rank 1; without peers nothing arrives."""
    collective = sys.modules["clusterkit_collective"]
    monkeypatch.setattr(collective.dist, "get_rank", lambda group: 31)
    monkeypatch.setattr(collective.dist, "get_world_size", lambda group: 64)
    one = collective.Collective(op, 4096, program.torch.device("cpu"))
    monkeypatch.setattr(one, "run", lambda: None)
    count, first = one.wrong()
    assert count == len(one.result)
    assert first.startswith("element 0 is ")


def test_groups_are_those_of_the_layout(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESH_DIM_NAMES", "pp,dp,cp,tp")
    monkeypatch.setenv("MESH_SHAPE", "1,3,1,2")
    assert program._members("tp", 6) == [[0, 1], [2, 3], [4, 5]]
    assert program._members("dp", 6) == [[0, 2, 4], [1, 3, 5]]
    with pytest.MonkeyPatch.context() as more:
        more.setenv("EXPERT_MESH_DIM_NAMES", "pp,edp,ep,tp")
        more.setenv("EXPERT_MESH_SHAPE", "1,1,3,2")
        assert program._members("ep", 6) == [[0, 2, 4], [1, 3, 5]]
    for dimension, world in (("pp", 6), ("dp", 8), ("ep", 6)):
        with pytest.raises(SystemExit, match=f"Error: .*{dimension}"):
            program._members(dimension, world)


def test_sizes_are_what_all_ranks_can_share(program: ModuleType) -> None:
    assert program.rounded("all_reduce", 1 << 20, 3) == 1 << 20
    assert program.rounded("all_gather", 1 << 20, 3) == 1048572
    assert program.rounded("reduce_scatter", 4, 8) == 32
    assert sys.modules["clusterkit_collective"].WIDTH == 4
