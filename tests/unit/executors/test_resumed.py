"""A step that a service runs again, as HyperPod does, within one start of the job."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterkit.executors.node.identity import of_this_step
from clusterkit.executors.run.runfolder import RunFolder


def step(run: RunFolder, restart: int, number: int | str, nodes: str = "n[1-2]") -> dict[str, str]:
    """Return what both nodes of a step make of it; they agree."""
    variables = {
        "CK_RESTART_COUNT": str(restart),
        "CK_NODES": "n1 n2",
        "SLURM_STEP_ID": str(number),
        "SLURM_STEP_NODELIST": nodes,
    }
    one, other = (of_this_step(run, variables) for _ in range(2))
    assert one == other
    return one


def test_each_step_of_a_start_is_an_attempt(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    told = [step(run, *where) for where in ((0, 0), (0, 9), (0, 10), (1, 0), (1, 1), (3, 2))]
    counts = [None, "1", "2", "3", "4", "6"]
    assert [one.get("CK_RESTART_COUNT") for one in told] == counts
    assert all(one.keys() <= {"CK_RESTART_COUNT"} for one in told)


@pytest.mark.parametrize(
    ("nodes", "changed"),
    [
        ("n[1,7]", {"CK_NODES": "n1 n7"}),
        ("n[0,2]", {"CK_NODES": "n0 n2", "CK_HEAD_ADDR": "n0"}),
        ("n1", {}),
        ("n[1-", {}),
        ("", {}),
    ],
)
def test_a_node_that_was_replaced_is_known_by_its_new_name(
    tmp_path: Path, nodes: str, changed: dict[str, str]
) -> None:
    run = RunFolder(tmp_path)
    assert step(run, 0, 0, nodes) == {}
    assert step(run, 0, 1, nodes) == {"CK_RESTART_COUNT": "1", **changed}


@pytest.mark.parametrize("number", ["", "batch", "-1", "1" * 40])
def test_what_is_no_step_changes_nothing(tmp_path: Path, number: str) -> None:
    run = RunFolder(tmp_path)
    (tmp_path / "step-0-0").touch()
    assert step(run, 0, number) == {}
    assert [path.name for path in tmp_path.iterdir()] == ["step-0-0"]
