"""What a framework is to clusterkit: a name, what it can do, and a function from inputs to argv."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from clusterkit.core.data import read_template
from clusterkit.core.model import HorovodController, NodeCommand, Runtime, Word


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchInputs:
    """What a framework may base its command on."""

    script: str
    args: tuple[str, ...] = ()
    nodes: int = 1
    max_nodes: int | None = None
    slots: tuple[int, ...] = (1,)
    """Slots of each node, in rank order."""
    node_names: tuple[str, ...] = ()
    """Names of the nodes where they are known beforehand; empty on Slurm."""
    one_host: bool = False
    """Whether this is for the one host of a compose file, whatever the hosts of the job."""
    processes: int = 1
    """Total number of ranks."""
    python: str = "python3"
    options: Mapping[str, str] = field(default_factory=dict)
    """`--set FRAMEWORK.KEY=VALUE`, keys as the launcher spells them, without dashes."""
    srun_args: tuple[str, ...] = ()
    """What the site adds to every `srun`."""
    horovod_controller: HorovodController = HorovodController.GLOO
    under_slurm: bool = False
    deepspeed_preset: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """One way to start the processes of a job.

    Third parties register an instance under the entry point group `clusterkit.frameworks`.
    """

    name: str
    summary: str
    package: str
    """The pip package that the nodes need; empty where only the script knows."""
    command: Callable[[LaunchInputs], NodeCommand]
    starts: tuple[str, ...] = ()
    """What people call that which it starts, where they look for a framework of that name."""
    image: str = ""
    """The image of the catalogue that has it, or a whole name such as `team/image:tag`."""
    uneven_slots: bool = False
    """Whether nodes may differ in slots, or ranks be fewer than slots."""
    elastic: bool = False
    """Whether `--nodes MIN:MAX` makes sense."""
    provides: tuple[str, ...] = ()
    """Environment variables that every rank finds."""
    by_hand: str = ""
    """How to start it over SSH, with the rendered files and without clusterkit."""


def option_words(options: Mapping[str, str], *, skip: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return launcher options as `--key=value`; an empty value gives the bare flag."""
    return tuple(
        f"--{key}={value}" if value else f"--{key}"
        for key, value in options.items()
        if key not in skip
    )


def shared_files(*names: str) -> dict[str, str]:
    """Return programs of `templates/programs/ranks`, which launchers import on the nodes."""
    return {name: read_template(f"programs/ranks/{name}") for name in names}


def launched_by(
    program: str, inputs: LaunchInputs, *words: Word, by_python: bool = True
) -> tuple[Word, ...]:
    """Return how a program of ours in the job's folder of each node is called, and the script."""
    script = (inputs.python, "-u", inputs.script) if by_python else (inputs.script,)
    return (inputs.python, "-u", (Runtime.TMP, f"/{program}"), *words, *script, *inputs.args)
