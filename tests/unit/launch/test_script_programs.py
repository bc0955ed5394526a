"""`python train.py`, `torchrun train.py` and shell scripts where a script of Python is wanted."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterkit.core.errors import UserError
from clusterkit.launch.scripts.programs import require_python
from tests.helpers.plans import make_cluster, make_plan

SHELL = (
    "#!/usr/bin/env bash\nset -e\n# old.py\nexport A=1\ntorchrun --nproc-per-node 8 src/train.py\n"
)


def refused(folder: Path, framework: str, script: str, *args: str) -> str:
    plan = make_plan(
        make_cluster(folder), framework=framework, workdir=str(folder), script=script, args=args
    )
    with pytest.raises(UserError) as raised:
        require_python(plan)
    (problem,) = raised.value.problems
    assert problem.key == "script"
    return str(raised.value)


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("run.sh", SHELL, "a shell script"),
        ("run", SHELL, "a shell script"),
        ("run", SHELL.replace("/usr/bin/env bash", "/bin/sh -e"), "a shell script"),
        ("run", SHELL.replace("env bash", "env -S A=1 zsh"), "a shell script"),
        ("run.bash", SHELL.partition("\n")[2], "a shell script"),
        ("train", "\x7fELF\x02 src/train.py", "a compiled program"),
    ],
)
def test_a_program_is_refused_with_the_way_out(
    tmp_path: Path, name: str, text: str, what: str
) -> None:
    (tmp_path / name).write_text(text)
    for framework in ("torchrun", "deepspeed", "env", "ray"):
        said = refused(tmp_path, framework, name)
        assert f"{name} is {what}, and {framework} has Python read it" in said
        assert "--framework mpi starts any program" in said
        assert "name src/train.py, which it starts" in said
    plan = make_plan(make_cluster(tmp_path), framework="mpi", workdir=str(tmp_path), script=name)
    require_python(plan)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("python", "train.py", "--lr", "1"), "leave python out: clusterkit submit"),
        (("python", "-u", "train.py"), "submit --framework deepspeed ... train.py"),
        (("python3.11", "-u", "x/train.py"), "deepspeed ... x/train.py"),
        (("/opt/env/bin/python3", "train.py"), "leave python3 out"),
        (("python", "-u", "-m", "pkg.train", "--lr", "1"), 'runpy.run_module("pkg.train", '),
        (("torchrun", "--nnodes", "2", "train.py"), "--framework torchrun ... train.py"),
        (("accelerate", "launch", "train.py"), "--framework accelerate ... train.py"),
        (("srun", "python", "train.py"), "--framework mpi ... train.py"),
        (("bash", "run.sh"), "--framework mpi starts any program"),
    ],
)  # fmt: skip
def test_an_interpreter_or_a_launcher_is_no_script(
    tmp_path: Path, words: tuple[str, ...], told: str
) -> None:
    assert told in refused(tmp_path, "deepspeed", *words)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train.py", "#!/bin/sh\n''':'\nexec python3 \"$0\"\n'''\nprint()\n"),
        ("train", "#!/usr/bin/env python3\nprint()\n"),
        ("train", "print()\n"),
        (
            "lm_eval",
            "#!/bin/sh\n'''exec' \"/a/long/python3\" \"$0\" \"$@\"\n' '''\n",
        ),
        ("train.py", ""),
        ("python.py", "print()\n"),
    ],
)
def test_what_python_may_read_is_left_to_it(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    plan = make_plan(
        make_cluster(tmp_path), framework="torchrun", workdir=str(tmp_path), script=name
    )
    require_python(plan)


def test_mpi_starts_any_program_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "python3").write_text(SHELL)
    plan = make_plan(
        make_cluster(tmp_path), framework="mpi", workdir=str(tmp_path), script="python3"
    )
    require_python(plan)
    assert "leave python out" in refused(tmp_path, "mpi", "python", "train.py")
