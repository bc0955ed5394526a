"""What is rendered, byte for byte, and through the linters. `make golden` writes the files anew."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from clusterkit.launch.render import render, write_files
from tests.helpers.embedded import (
    TABLE,
    as_reviewed,
    changes,
    golden_of,
    hashes,
    named,
    programs,
    without_here_documents,
)
from tests.helpers.paths import TESTS
from tests.helpers.render_cases import CASES, plan

ON_SLURM = [case for case, (_, cluster) in CASES.items() if cluster.kind == "slurm"]
GOLDEN = TESTS / "golden" / "render"


@pytest.mark.parametrize("case", CASES)
def test_rendered_files_are_as_reviewed(case: str) -> None:
    rendered = as_reviewed({file.name: file.text for file in render(plan(case))})
    assert rendered == golden_of(GOLDEN / case, rendered)


def test_embedded_programs_are_as_reviewed() -> None:
    golden = [*GOLDEN.glob("*/*"), *GOLDEN.parent.glob("compose-hosts/*")]
    now = hashes(named(path.read_text(encoding="utf-8") for path in golden))
    if os.environ.get("CLUSTERKIT_GOLDEN") == "write":
        TABLE.write_text(now, encoding="utf-8")
    assert changes(TABLE.read_text(encoding="utf-8"), now) == []


def test_a_changed_program_is_named_with_the_way_to_renew_it() -> None:
    table = TABLE.read_text(encoding="utf-8")
    name = "templates/frameworks/ray/ray_launch.py"
    (line,) = changes(table.replace(hashes({name})[:64], "0" * 64), table)
    assert line == f"{name} is changed: if that was meant, make golden"
    (line,) = changes(table.replace(hashes({name}), ""), table)
    assert line.startswith(f"{name} is new:")


def test_only_what_is_word_for_word_a_program_is_taken_for_it() -> None:
    program = programs()["templates/frameworks/ray/ray_launch.py"]
    for text in (program.replace("GATHER_S = 10", "GATHER_S = 11"), program.rstrip("\n")[:-1]):
        assert as_reviewed({"node.sh": f"a\n{text}\nb\n"}) == {"node.sh": f"a\n{text}\nb\n"}
    longer = as_reviewed({"node.sh": f"a\n{program}more()\nb\n"})
    mark = "# <embedded: templates/frameworks/ray/ray_launch.py>"
    assert longer == {"node.sh": f"a\n{mark}\nmore()\nb\n"}


def test_another_process_renders_the_same_bytes() -> None:
    code = (
        "from tests.helpers.render_cases import CASES, plan\n"
        "from clusterkit.launch.render import render\n"
        "import hashlib; print(hashlib.sha256("
        "repr([render(plan(case)) for case in CASES]).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(GOLDEN.parents[2])},
            cwd=GOLDEN.parents[2],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_rendered_scripts_are_clean_for_bash_and_shellcheck(tmp_path: Path) -> None:
    scripts = {
        path: path.read_text(encoding="utf-8")
        for case in CASES
        for path in write_files(render(plan(case)), tmp_path / case)
        if path.suffix in {".sh", ".sbatch"}
    }
    assert len(scripts) == 2 * len(CASES) + len(ON_SLURM)
    different = dict[str, Path]()
    for script, text in scripts.items():
        subprocess.run(["bash", "-n", script], check=True)
        different.setdefault(without_here_documents(text), script)
    for text, script in different.items():
        script.write_text(text, encoding="utf-8")
    checked = subprocess.run(
        ["shellcheck", *different.values()], capture_output=True, text=True, check=False
    )
    assert checked.stdout == ""
    assert checked.returncode == 0


@pytest.mark.parametrize("case", ON_SLURM)
def test_the_node_script_stands_word_for_word_in_the_sbatch_script(case: str) -> None:
    texts = {file.name: file.text for file in render(plan(case))}
    assert texts["node.sh"].rstrip("\n") in texts["job.sbatch"]


@pytest.mark.parametrize("case", ON_SLURM)
def test_directives_come_before_any_command(case: str) -> None:
    # sbatch stops reading directives at the first command; what follows would be silently ignored.
    lines = next(f.text for f in render(plan(case)) if f.name == "job.sbatch").splitlines()
    directives = [i for i, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert directives == list(range(1, len(directives) + 1))


@pytest.mark.parametrize("case", CASES)
def test_exactly_one_option_asks_for_gpus(case: str) -> None:
    job, cluster = CASES[case]
    for part in plan(case).parts:
        asking = {"gpus-per-node", "gres", "gpus-per-task", "gpus"} & set(part.directives)
        known = job.gpus_per_node or cluster.gpus_per_node
        assert len(asking) == bool(known and part.cluster.gpu_request != "none")


@pytest.mark.parametrize("case", CASES)
def test_compose_files_follow_the_current_specification(case: str) -> None:
    text = next(file.text for file in render(plan(case)) if file.name == "compose.yaml")
    document = yaml.safe_load(text)
    assert "version" not in document
    assert set(document) == {"name", "x-train", "services"}
    service = document["services"]["train"]
    assert service["shm_size"]
    assert "./compose-node.sh:/clusterkit/node.sh:ro" in service["volumes"]
    gpus = service.get("deploy", {})
    assert bool(gpus) == (CASES[case][1].gpu_request != "none")
    assert "deploy" not in document["services"].get("cpu", {})


@pytest.mark.parametrize("case", CASES)
def test_the_script_inside_the_image_needs_nothing_of_the_site(case: str) -> None:
    text = next(file.text for file in render(plan(case)) if file.name == "compose-node.sh")
    commands = text[text.index("ck_command=(") :]
    for word in ("docker", "apptainer", "enroot", "  srun\n", "--nnodes=2:4"):
        assert word not in commands
    for word in ("module load", "source ~", "SOCKET_IFNAME=ib0"):
        assert word not in text
