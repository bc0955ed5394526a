"""`submit` and `render` as a user types them, mistakes included."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFIG = """\
default_cluster: a100
clusters:
  a100: {kind: slurm, partition: gpu, gpus_per_node: 8, run_dir: runs}
  rack: {kind: ssh, hosts: "n[1-3]", gpus_per_node: 2}
"""


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    (tmp_path / "clusterkit.yaml").write_text(CONFIG)
    (tmp_path / "train.py").write_text("print('hello')\n")
    return tmp_path


def run(desk: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "clusterkit", *words],
        cwd=desk,
        env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "SECRET": "hush", **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


TORCHRUN = ("--framework", "torchrun")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("submit",), ["no training script", "no framework"]),
        (("submit", *TORCHRUN, "trian.py"), ["trian.py does not exist", "did you mean train.py?"]),
        (("submit", *TORCHRUN, "."), ["is a folder"]),
        (("submit", *TORCHRUN, "--nodes", "two", "train.py"), ["--nodes 'two'", "--nodes 4"]),
        (("submit", *TORCHRUN, "--nodes", "0", "train.py"), ["at least 1 node"]),
        (("submit", *TORCHRUN, "--gpus-per-node", "x", "train.py"), ["--gpus-per-node 'x'"]),
        (("submit", *TORCHRUN, "--cluster", "a10", "train.py"), ["'a10'", "did you mean 'a100'?"]),
        (("submit", *TORCHRUN, "--env", "A", "train.py"), ["no `=`", "--env A=VALUE"]),
        (("submit", *TORCHRUN, "--set", "mem=1G", "train.py"), ["--set sbatch.mem=..."]),
        (("submit", *TORCHRUN, "--exclude", "n[3-1]", "train.py"), ["n[3-1]", "^"]),
        (("submit", *TORCHRUN, "--container", "dokcer", "train.py"), ["did you mean 'docker'?"]),
        (("submit", *TORCHRUN, "--preflight", "full", "train.py"), ["auto or off"]),
        (("submit", *TORCHRUN, "--secret", "NOT_SET", "train.py"), ["NOT_SET", "export it"]),
        (("submit", *TORCHRUN, "--cluster", "rack", "train.py"), ["later release", "render"]),
        (("submit", *TORCHRUN, "--job", "no.yaml", "train.py"), ["no.yaml"]),
        (("submit", *TORCHRUN, "--node", "2", "train.py"), ["No such option", "--nodes"]),
        (("sumbit",), ["Did you mean 'submit'?"]),
        (("render", *TORCHRUN, "--only", "sbath", "train.py"), ["did you mean 'sbatch'?"]),
    ],
)
def test_mistakes_exit_2_and_say_what_to_type(
    desk: Path, words: tuple[str, ...], said: list[str]
) -> None:
    done = run(desk, *words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert max(len(line) for line in done.stderr.splitlines()) <= 100
    for text in said:
        assert text in done.stderr
    assert not list(desk.glob("runs/*"))


def test_an_error_is_a_document_as_well(desk: Path) -> None:
    done = run(desk, "submit", "--json", *TORCHRUN, "trian.py")
    assert done.returncode == 2
    document = json.loads(done.stdout)
    assert document["schema"] == 1
    assert document["error"]["problems"][0]["hint"] == "did you mean train.py?"


def test_no_slurm_on_this_machine(desk: Path) -> None:
    python = Path(sys.executable).parent
    done = run(desk, "submit", *TORCHRUN, "train.py", PATH=f"{python}:/nowhere")
    assert done.returncode == 2
    assert "sbatch" in done.stderr
    assert "hint:" in done.stderr


def test_a_dry_run_shows_the_script_and_leaves_nothing(desk: Path) -> None:
    done = run(desk, "submit", "--dry-run", *TORCHRUN, "--nodes", "2", "train.py", "--lr", "1")
    assert done.returncode == 0
    assert done.stdout.startswith("#!/bin/bash\n#SBATCH --job-name=train\n")
    assert "would run   sbatch job.sbatch" in done.stderr
    assert not (desk / "runs").exists()


def test_a_dry_run_shows_the_very_text_of_render(desk: Path) -> None:
    words = (*TORCHRUN, "--nodes", "2", "train.py")
    shown = run(desk, "submit", "--dry-run", *words).stdout
    assert run(desk, "render", "--only", "sbatch", "--stdout", *words).stdout == shown


def test_secrets_do_not_show(desk: Path) -> None:
    done = run(desk, "submit", "--dry-run", "--json", *TORCHRUN, "--secret", "SECRET", "train.py")
    assert json.loads(done.stdout)["plan"]["secrets"] == ["SECRET"]
    assert "hush" not in done.stdout + done.stderr


def test_render_writes_and_diff_tells_what_changed(desk: Path) -> None:
    words = (*TORCHRUN, "--nodes", "2", "train.py")
    done = run(desk, "render", *words)
    assert done.stdout.split() == [
        f"rendered/{name}" for name in ("job.sbatch", "node.sh", "compose.yaml", "compose-node.sh")
    ]
    assert os.access(desk / "rendered" / "node.sh", os.X_OK)
    assert run(desk, "render", "--diff", *words).returncode == 0
    changed = run(desk, "render", "--diff", "--time", "1:00:00", *words)
    assert changed.returncode == 1
    assert "+#SBATCH --time=1:00:00" in changed.stdout
    document = json.loads(run(desk, "render", "--diff", "--json", "--time", "5", *words).stdout)
    assert document["changed"] == ["job.sbatch"]


def test_a_hostfile_where_the_hosts_are_known(desk: Path) -> None:
    words = (*TORCHRUN, "--nodes", "2", "train.py")
    known = run(desk, "render", "--only", "hostfile", "--stdout", "--cluster", "rack", *words)
    assert known.stdout == "n1 slots=2\nn2 slots=2\n"
    unknown = run(desk, "render", "--only", "hostfile", "--stdout", *words)
    assert unknown.stdout == ""
    assert "no hostfile" in unknown.stderr


def test_flags_win_over_the_job_file_and_variables_between(desk: Path) -> None:
    (desk / "job.yaml").write_text(
        "framework: deepspeed\nnodes: 3\nscript: train.py\nargs: [--a]\nenv: {A: 1, B: 2}\n"
    )

    def plan(*words: str, **env: str) -> dict[str, object]:
        done = run(desk, "submit", "--dry-run", "--json", "--job", "job.yaml", *words, **env)
        assert done.returncode == 0, done.stderr
        document: dict[str, object] = json.loads(done.stdout)["plan"]
        return document

    made = plan()
    assert (made["framework"], made["nodes"], made["args"]) == ("deepspeed", 3, ["--a"])
    assert plan(CLUSTERKIT_NODES="4")["nodes"] == 4
    assert plan("--nodes", "5", CLUSTERKIT_NODES="4")["nodes"] == 5
    assert plan("--env", "B=3")["env"] == {"A": "1", "B": "3"}


def test_a_wrong_job_file_is_explained_with_its_lines(desk: Path) -> None:
    (desk / "job.yaml").write_text("framework: torchrun\nnode: 2\nscrpt: train.py\n")
    done = run(desk, "submit", "--job", "job.yaml")
    assert done.returncode == 2
    assert "job.yaml:2:1" in done.stderr
    assert "did you mean 'nodes'?" in done.stderr
    assert "job.yaml:3:1" in done.stderr


def test_a_run_folder_that_cannot_be_written(desk: Path) -> None:
    (desk / "clusterkit.yaml").write_text("clusters: {local: {run_dir: /proc/nothing}}\n")
    done = run(desk, "submit", *TORCHRUN, "--cluster", "local", "train.py")
    assert done.returncode == 2
    assert "/proc/nothing" in done.stderr


def test_options_after_the_script_are_the_scripts(desk: Path) -> None:
    words = ("submit", "--dry-run", "--json", *TORCHRUN, "train.py", "--nodes", "7", "--json", "-n")
    done = run(desk, *words)
    assert "--nodes stands after train.py and goes to the script" in done.stderr
    document = json.loads(done.stdout)
    assert document["plan"]["nodes"] == 1
    assert document["plan"]["args"] == ["--nodes", "7", "--json", "-n"]
