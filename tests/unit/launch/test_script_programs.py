"""What a job runs: a script of Python, a module, a shell script, or any other program."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from clusterkit.core.errors import UserError
from clusterkit.core.model import ScriptKind
from clusterkit.launch.scripts.kinds import Started, recognise, script_warnings
from tests.helpers.plans import make_cluster, make_plan

SHELL = (
    "#!/usr/bin/env bash\nset -e\n# srun old.py\nexport A=1\n"
    "torchrun --nproc-per-node 8 src/train.py\n"
)
PIPS = "#!/bin/sh\n'''exec' \"/a/long/python3\" \"$0\" \"$@\"\n' '''\n"
QUOTED = "#!/bin/sh\n''':'\nexec python3 \"$0\"\n'''\nprint()\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(*words: str, module: bool = False, framework: str | None = None) -> str:
    with pytest.raises(UserError) as raised:
        recognise(words, module=module, framework=framework)
    (problem,) = raised.value.problems
    assert problem.key == "script"
    return str(raised.value)


@pytest.mark.parametrize(
    ("name", "text", "mode", "kind"),
    [
        ("run.sh", SHELL, 0o644, ScriptKind.SHELL),
        ("run.sh", SHELL, 0o755, ScriptKind.PROGRAM),
        ("run", SHELL, 0o644, ScriptKind.SHELL),
        ("run", SHELL.replace("/usr/bin/env bash", "/bin/sh -e"), 0o644, ScriptKind.SHELL),
        ("run", SHELL.replace("env bash", "env -S A=1 zsh"), 0o755, ScriptKind.PROGRAM),
        ("run.bash", SHELL.partition("\n")[2], 0o755, ScriptKind.SHELL),
        ("train", "\x7fELF\x02 src/train.py", 0o755, ScriptKind.PROGRAM),
        ("train", "#!/usr/bin/env julia\n", 0o755, ScriptKind.PROGRAM),
        ("train.py", QUOTED, 0o755, ScriptKind.PYTHON),
        ("train", "#!/usr/bin/env python3\nprint()\n", 0o755, ScriptKind.PYTHON),
        ("train", "print()\n", 0o644, ScriptKind.PYTHON),
        ("lm_eval", PIPS, 0o755, ScriptKind.PYTHON),
        ("python.py", "", 0o644, ScriptKind.PYTHON),
    ],
)
def test_a_file_is_started_as_what_it_is(
    folder: Path, name: str, text: str, mode: int, kind: ScriptKind
) -> None:
    path = folder / name
    path.write_text(text)
    path.chmod(mode)
    started = recognise((name, "--lr", "1"), module=False, framework=None)
    assert started == Started(name, ("--lr", "1"), kind)


@pytest.mark.parametrize(
    ("words", "started"),
    [
        (("python", "train.py", "-u"), Started("train.py", ("-u",), ScriptKind.PYTHON)),
        (("python3.11", "-u", "x/train.py"), Started("x/train.py", (), ScriptKind.PYTHON)),
        (("python", "-um", "x"), Started("python", ("-um", "x"), ScriptKind.COMMAND)),
        (("python3", "-m", "p.q", "-m"), Started("p.q", ("-m",), ScriptKind.MODULE)),
        (("python3", "-c", "1"), Started("python3", ("-c", "1"), ScriptKind.COMMAND)),
        (("bash", "-c", "true"), Started("bash", ("-c", "true"), ScriptKind.COMMAND)),
        (("nowhere-to-be-found",), Started("nowhere-to-be-found", (), ScriptKind.PYTHON)),
        (("/opt/nowhere/program",), Started("/opt/nowhere/program", (), ScriptKind.PYTHON)),
    ],
)
def test_interpreters_and_commands(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], started: Started
) -> None:
    known = {"python", "python3", "python3.11", "bash"}
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}" if name in known else None)
    assert recognise(words, module=False, framework=None) == started


def test_a_module_is_named_as_python_names_it(folder: Path) -> None:
    (folder / "train.py").touch()
    started = Started("pkg.train", ("-x",), ScriptKind.MODULE)
    assert recognise(("pkg.train", "-x"), module=True, framework=None) == started
    for name in ("./pkg/train.py", "pkg/train.py"):
        assert "-m pkg.train, or leave -m out" in refused(name, module=True)
    assert "-m train, or leave -m out: train.py" in refused("train.py", module=True)
    assert "-m train" in refused("python", "-m", "train.py")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("torchrun", "--nnodes", "2", "train.py"), "--framework torchrun ... train.py"),
        (("accelerate", "launch", "train.py"), "--framework accelerate ... train.py"),
        (("/opt/bin/srun", "python", "train.py"), "clusterkit submit train.py (MPI programs: with"),
    ],
)
def test_a_launcher_is_no_script(words: tuple[str, ...], told: str) -> None:
    assert told in refused(*words, framework="deepspeed")


def test_mpi_starts_a_program_that_is_called_as_a_launcher(folder: Path) -> None:
    (folder / "ray").write_text(SHELL)
    started = recognise(("./ray",), module=False, framework="mpi")
    assert started.kind is ScriptKind.SHELL
    assert "`--framework ray` calls it" in refused("./ray")


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("run.sh", SHELL.replace("\n", "\r\n"), "line ends of Windows"),
        ("train", "\x7fELF\x02", "chmod +x train"),
        ("job.yaml", "script: train.py\n", "--job job.yaml"),
        ("train", "#!/usr/bin/env julia\n", "is for julia, and may not be executed"),
    ],
)
def test_what_nothing_could_start_is_refused(folder: Path, name: str, text: str, told: str) -> None:
    (folder / name).write_bytes(text.encode())
    assert told in refused(name)


def test_a_launcher_in_a_shell_script_is_warned_of(folder: Path) -> None:
    plan = make_plan(
        make_cluster(folder),
        workdir=str(folder),
        script="run.sh",
        script_kind=ScriptKind.SHELL,
        framework="env",
        processes=8,
    )
    (folder / "run.sh").write_text(SHELL)
    (problem,) = script_warnings(plan)
    assert "run.sh:5" in str(problem)
    assert "run.sh calls torchrun, and is started once per rank itself" in str(problem)
    assert "name src/train.py with its arguments, and --framework torchrun" in str(problem)
    assert not script_warnings(dataclasses.replace(plan, processes=plan.nodes))
    (folder / "run.sh").write_text("# torchrun train.py\nexec python train.py\n")
    assert not script_warnings(plan)


@pytest.mark.parametrize(
    ("line", "is_told"),
    [
        ("#SBATCH hetjob", True),
        ("#SBATCH\tpackjob", True),
        ("#SBATCH --mem=1G : --mem=2G", True),
        ("#SBATCH --het-group=1", True),
        ("#SBATCH --comment=hetjob", False),
        ("#SBATCH --begin=16:00", False),
        ("## SBATCH hetjob", False),
        ("cat >job.sh <<END\n#SBATCH hetjob\nEND", False),
    ],
)
@pytest.mark.parametrize("name", ["run.sh", "run.py"])
def test_components_of_slurm_in_a_script_are_warned_of(
    folder: Path, name: str, line: str, *, is_told: bool
) -> None:
    kind = ScriptKind.PYTHON if name.endswith(".py") else ScriptKind.SHELL
    plan = make_plan(
        make_cluster(folder),
        workdir=str(folder),
        script=name,
        script_kind=kind,
        framework="env",
    )
    (folder / name).write_text(f"#!/bin/sh\n\n#SBATCH --nodes=2\n{line}\n")
    (told,) = (str(problem) for problem in script_warnings(plan))
    assert "#SBATCH lines are not read" in told
    assert ("for a heterogeneous job of Slurm" in told) == is_told
    assert f"{name}:{4 if is_told else 3}" in told


def test_lines_for_sbatch_below_a_command_are_another_scripts(folder: Path) -> None:
    plan = make_plan(make_cluster(folder), workdir=str(folder), script="run.sh", framework="env")
    (folder / "run.sh").write_text("#!/bin/sh\ncat >job.sh <<END\n#SBATCH --nodes=2\nEND\n")
    assert not script_warnings(dataclasses.replace(plan, script_kind=ScriptKind.SHELL))
