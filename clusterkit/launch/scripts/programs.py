"""What a job runs: a script of Python, a module, a shell script, or any other program."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from clusterkit.core.errors import Position, Problem, UserError
from clusterkit.core.model import LaunchPlan, ScriptKind
from clusterkit.launch.scripts.reading import WORDS

_PYTHON = re.compile(r"(?:python|pypy)[\d.]*w?|ipython3?")
_OF_PYTHON = frozenset({".py", ".pyc", ".pyz"})
_STARTS = dict(word.split("=") for word in WORDS["starts"])
_SHEBANG = re.compile(
    rb"#!\s*(?:\S*/)?(?:env\s+(?:-\S+\s+)*(?:[^\s=]+=\S*\s+)*(?:\S*/)?)?([\w.+-]+)"
)
_LONG_SHEBANG = b"\n'''exec' "
"""pip's second line, below `#!/bin/sh`, where the path of Python is too long for a shebang."""
_LINE = 64
_ELF = b"\x7fELF"
_HEAD = 1 << 16


@dataclass(frozen=True, slots=True)
class Started:
    """What a job runs on each rank."""

    script: str
    args: tuple[str, ...]
    kind: ScriptKind


def recognise(words: Sequence[str], *, module: bool, framework: str | None) -> Started:
    """Return what `SCRIPT ARGS...` are, seen from the working folder.

    `python train.py` is the script, and `python -m NAME` the module; what is neither a file nor
    found on PATH is taken for a script, which is missing.

    Raises:
        UserError: it is a launcher, which frameworks call themselves, or cannot be started.
    """
    script, args = words[0], tuple(words[1:])
    if module:
        return Started(_module(script), args, ScriptKind.MODULE)
    name = PurePath(script).name
    path = Path(script)
    is_file = path.is_file()
    if name in _STARTS and not (is_file and framework == "mpi"):
        raise _launcher(name, args)
    if is_file:
        return Started(script, args, _kind_of(path))
    if _PYTHON.fullmatch(script):
        rest = args[1:] if args[:1] == ("-u",) else args
        if rest[:1] == ("-m",) and len(rest) > 1:
            return Started(_module(rest[1]), rest[2:], ScriptKind.MODULE)
        if rest and not rest[0].startswith("-"):
            return Started(rest[0], rest[1:], ScriptKind.PYTHON)
    if "/" not in script and path.suffix not in _OF_PYTHON and shutil.which(script):
        return Started(script, args, ScriptKind.COMMAND)
    return Started(script, args, ScriptKind.PYTHON)


def nested_launcher(plan: LaunchPlan) -> Problem | None:
    """Return which launcher a shell script calls once per rank; None where it calls none."""
    by_rank = plan.framework in WORDS["by-rank"] and plan.processes > plan.nodes
    if not (plan.script_kind.is_file and by_rank):
        return None
    try:
        with Path(plan.workdir, plan.script).open(encoding="utf-8") as file:
            lines = file.read(_HEAD).splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    for number, line in enumerate(lines, 1):
        words = [word.strip("'\"`;&|()") for word in line.partition("#")[0].split()]
        called = next((word for word in words if word in _STARTS), None)
        if called is None:
            continue
        script = next((word for word in words if word.endswith(".py")), "the Python file")
        framework = _STARTS[called]
        return Problem(
            message=f"{plan.script} calls {called}, and is started once per rank itself:\n"
            f"  {plan.processes} of them on {plan.nodes} node{'s' * (plan.nodes > 1)}",
            hint=f"name {script} with its arguments, and --framework {framework};\n"
            "  or start it once per node: --framework env --set env.per-node=1",
            position=Position(source=plan.script, line=number, text=line.strip()),
        )
    return None


def _module(name: str) -> str:
    """Return the name of a module, unless it is that of a file."""
    if not name.endswith(".py") and "/" not in name:
        return name
    dotted = name.removeprefix("./").removesuffix(".py").replace("/", ".")
    hint = f"-m {dotted}, or leave -m out: {name}"
    raise UserError(f"-m {name}: that is a file, not a module", hint=hint, key="script")


def _launcher(name: str, args: tuple[str, ...]) -> UserError:
    framework = _STARTS[name]
    rest = list(args[1:] if name == "accelerate" and args[:1] == ("launch",) else args)
    script = next((word for word in rest if word.endswith(".py")), "train.py")
    return UserError(
        f"{name} is not a training script: `--framework {framework}` calls it",
        hint=f"leave {name} out: clusterkit submit --framework {framework} ... {script} [ARGS]",
        key="script",
    )


def _kind_of(path: Path) -> ScriptKind:
    """Return how a file is started.

    Raises:
        UserError: nothing could start it as it is.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return ScriptKind.PYTHON  # whoever reads it next says why
    may_run = os.access(path, os.X_OK)
    if head.startswith(_ELF):
        if may_run:
            return ScriptKind.PROGRAM
        message = f"{path} is a program, and may not be executed"
        raise UserError(message, hint=f"chmod +x {path}", key="script")
    shebang = _SHEBANG.match(head)
    program = shebang[1].decode() if shebang else ""
    if path.suffix in _OF_PYTHON or _PYTHON.fullmatch(program) or _LONG_SHEBANG in head[:_LINE]:
        return ScriptKind.PYTHON
    if shebang is None and path.suffix[1:] not in WORDS["shells"]:
        return ScriptKind.PYTHON
    if head.partition(b"\n")[0].endswith(b"\r"):
        message = f"{path} has the line ends of Windows, which no shell reads"
        raise UserError(message, hint=f"sed -i 's/\\r$//' {path}", key="script")
    if shebang is not None and may_run:
        return ScriptKind.PROGRAM
    if program and program not in WORDS["shells"]:
        message = f"{path} is for {program}, and may not be executed"
        raise UserError(message, hint=f"chmod +x {path}", key="script")
    return ScriptKind.SHELL
