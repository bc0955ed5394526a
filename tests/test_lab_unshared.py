"""Machines reached by ssh that share no file system: prepared, and running jobs."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.desk import CHECKOUT, Desk
from tests.lab import Lab
from tests.lab_apart import OURS, desk_apart, homes_apart, wheelhouse

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wheelhouse(tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="module")
def apart(lab: Lab, wheels: Path) -> Iterator[Desk]:
    """Give a desk whose three hosts share nothing, and have been prepared."""
    with homes_apart(lab, lab.nodes):
        desk = desk_apart(lab, "apart")
        done = desk.clusterkit("nodes", "prepare", "-c", "apart", "--wheels", str(wheels))
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.split(maxsplit=2)[:2] == ["n[1-3]", "ready"]
        yield desk


def test_prepared_nodes_are_left_alone(apart: Desk, wheels: Path) -> None:
    words = ("nodes", "prepare", "-c", "apart", "--wheels", str(wheels))
    done = apart.clusterkit(*words)
    assert done.returncode == 0
    assert done.stdout.startswith("n[1-3]  up to date  Python 3.")
    (wheel,) = wheels.glob("clusterkit-*.whl")
    # With other ingredients they are made anew, on the named hosts alone.
    done = apart.clusterkit(
        "nodes", "prepare", "-c", "apart", "--hosts", "n2", "--wheels", str(wheel), "--json"
    )
    (node,) = json.loads(done.stdout)["nodes"]
    assert (node["node"], node["readiness"]) == ("n2", "ready"), done.stdout
    assert apart.clusterkit(*words).stdout.splitlines()[0].startswith("n[1,3]  up to date")


THREE = ("--cluster", "apart", "--framework", "torchrun", "--nodes", "3", "--preflight", "off")


def on_each(desk: Desk, command: str) -> list[str]:
    """Return what a command of sh prints on each node."""
    hosts = desk.lab.nodes
    return [desk.lab.run(host, ["sh", "-c", command], check=True).stdout.strip() for host in hosts]


def test_training_with_a_copy_of_the_folder_brings_logs_and_results_back(apart: Desk) -> None:
    work = apart.folder / "work"
    shutil.copytree(CHECKOUT / "examples", work / "src")
    (work / "src" / "train.py").write_text(
        (work / "src" / "train_ddp.py").read_text() + "\nimport os, pathlib\n"
        "rank, results = os.environ['RANK'], pathlib.Path(os.environ['CK_RESULTS'])\n"
        "(results / f'rank {rank}').write_text(os.getcwd())\n"
        "print('NAME', os.environ['SECRET_NAME'])\n"
    )
    (work / "src" / "big.bin").write_bytes(b"0" * 1000)
    (work / ".gitignore").write_text("*.bin\n")
    words = ("submit", *THREE, "--sync", "work", "--secret", "SECRET_NAME", "--follow")
    script = ("work/src/train.py", "--steps", "20")
    done = apart.clusterkit(*words, *script, env={"SECRET_NAME": "x7"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("NAME x7") == 6
    (run,) = (apart.folder / "runs").iterdir()
    there = f"{OURS}/runs/{run.name}"
    # Ranks 0 and 1 are those of the first node; those of others have a folder each.
    assert {str(p.relative_to(run)) for p in run.glob("results/**/rank*")} == {
        "results/rank 0",
        "results/rank 1",
        "results/node-1/rank 2",
        "results/node-1/rank 3",
        "results/node-2/rank 4",
        "results/node-2/rank 5",
    }
    assert (run / "results" / "rank 0").read_text() == f"{there}/work"
    assert [(run / "logs" / f"node-{k}.log").read_text() for k in range(3)] == [
        text + "\n" for text in on_each(apart, f"cat {there}/logs/*")
    ]
    # What is ignored was not sent, and no secret is left.
    listed = on_each(apart, f"cd {there}; ls -a work work/src; ls secrets.env 2>&1 || true")
    assert all("big.bin" not in text and "No such file" in text for text in listed)
    assert apart.state(run.name) == "succeeded"


def test_nodes_that_cannot_be_prepared_say_why(lab: Lab, wheels: Path, tmp_path: Path) -> None:
    desk = desk_apart(lab, "not-prepared")
    words = ("nodes", "prepare", "-c", "apart")
    with homes_apart(lab, ["n1"], size="30m"), homes_apart(lab, ["n2"]):
        done = desk.clusterkit(*words, "--hosts", "n1", "--wheels", str(wheels))
        assert done.returncode == 1
        assert f"MiB are free at {OURS}/venv, and about" in done.stdout
        done = desk.clusterkit(*words, "--hosts", "n2", "--python", "/nowhere/python")
        assert done.returncode == 1
        assert "n2  failed  /nowhere/python cannot be run there" in done.stdout
        assert "hint: install Python 3.11" in done.stdout
        done = desk.clusterkit(*words, "--hosts", "n2", "--python", str(old_python(desk.folder)))
        assert done.returncode == 1
        assert "is Python 3.8.2, and 3.11 or later is needed" in done.stdout
        done = desk.clusterkit(*words, "--hosts", "n2", "--wheels", str(lone(wheels, tmp_path)))
        assert done.returncode == 1
        assert "No matching distribution found for" in done.stdout
        assert "hint: give a wheel of it: --wheels DIR" in done.stdout
    done = desk.clusterkit(*words, "--hosts", "n1,n9")
    assert done.returncode == 2
    assert "cluster apart has no host n9" in done.stderr


def old_python(folder: Path) -> Path:
    """Return a double for a Python that is too old: this one, which says that it is another."""
    double = folder / "python-old"
    # It is called with -I -X utf8 -c PROGRAM TOKEN.
    double.write_text(
        "#!/bin/sh\nold='import sys; sys.version_info = (3, 8, 2)\n'\n"
        f'exec {sys.executable} "$1" "$2" "$3" "$4" "$old$5" "$6"\n'
    )
    double.chmod(0o755)
    return double


def lone(wheels: Path, folder: Path) -> Path:
    """Return our wheel in a folder without any other."""
    (wheel,) = wheels.glob("clusterkit-*.whl")
    alone = folder / wheel.name
    alone.write_bytes(wheel.read_bytes())
    return alone
