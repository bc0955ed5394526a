"""Programs where a script of Python is wanted: `python train.py`, `torchrun train.py`, `run.sh`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePath

from clusterkit.core.errors import UserError
from clusterkit.core.model import LaunchPlan
from clusterkit.launch.scripts.reading import WORDS

_PYTHON = re.compile(r"(?:python|pypy)[\d.]*w?|ipython3?")
_STARTS = dict(word.split("=") for word in WORDS["starts"])
_SHEBANG = re.compile(
    rb"#!\s*(?:\S*/)?(?:env\s+(?:-\S+\s+)*(?:[^\s=]+=\S*\s+)*(?:\S*/)?)?([\w.+-]+)"
)
_LONG_SHEBANG = b"\n'''exec' "
"""pip's second line, below `#!/bin/sh`, where the path of Python is too long for a shebang."""
_LINE = 64
_ELF = b"\x7fELF"
_HEAD = 1 << 16


def require_python(plan: LaunchPlan) -> None:
    """Refuse a job whose script is a program, where its framework has Python read it.

    Raises:
        UserError: that is so, with the way out.
    """
    path = Path(plan.workdir, plan.script)
    name = PurePath(plan.script).name
    is_file = path.is_file()
    if not is_file or plan.framework in WORDS["of-python"]:
        _require_no_interpreter(plan, name)
    if plan.framework not in WORDS["of-python"]:
        return
    head = b""
    if is_file:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    what = _kind_of(name, head)
    if what is not None:
        called = _called(head.decode(errors="replace"))
        raise UserError(
            f"{plan.script} is {what}, and {plan.framework} has Python read it",
            hint=f"name {called or 'the Python file'}, which it starts, with its "
            "arguments; what it sets before belongs into `env:` and `setup:` of the cluster,\n"
            "  or into --env; --framework mpi starts any program, and tells each rank who it is",
            key="script",
        )


def _called(text: str) -> str | None:
    """Return the first Python file that a shell script names outside of comments."""
    lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
    arguments = (argument.strip("'\"`;&|()") for line in lines for argument in line.split())
    return next((argument for argument in arguments if argument.endswith(".py")), None)


def _require_no_interpreter(plan: LaunchPlan, name: str) -> None:
    started_by = _STARTS.get(name)
    if started_by is None and not _PYTHON.fullmatch(name) and name not in WORDS["shells"]:
        return
    framework = started_by or plan.framework
    rest = _without_options(plan.args, program=name)
    if name in WORDS["shells"]:
        hint = "name the Python file that is to run; --framework mpi starts any program"
    elif rest[:1] == ["-m"]:
        module = rest[1] if len(rest) > 1 else "MODULE"
        hint = (
            f"write a script of one line, and name that: import runpy; "
            f'runpy.run_module("{module}", run_name="__main__", alter_sys=True)'
        )
    else:
        script = next((word for word in rest if word.endswith(".py")), "train.py")
        hint = f"leave {name} out: clusterkit submit --framework {framework} ... {script} [ARGS]"
    starts = f"`--framework {framework}` calls it" if started_by else "the framework starts it"
    if name in WORDS["shells"]:
        starts = "it runs no script of Python"
    raise UserError(f"{name} is not a training script: {starts}", hint=hint, key="script")


def _without_options(args: Sequence[str], *, program: str) -> list[str]:
    """Return what follows the flags of an interpreter, `-m` included."""
    arguments = list(args[1:] if program == "accelerate" and args[:1] == ("launch",) else args)
    while arguments and arguments[0].startswith("-") and arguments[0] != "-m":
        arguments.pop(0)
    return arguments


def _kind_of(name: str, head: bytes) -> str | None:
    """Return what a file is instead of a script of Python; None where it may be one."""
    suffix = PurePath(name).suffix
    if head.startswith(_ELF):
        return "a compiled program"
    if suffix in {".py", ".pyc", ".pyz"}:
        return None
    shebang = _SHEBANG.match(head)
    program = shebang[1].decode() if shebang else ""
    if _LONG_SHEBANG in head[:_LINE]:
        return None
    if program in WORDS["shells"] or (
        not _PYTHON.fullmatch(program) and suffix[1:] in WORDS["shells"]
    ):
        return "a shell script"
    return None
