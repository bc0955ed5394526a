"""Scripts for one framework that another one is to start, and scripts of which ranks train alone.

That seldom fails at once: each process trains by itself, as many times the same training, and
nobody notices before the end. A script that may know better, or that imports anything of which it
is not known that it joins nothing, is given the benefit of the doubt.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from clusterkit.core.data import read_table
from clusterkit.core.errors import Problem
from clusterkit.core.model import GpuRequest, LaunchPlan
from clusterkit.launch.scripts.programs import nested_launcher
from clusterkit.launch.scripts.reading import WORDS, Script, Use, problem_at, script_of

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
                yield problem_at(script, plan, use.line, *_of_lightning(use.name, missing, plan))
            return
    apart = _apart(script, plan)
    if apart is not None:
        yield apart
        return
    trains = trains_alone(script)
    if trains is not None:
        line = script.text.count("\n", 0, trains.start()) + 1
        what = f"{plan.script} trains, and nothing in it joins the {plan.processes} processes"
        yield problem_at(script, plan, line, what, _JOIN, _ALONE)


def _apart(script: Script, plan: LaunchPlan) -> Problem | None:
    """Return why processes would meet others than those of the plan; None where they may not."""
    knows = _READS_RANKS.search(script.text) is not None
    for use in script.uses:
        if use.called and use.name in _SPAWNS and not knows:
            what = f"{plan.script} starts ranks itself, in each of the {plan.processes} processes"
            return problem_at(script, plan, use.line, what, _SPAWN_ONCE, "each would train apart")
        here = any(_THIS_MACHINE.fullmatch(text) for text in use.texts)
        if plan.nodes > 1 and here and use.name in _MEETS_AT and (use.called or not knows):
            what = f"{plan.script} lets its processes meet on the machine of each"
            otherwise = f"those of the {plan.nodes} nodes would wait for others, or train apart"
            hint = _LEAVE_IT.format(framework=plan.framework)
            return problem_at(script, plan, use.line, what, hint, otherwise)
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
    if not plan.script_kind.is_python:
        return () if (nested := nested_launcher(plan)) is None else (nested,)
    script = script_of(plan)
    return tuple(_problems(script, plan)) if script is not None else ()


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
    return problem_at(script, plan, use.line, message, f"--framework {framework}", otherwise)


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
