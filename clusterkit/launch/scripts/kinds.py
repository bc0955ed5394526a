"""Scripts for one framework that another one is to start.

That seldom fails at once: each process trains by itself, and nobody notices before the end. A
script that may know better is given the benefit of the doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from clusterkit.core.errors import Position, Problem
from clusterkit.core.model import LaunchPlan
from clusterkit.launch.scripts.joining import alone
from clusterkit.launch.scripts.reading import Script, Use, script_of

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """Scripts of one kind, and the frameworks under which they work."""

    what: str
    calls: tuple[str, ...] = ()
    """Patterns of full names, one of which such a script calls."""
    reads: tuple[str, ...] = ()
    """Patterns of full names, one of which it reads."""
    frameworks: tuple[str, ...]
    """The one to choose first."""
    otherwise: str
    """What happens under others."""
    knows_more: Callable[[Script, Use, LaunchPlan], bool] = lambda _script, _use, _plan: False
    """Whether the script has another way as well to find its ranks."""


def _has_torch_distributed(script: Script, _use: Use, _plan: LaunchPlan) -> bool:
    return "init_process_group" in script.text


def _has_cluster(script: Script, use: Use, plan: LaunchPlan) -> bool:
    told = "TF_CONFIG" in script.text or "TF_CONFIG" in plan.env
    return told or bool(use.given & {"cluster_resolver", "*"})


_STRATEGIES = "tensorflow.distribute"
_KINDS = (
    _Kind(
        what="Horovod",
        calls=("horovod.init", "horovod.*.init"),
        frameworks=("horovod", "mpi"),
        otherwise="its processes would not find each other",
        knows_more=_has_torch_distributed,
    ),
    _Kind(
        what="TensorFlow",
        calls=(
            f"{_STRATEGIES}.MultiWorkerMirroredStrategy",
            f"{_STRATEGIES}.experimental.MultiWorkerMirroredStrategy",
            f"{_STRATEGIES}.ParameterServerStrategy",
            f"{_STRATEGIES}.experimental.ParameterServerStrategy",
        ),
        frameworks=("tensorflow",),
        otherwise="nobody would set TF_CONFIG, and each process would train by itself",
        knows_more=_has_cluster,
    ),
    _Kind(
        what="Ray",
        calls=("ray.init", "ray.train.*Trainer", "ray.tune.Tuner"),
        frameworks=("ray",),
        otherwise="each process would start a Ray of its own",
    ),
    _Kind(
        what="Spark",
        calls=(
            "pyspark.SparkContext",
            "pyspark.sql.SparkSession.builder.*",
            "pyspark.ml.torch.distributor.TorchDistributor",
        ),
        frameworks=("spark",),
        otherwise="each process would start a Spark of its own",
    ),
    _Kind(
        what="mpi4py",
        reads=("mpi4py.MPI.COMM_WORLD.*",),
        frameworks=("mpi", "horovod"),
        otherwise="each process would be an MPI world of its own",
        knows_more=_has_torch_distributed,
    ),
    _Kind(
        what="jax.distributed",
        calls=("jax.distributed.initialize",),
        frameworks=("env", "mpi"),
        otherwise="its processes would not find each other",
        knows_more=lambda _script, use, _plan: bool(use.given),
    ),
)


def cautions(plan: LaunchPlan) -> tuple[Problem, ...]:
    """Return why the script of a plan is not for the plan's framework; most often nothing."""
    script = script_of(plan)
    return tuple(_problems(script, plan)) if script is not None else ()


def _problems(script: Script, plan: LaunchPlan) -> Iterator[Problem]:
    if plan.framework in _BY_RANK and plan.processes > 1:
        yield from alone(script, plan)
        for kind in _KINDS:
            use = _first(script, kind.calls, kind.reads)
            if use is None or plan.framework in kind.frameworks:
                continue
            if not kind.knows_more(script, use, plan):
                yield _problem(script, plan, use, kind)
    package = _NO_RANK.get(plan.framework)
    use = _first(script, ("torch.distributed.init_process_group",))
    if package is None or package in script.imports or use is None:
        return
    if not use.given & {"rank", "init_method", "store"}:
        kind = _Kind(
            what="torch.distributed",
            frameworks=("torchrun",),
            otherwise=f"{plan.framework} tells it no RANK and no MASTER_ADDR",
        )
        yield _problem(script, plan, use, kind)


def _first(script: Script, calls: Sequence[str], reads: Sequence[str] = ()) -> Use | None:
    def fits(use: Use) -> bool:
        patterns = (*reads, *calls) if use.called else reads
        return any(fnmatchcase(use.name, pattern) for pattern in patterns)

    return next(filter(fits, script.uses), None)


def _problem(script: Script, plan: LaunchPlan, use: Use, kind: _Kind) -> Problem:
    line = script.text.splitlines()[use.line - 1]
    return Problem(
        message=f"{plan.script} is written for {kind.what}, and {plan.framework} is to start it:\n"
        f"  {kind.otherwise}",
        hint=f"--framework {kind.frameworks[0]}",
        position=Position(source=plan.script, line=use.line, text=line.strip()),
    )


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
