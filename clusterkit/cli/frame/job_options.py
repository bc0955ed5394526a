"""The flags that describe a job, the same for every verb that takes one."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clusterkit.cli.frame import console
from clusterkit.cli.frame.flags import cluster_option

if TYPE_CHECKING:
    from clusterkit.jobs.submit.request import JobRequest

CONTEXT_SETTINGS = {"allow_interspersed_args": False}
"""Everything after SCRIPT belongs to the script."""

_SCRIPTS_HAVE = frozenset({"tp", "pp", "cp", "ep"})
"""Flags that scripts have as well, and that are meant for them behind SCRIPT."""


def _option(*names: str, help_text: str, panel: str = "Job", **more: Any) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel=panel, show_default=False, **more)


@dataclasses.dataclass(frozen=True, slots=True)
class JobFlags:
    """What the flags said; None (or empty) where they said nothing and the job file decides."""

    script: Annotated[
        str | None,
        typer.Argument(help="The training script.", metavar="SCRIPT", show_default=False),
    ] = None
    args: Annotated[
        list[str] | None,
        typer.Argument(help="Its arguments.", metavar="ARGS...", show_default=False),
    ] = None
    cluster: Annotated[
        str | None, cluster_option("Cluster of clusterkit.yaml, or local.", panel="Job")
    ] = None
    framework: Annotated[
        str | None,
        _option(
            "--framework",
            "-f",
            help_text="What starts the processes: torchrun, deepspeed, horovod.",
            envvar="CLUSTERKIT_FRAMEWORK",
            metavar="NAME",
        ),
    ] = None
    nodes: Annotated[
        str | None,
        _option(
            "--nodes",
            "-n",
            help_text="Number of nodes, or MIN:MAX for an elastic job.",
            envvar="CLUSTERKIT_NODES",
            metavar="N",
        ),
    ] = None
    gpus_per_node: Annotated[
        str | None,
        _option(
            "--gpus-per-node",
            "-g",
            help_text="Slots of each node: GPUs, or CPU processes where there are none.",
            metavar="G",
        ),
    ] = None
    processes: Annotated[
        int | None,
        _option("--processes", help_text="Ranks in all, where fewer than the slots.", metavar="N"),
    ] = None
    time: Annotated[
        str | None, _option("--time", "-t", help_text="Time limit, as Slurm's.", metavar="TIME")
    ] = None
    name: Annotated[str | None, _option("--name", help_text="Name of the job.", metavar="NAME")] = (
        None
    )
    env: Annotated[
        list[str] | None,
        _option("--env", "-e", help_text="Variable for every rank; repeatable.", metavar="K=V"),
    ] = None
    secret: Annotated[
        list[str] | None,
        _option(
            "--secret",
            help_text="Variable passed on but never written down; repeatable.",
            metavar="NAME",
        ),
    ] = None
    exclude: Annotated[
        str | None, _option("--exclude", help_text="Hostlist of nodes not to use.", metavar="LIST")
    ] = None
    sync: Annotated[
        str | None,
        _option(
            "--sync",
            help_text="Folder to copy to nodes that share no file system with this machine.",
            metavar="DIR",
        ),
    ] = None
    sync_limit: Annotated[
        int | None,
        _option(
            "--sync-limit",
            help_text="How much may be copied to each node, and back: MiB, 500 by default.",
            metavar="MIB",
        ),
    ] = None
    set_: Annotated[
        list[str] | None,
        _option(
            "--set", help_text="sbatch.KEY=VALUE or FRAMEWORK.KEY=VALUE; repeatable.", metavar="K=V"
        ),
    ] = None
    ds_preset: Annotated[
        str | None,
        _option(
            "--ds-preset",
            help_text="DeepSpeed configuration: zero1, zero2, zero3, zero3-offload, zero3-nvme.",
            metavar="NAME",
        ),
    ] = None
    ps: Annotated[
        int | None,
        _option(
            "--ps",
            help_text="Parameter servers among the processes; short for --set tensorflow.ps=K.",
            metavar="K",
        ),
    ] = None
    requeue: Annotated[
        int | None,
        _option(
            "--requeue",
            help_text="Start again so often after the time limit, preemption or a lost node.",
            metavar="N",
        ),
    ] = None
    spares: Annotated[
        int | None,
        _option(
            "--spares",
            help_text="Nodes at hand for those that fail, when the job starts again.",
            metavar="K",
        ),
    ] = None
    image: Annotated[
        str | None,
        _option("--image", help_text="Image to run in.", panel="Container", metavar="NAME"),
    ] = None
    container: Annotated[
        str | None,
        _option(
            "--container",
            help_text="docker, compose, apptainer, enroot or pyxis.",
            panel="Container",
            metavar="RUNTIME",
        ),
    ] = None
    mount: Annotated[
        list[str] | None,
        _option(
            "--mount",
            help_text="What the container sees, SOURCE:TARGET[:ro]; repeatable.",
            panel="Container",
            metavar="SOURCE:TARGET",
        ),
    ] = None
    array: Annotated[
        str | None,
        _option(
            "--array",
            "-a",
            help_text="One job for each: 'lr=1e-3,1e-4;seed=0-3%2' (2 at once), or a YAML, JSON or "
            "CSV file; {lr} stands in ARGS, --env or --name.",
            panel="Array",
            metavar="SPEC|FILE",
        ),
    ] = None
    at_once: Annotated[
        int | None,
        _option(
            "--at-once",
            help_text="So many jobs of the array run at once.",
            panel="Array",
            metavar="K",
        ),
    ] = None
    elements: Annotated[
        str | None,
        _option(
            "--elements",
            help_text="Only these jobs of the array, by number: 0,4-7.",
            panel="Array",
            metavar="LIST",
        ),
    ] = None
    tp: Annotated[
        int | None,
        _option("--tp", help_text="Tensor-parallel ranks: TP_SIZE.", panel="Layout", metavar="T"),
    ] = None
    pp: Annotated[
        int | None,
        _option("--pp", help_text="Pipeline stages: PP_SIZE.", panel="Layout", metavar="P"),
    ] = None
    cp: Annotated[
        int | None,
        _option("--cp", help_text="Context-parallel ranks: CP_SIZE.", panel="Layout", metavar="C"),
    ] = None
    ep: Annotated[
        int | None,
        _option("--ep", help_text="Expert-parallel ranks: EP_SIZE.", panel="Layout", metavar="E"),
    ] = None
    topology: Annotated[
        Path | None,
        _option(
            "--topology",
            help_text="Number nodes by it: what `scontrol show topology` prints, or what "
            "`preflight --network --save` kept.",
            panel="Layout",
            metavar="FILE|DIR",
        ),
    ] = None
    job: Annotated[
        Path | None,
        _option(
            "--job",
            help_text="YAML file with these flags as keys; flags win over it.",
            metavar="FILE",
        ),
    ] = None


def given(flags: JobFlags) -> dict[str, Any]:
    """Return what was said, by the keys of a job file."""
    return {
        field.name.rstrip("_"): value
        for field in dataclasses.fields(flags)
        if (value := getattr(flags, field.name)) not in (None, [])
    }


def request_of(flags: JobFlags, *, verb: str) -> JobRequest:
    """Return what the flags of `verb`, and the job file that they name, ask for.

    Raises:
        UserError: the job file has errors.
    """
    from clusterkit.jobs.submit.request import read_request

    _warn_of_flags_behind(flags)
    return read_request(given(flags), verb=verb, job=flags.job, warn=console.warn)


def _warn_of_flags_behind(flags: JobFlags) -> None:
    """Warn where what looks like a flag of ours stands behind the script, and so goes to it."""
    names = {field.name.rstrip("_") for field in dataclasses.fields(flags)} - _SCRIPTS_HAVE
    ours = {f"--{name.replace('_', '-')}" for name in names}
    behind = [word for word in flags.args or () if word.partition("=")[0] in ours]
    if behind:
        console.warn(
            f"{behind[0]} stands after {flags.script} and goes to the script;\n"
            "  flags of clusterkit stand before it"
        )


def takes_job_flags(verb: Callable[..., None]) -> Callable[..., None]:
    """Give `verb(flags, **own)` the parameters of `JobFlags` beside its own."""
    return _with_flags(verb, tuple(inspect.signature(JobFlags).parameters))


def takes_some_job_flags(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb these parameters of `JobFlags` beside its own; the others stay unsaid."""
    return lambda verb: _with_flags(verb, names)


def _with_flags(verb: Callable[..., None], names: tuple[str, ...]) -> Callable[..., None]:
    known = inspect.signature(JobFlags, eval_str=True).parameters
    shared = {name: known[name] for name in names}
    own = dict(list(inspect.signature(verb, eval_str=True).parameters.items())[1:])

    def command(**values: Any) -> None:
        flags = JobFlags(**{name: values.pop(name) for name in shared})
        verb(flags, **values)

    parameters = [*shared.values(), *own.values()]
    command.__name__, command.__doc__ = verb.__name__, verb.__doc__
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    )
    return command
