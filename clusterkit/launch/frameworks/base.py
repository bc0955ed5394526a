"""What a framework is to clusterkit: a name, what it can do, and a function from inputs to argv."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from clusterkit.core.data import data_dir, framework_files, node_files, peers_program
from clusterkit.core.errors import UserError, choices_hint
from clusterkit.core.model import HorovodController, NodeCommand, Runtime, ScriptKind, Word

MPI_OPTIONS = ("launcher", "flavour", "mpirun", "map-by", "bind-to", "pmi")
"""What `--set mpi.KEY=VALUE` may name."""
_MPIRUN = ("mpirun", "mpiexec", "mpiexec.hydra", "mpirun.openmpi", "mpirun.mpich")
"""What `mpi_launch.py` looks for."""
PACKAGE_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
"""The name at the start of a requirement."""
_MPI_CHOICES = {"launcher": ("mpirun", "srun"), "flavour": ("openmpi", "mpich", "intel")}


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchInputs:
    """What a framework may base its command on."""

    script: str
    script_kind: ScriptKind = ScriptKind.PYTHON
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

    @property
    def program(self) -> tuple[str, ...]:
        """How a rank is started: its words in front of the arguments."""
        match self.script_kind:
            case ScriptKind.PYTHON:
                return (self.python, "-u", self.script)
            case ScriptKind.MODULE:
                return (self.python, "-u", "-m", self.script)
            case ScriptKind.SHELL:
                return ("bash", self.script)
            case ScriptKind.PROGRAM if "/" not in self.script:
                return (f"./{self.script}",)
        return (self.script,)

    def for_launcher(self, *, no_python: str) -> tuple[str, ...]:
        """Return what a launcher that starts Python itself is told; `no_python` is its flag."""
        if self.script_kind.is_python:
            flags = ("--module",) if self.script_kind is ScriptKind.MODULE else ()
            return (*flags, self.script, *self.args)
        return (no_python, *self.program, *self.args)


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
    torch: bool = False
    """Whether its ranks use `torch.distributed`, whose flight recorder is asked for dumps."""
    provides: tuple[str, ...] = ()
    """Environment variables that every rank finds."""
    by_hand: str = ""
    """How to start it over SSH, with the rendered files and without clusterkit."""

    @property
    def package_name(self) -> str | None:
        """Return the package without extras and versions; None where the framework needs none."""
        found = PACKAGE_NAME.match(self.package)
        return found[0] if found else None


def option_words(options: Mapping[str, str], *, skip: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return launcher options as `--key=value`; an empty value gives the bare flag."""
    return tuple(
        f"--{key}={value}" if value else f"--{key}"
        for key, value in options.items()
        if key not in skip
    )


def decided_error(option: str) -> UserError:
    """Return the error that refuses an option of a launcher which the plan decides."""
    hint = "use --nodes, --gpus-per-node and the cluster's port_range"
    return UserError(f"{option} is decided by the plan", hint=hint)


def launched_by(
    program: str, inputs: LaunchInputs, *arguments: Word, script: tuple[str, ...] | None = None
) -> tuple[Word, ...]:
    """Return how a program of ours in the job's folder of each node is called.

    Behind its arguments stands the command of a rank, or the `script` that it starts itself.
    """
    command = (*inputs.program, *inputs.args) if script is None else script
    return (inputs.python, "-u", (Runtime.TMP, f"/{program}"), *arguments, *command)


def shared_files(*names: str) -> dict[str, str]:
    """Return programs of `templates/programs/ranks`, which launchers and ranks import on nodes."""
    return node_files("programs/ranks", *names)


def preset_text(framework: str, name: str) -> str:
    """Return a named configuration: a JSON or YAML file in the folder of the framework.

    Raises:
        UserError: there is none of that name; the hint names those that there are.
    """
    folder = data_dir(f"templates/frameworks/{framework}")
    files = {path.stem: path for path in sorted((*folder.glob("*.json"), *folder.glob("*.yaml")))}
    if name not in files:
        message = f"unknown configuration preset {name!r} for {framework}"
        raise UserError(message, hint=choices_hint(name, files))
    return files[name].read_text(encoding="utf-8")


def mpi_command(
    program: tuple[Word, ...], inputs: LaunchInputs, options: Mapping[str, str]
) -> NodeCommand:
    """Return the command that starts `program` as the ranks of an MPI job.

    `mpi_launch.py` runs mpirun on the first node, whose daemons every node starts itself, so that
    neither SSH nor a scheduler is needed. With the launcher `srun` it runs on the first node alone,
    and Slurm starts the ranks. `options` have been checked.
    """
    srun = options.get("launcher") == "srun"
    files = ("mpi_launch.py", "mpi_nodes.py", "mpi_agent.sh", "mpi_rank.sh")
    return NodeCommand(
        argv=(
            *(inputs.python, "-u", (Runtime.TMP, "/mpi_launch.py")),
            f"--processes={inputs.processes}",
            *(f"--{key}={value}" for key, value in options.items()),
            *((f"--srun-arg={argument}" for argument in inputs.srun_args) if srun else ()),
            *program,
        ),
        files={
            **framework_files("mpi", *files),
            **({} if srun else shared_files("clusterkit_failure.py", "ranks_sitecustomize.py")),
            **peers_program(),
        },
        once=srun,
    )


def mpirun_names(command: NodeCommand) -> tuple[str, ...]:
    """Return the programs of which the nodes need one; none where no mpirun starts the ranks."""
    if "mpi_launch.py" not in command.files or command.once:
        return ()
    flags = itertools.takewhile(lambda word: str(word).startswith("--"), command.argv[3:])
    named = tuple(str(word).removeprefix("--mpirun=") for word in flags if "--mpirun=" in str(word))
    return named or _MPIRUN


def check_mpi_options(framework: str, options: Mapping[str, str], *, under_slurm: bool) -> None:
    """Refuse `--set FRAMEWORK.KEY=VALUE` that the launcher does not know.

    Raises:
        UserError: with what it knows.
    """
    for key, value in options.items():
        if key not in MPI_OPTIONS:
            raise UserError(
                f"{framework} has no option {key!r} under MPI",
                hint=f"{choices_hint(key, MPI_OPTIONS)}; parameters of MPI itself are variables: "
                "--env OMPI_MCA_...=, MPIR_CVAR_...=, I_MPI_...=",
            )
        if value not in _MPI_CHOICES.get(key, (value,)):
            hint = choices_hint(value, _MPI_CHOICES[key])
            raise UserError(f"{framework}.{key}={value}", hint=hint)
        if not value:
            raise UserError(f"{framework}.{key} has no value", hint=f"{framework}.{key}=VALUE")
    srun = options.get("launcher") == "srun"
    if srun and not under_slurm:
        message = f"{framework}.launcher=srun: only a Slurm cluster has srun"
        raise UserError(message, hint="leave it out: mpirun starts the ranks")
    if "pmi" in options and not srun:
        hint = f"--set {framework}.launcher=srun, or leave it out"
        raise UserError(f"{framework}.pmi is for srun", hint=hint)
