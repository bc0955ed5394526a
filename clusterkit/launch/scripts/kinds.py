"""Scripts for one framework that another one is to start.

That seldom fails at once: each process trains by itself, and nobody notices before the end. A
script that may know better is given the benefit of the doubt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from clusterkit.core.data import read_table
from clusterkit.core.errors import Problem
from clusterkit.core.model import LaunchPlan
from clusterkit.launch.scripts.joining import alone
from clusterkit.launch.scripts.reading import Script, Use, problem_at, script_of

_BY_RANK = frozenset({"torchrun", "deepspeed", "accelerate", "env", "horovod", "mpi", "tensorflow"})
"""Frameworks that start the script once for each rank; Ray and Spark start it once, and it starts
the ranks. Nothing is known of the frameworks of others."""

_NO_RANK: Mapping[str, str] = {
    "horovod": "horovod",
    "tensorflow": "tensorflow",
    "ray": "ray",
    "spark": "pyspark",
}
"""Frameworks that do not set RANK for the script itself, and what a script for them imports."""


def script_warnings(plan: LaunchPlan) -> tuple[Problem, ...]:
    """Return why the script of a plan is not for the plan's framework; most often nothing."""
    script = script_of(plan)
    return tuple(_problems(script, plan)) if script is not None else ()


def _problems(script: Script, plan: LaunchPlan) -> Iterator[Problem]:
    if plan.framework in _BY_RANK and plan.processes > 1:
        yield from alone(script, plan)
        for kind in read_table(Path(__file__).with_name("kinds.tsv")):
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


_NEEDS_CUDA = frozenset(
    f"torch.cuda.{name}"
    for name in (
        "set_device", "current_device", "get_device_name", "get_device_properties", "synchronize",
        "get_device_capability", "mem_get_info", "Stream", "Event", "CUDAGraph", "current_stream",
        "reset_peak_memory_stats", "set_per_process_memory_fraction", "device",
    )
)  # fmt: skip


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
    return use.name in _NEEDS_CUDA


def _shown(use: Use) -> str:
    text = next(
        (f'"{text}"' for text in sorted(use.texts) if text.startswith(("cuda", "nccl"))), ""
    )
    return f"{use.name.removeprefix('?')}({text})"
