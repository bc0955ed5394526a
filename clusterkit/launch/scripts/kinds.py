"""What a job runs: a script of Python, a module, a shell script, or any other program.

And scripts for one framework that another one is to start, and those of which ranks train alone.
That seldom fails at once: each process trains by itself, as many times the same training, and
nobody notices before the end. A script that may know better, or that imports anything of which it
is not known that it joins nothing, is given the benefit of the doubt.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path, PurePath

from clusterkit.core.data import read_table
from clusterkit.core.errors import Problem, UserError
from clusterkit.core.model import GpuRequest, LaunchPlan, ScriptKind
from clusterkit.launch.scripts.reading import WORDS, Script, Use, problem_at, script_of

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
_HETEROGENEOUS = re.compile(
    r"#SBATCH\s(?:\s*(?:hetjob|packjob)\b|.*(?:--(?:het|pack)-group\b|\s:\s))"
)
"""What begins a component of a heterogeneous job, or names one; `pack` in Slurm up to 19.05."""
_COMPONENTS = "ask for its components with --component 'nodes=2,partition=NAME', once for each"
_AS_FLAGS = "ask for the same with --nodes, --time, ..., or --set sbatch.KEY=VALUE"
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
        kind = _kind_of(path)
        if kind is ScriptKind.PYTHON and path.suffix in {".yaml", ".yml"}:
            hint = f"--job {script}, if it describes a job"
            raise UserError(f"{script} is YAML, not a script", hint=hint, key="script")
        return Started(script, args, kind)
    if _PYTHON.fullmatch(script):
        rest = args[1:] if args[:1] == ("-u",) else args
        if rest[:1] == ("-m",) and len(rest) > 1:
            return Started(_module(rest[1]), rest[2:], ScriptKind.MODULE)
        if rest and not rest[0].startswith("-"):
            return Started(rest[0], rest[1:], ScriptKind.PYTHON)
    if "/" not in script and path.suffix not in _OF_PYTHON and shutil.which(script):
        return Started(script, args, ScriptKind.COMMAND)
    return Started(script, args, ScriptKind.PYTHON)


def nested_launcher(text: str, plan: LaunchPlan) -> Problem | None:
    """Return which launcher a shell script calls once per rank; None where it calls none."""
    by_rank = plan.framework in WORDS["by-rank"] and plan.processes > plan.nodes
    for number, line in enumerate(text.splitlines() if by_rank else (), 1):
        words = [word.strip("'\"`;&|()") for word in line.partition("#")[0].split()]
        called = next((word for word in words if word in _STARTS), None)
        if called is None:
            continue
        script = next((word for word in words if word.endswith(".py")), "the Python file")
        what = f"{plan.script} calls {called}, and is started once per rank itself"
        hint = (
            f"name {script} with its arguments, and --framework {_STARTS[called]};\n"
            "  or start it once per node: --framework env --set env.per-node=1"
        )
        times = f"{plan.processes} of them on {plan.nodes} node{'s' * (plan.nodes > 1)}"
        return problem_at(text, plan, number, what, hint, times)
    return None


def written_for_sbatch(text: str, plan: LaunchPlan) -> Problem | None:
    """Return where a script asks sbatch for something; None where it does not.

    sbatch reads `#SBATCH` lines above the first command alone (sbatch(1)): below it they may be
    those of a script that this one writes. Lines of a heterogeneous job go before others.
    """
    lines = enumerate(takewhile(_above_commands, text.splitlines()), 1)
    asks = [(number, line) for number, line in lines if line.startswith("#SBATCH")]
    if not asks:
        return None
    for number, line in asks:
        if _HETEROGENEOUS.match(line):
            what = f"{plan.script} is written for a heterogeneous job of Slurm"
            otherwise = "its #SBATCH lines are not read"
            return problem_at(text, plan, number, what, _COMPONENTS, otherwise)
    what = f"{plan.script} is written for sbatch"
    return problem_at(text, plan, asks[0][0], what, _AS_FLAGS, "its #SBATCH lines are not read")


def _above_commands(line: str) -> bool:
    return not line.strip() or line.startswith("#")


def _start_of(plan: LaunchPlan) -> str:
    """Return the start of the file that a job runs; nothing where it is not here, or no text."""
    if not plan.script_kind.is_file:
        return ""
    try:
        with Path(plan.workdir, plan.script).open(encoding="utf-8") as file:
            return file.read(_HEAD)
    except (OSError, UnicodeDecodeError):
        return ""


def _module(name: str) -> str:
    """Return the name of a module, unless it is that of a file."""
    if not name.endswith(".py") and "/" not in name:
        return name
    dotted = name.removeprefix("./").removesuffix(".py").replace("/", ".")
    hint = f"-m {dotted}, or leave -m out: {name}"
    raise UserError(f"-m {name}: that is a file, not a module", hint=hint, key="script")


def _launcher(name: str, args: tuple[str, ...]) -> UserError:
    framework = _STARTS[name]
    if framework == "mpi" and args and not args[0].startswith("-"):
        words = args[1:] if _PYTHON.fullmatch(args[0]) and args[1:] else ("--", *args)
        return UserError(
            f"{name} is not a training script: clusterkit starts the processes itself",
            hint=f"clusterkit submit {shlex.join(words)} (MPI programs: with --framework mpi)",
            key="script",
        )
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


_JOINS_NOTHING = frozenset(sys.stdlib_module_names) | WORDS["joins-nothing"]
_KNOWS = re.compile(
    r"(?i:distribute)|process_group|\bWORLD_SIZE\b|\bRANK\b|\bLOCAL_RANK\b|SLURM_|TF_CONFIG|torchelastic|importlib"
    r"|subprocess|multiprocessing|\bTrainer|TrainingArguments|\bexec\(|runpy|sys\.path"
)
_JOIN = (
    "call torch.distributed.init_process_group(), and wrap the model in\n"
    "  DistributedDataParallel; or ask for one process: --nodes 1 --gpus-per-node 1"
)
_THIS_MACHINE = re.compile(r"(?:tcp://)?(?:localhost|127\.[\d.]+|\[?::1\]?)(?::\d+)?")
_MEETS_AT = frozenset({"os.environ.MASTER_ADDR", "torch.distributed.init_process_group"})
_LEAVE_IT = (
    "leave MASTER_ADDR and MASTER_PORT to {framework}, which has set them\n"
    "  (init_method='env://'); or ask for one node: --nodes 1"
)
_SPAWNS = frozenset({"torch.multiprocessing.spawn", "torch.multiprocessing.start_processes"})
_READS_RANKS = re.compile(r"LOCAL_RANK|\bRANK\b|SLURM_|torchelastic|OMPI_COMM")
_SPAWN_ONCE = (
    "--nodes 1 --processes 1; or, in place of spawn, take the rank\n"
    "  from RANK and LOCAL_RANK, with one process for each GPU"
)
_ALONE = "each process would train by itself"
_TRAINS = re.compile(r"\.backward\(")


def alone(script: Script, plan: LaunchPlan) -> Iterator[Problem]:
    """Yield why the processes of a plan of several would not train together."""
    if plan.processes < 2:
        return
    for use in script.uses:
        if use.called and use.name in WORDS["lightning"]:
            by_horovod = plan.framework == "horovod" and "horovod" in use.texts
            missing = [] if by_horovod else _missing(use.given, plan)
            if missing:
                yield problem_at(
                    script.text, plan, use.line, *_of_lightning(use.name, missing, plan)
                )
            return
    apart = _apart(script, plan)
    if apart is not None:
        yield apart
        return
    trains = trains_alone(script)
    if trains is not None:
        line = script.text.count("\n", 0, trains.start()) + 1
        what = f"{plan.script} trains, and nothing in it joins the {plan.processes} processes"
        yield problem_at(script.text, plan, line, what, _JOIN, _ALONE)


def _apart(script: Script, plan: LaunchPlan) -> Problem | None:
    """Return why processes would meet others than those of the plan; None where they may not."""
    knows = _READS_RANKS.search(script.text) is not None
    for use in script.uses:
        if use.called and use.name in _SPAWNS and not knows:
            what = f"{plan.script} starts ranks itself, in each of the {plan.processes} processes"
            return problem_at(
                script.text, plan, use.line, what, _SPAWN_ONCE, "each would train apart"
            )
        here = any(_THIS_MACHINE.fullmatch(text) for text in use.texts)
        if plan.nodes > 1 and here and use.name in _MEETS_AT and (use.called or not knows):
            what = f"{plan.script} lets its processes meet on the machine of each"
            otherwise = f"those of the {plan.nodes} nodes would wait for others, or train apart"
            hint = _LEAVE_IT.format(framework=plan.framework)
            return problem_at(script.text, plan, use.line, what, hint, otherwise)
    return None


def trains_alone(script: Script) -> re.Match[str] | None:
    """Return where a script trains with torch, if nothing in it joins processes."""
    if "torch" not in script.imports or not script.imports <= _JOINS_NOTHING or script.relative:
        return None
    trains = _TRAINS.search(script.text)
    return trains if trains and not _KNOWS.search(script.text) else None


def _missing(given: frozenset[str], plan: LaunchPlan) -> list[str]:
    """Return the arguments that Lightning would guess, and guess wrong.

    It takes one node, and all GPUs of that one; of a node without GPUs one process. Where that is
    one in all, and no strategy is asked for, it joins nobody; else it refuses (Lightning
    fabric/plugins/environments/torchelastic.py, slurm.py).
    """
    if "*" in given or "plugins" in given:
        return []
    missing = ["num_nodes"] if plan.nodes > 1 and "num_nodes" not in given else []
    several = plan.processes > plan.nodes
    if several and not given & WORDS["devices"] and (missing or _without_gpus(plan)):
        missing.append("devices")
    return missing


def _without_gpus(plan: LaunchPlan) -> bool:
    if plan.cluster.kind.shares_machine:
        return not any(Path("/dev", name).exists() for name in ("nvidiactl", "kfd", "dxg"))
    return plan.cluster.gpu_request is GpuRequest.NONE


def _of_lightning(name: str, missing: list[str], plan: LaunchPlan) -> tuple[str, str, str]:
    values = {"num_nodes": plan.nodes, "devices": max(plan.slots)}
    what = name.rpartition(".")[2]
    return (
        f"{plan.script} calls {what} without {' and '.join(missing)}",
        f"{what}(..., {', '.join(f'{key}={values[key]}' for key in missing)})",
        f"{_ALONE}, or refuse to start",
    )


_NO_RANK: Mapping[str, str] = {
    "horovod": "horovod",
    "tensorflow": "tensorflow",
    "ray": "ray",
    "spark": "pyspark",
}
"""Frameworks that do not set RANK for the script itself, and what a script for them imports."""


def script_warnings(plan: LaunchPlan) -> tuple[Problem, ...]:
    """Return why the script of a plan is not for the plan's framework; most often nothing."""
    text, script = _start_of(plan), script_of(plan)
    nested = None if plan.script_kind.is_python else nested_launcher(text, plan)
    more = _problems(script, plan) if script is not None else ()
    return tuple(filter(None, (written_for_sbatch(text, plan), nested, *more)))


def _problems(script: Script, plan: LaunchPlan) -> Iterator[Problem]:
    if plan.framework in WORDS["by-rank"] and plan.processes > 1:
        yield from alone(script, plan)
        for kind in read_table(__file__, "kinds.tsv"):
            frameworks = kind["frameworks"].split()
            use = _first(script, *kind["uses"].split())
            if use is None or plan.framework in frameworks or _knows_more(kind, script, use, plan):
                continue
            yield _problem(script, plan, use, kind["what"], kind["otherwise"], frameworks[0])
    package = _NO_RANK.get(plan.framework)
    use = _first(script, "torch.distributed.init_process_group")
    if package is None or package in script.imports or use is None:
        return
    if not use.given & {"rank", "init_method", "store"}:
        otherwise = f"{plan.framework} tells it no RANK and no MASTER_ADDR"
        yield _problem(script, plan, use, "torch.distributed", otherwise, "torchrun")


def _first(script: Script, *patterns: str) -> Use | None:
    """Return the first use that a pattern of a full name fits: `=NAME` is read, `NAME` called."""

    def fits(use: Use) -> bool:
        names = (p.removeprefix("=") for p in patterns if use.called or p.startswith("="))
        return any(fnmatchcase(use.name, name) for name in names)

    return next(filter(fits, script.uses), None)


def _knows_more(kind: Mapping[str, str], script: Script, use: Use, plan: LaunchPlan) -> bool:
    """Tell whether the script has another way as well to find its ranks."""
    word, arguments = kind["word"], kind["argument"].split()
    if word and (word in script.text or word in plan.env):
        return True
    return bool(use.given if arguments == ["any"] else use.given.intersection(arguments))


def _problem(
    script: Script, plan: LaunchPlan, use: Use, what: str, otherwise: str, framework: str
) -> Problem:
    message = f"{plan.script} is written for {what}, and {plan.framework} is to start it"
    return problem_at(script.text, plan, use.line, message, f"--framework {framework}", otherwise)


def gpu_use(plan: LaunchPlan) -> str | None:
    """Return what the script of a plan does in any case that no build for CPUs can, and where."""
    script = script_of(plan)
    if script is None or "torch" not in script.imports:
        return None
    use = next(filter(_needs_cuda, script.uses), None)
    return None if use is None else f"{plan.script}:{use.line} calls {_shown(use)}"


def _needs_cuda(use: Use) -> bool:
    if not use.called:
        return False
    if use.name == "torch.distributed.init_process_group":
        return "nccl" in use.texts
    if use.name.endswith((".to", ".cuda")):
        return use.name.endswith(".cuda") or any(text.startswith("cuda") for text in use.texts)
    return use.name.startswith("torch.cuda.") and use.name[11:] in WORDS["needs-cuda"]


def _shown(use: Use) -> str:
    text = next(
        (f'"{text}"' for text in sorted(use.texts) if text.startswith(("cuda", "nccl"))), ""
    )
    return f"{use.name.removeprefix('?')}({text})"
