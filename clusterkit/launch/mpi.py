"""The command of a job under MPI: one program on every node, or one `srun` for all of them.

`mpi_launch.py` runs mpirun on the first node, whose daemons every node starts itself, so
that neither SSH nor a scheduler is needed. With `srun`, Slurm starts the ranks.
"""

from __future__ import annotations

from collections.abc import Mapping

from clusterkit.core.data import framework_files, peers_program
from clusterkit.core.errors import UserError, choices_hint
from clusterkit.core.model import NodeCommand, Runtime, Word

OPTIONS = ("launcher", "flavour", "mpirun", "map-by", "bind-to", "pmi")
"""What `--set mpi.KEY=VALUE` may name."""
_CHOICES = {"launcher": ("mpirun", "srun"), "flavour": ("openmpi", "mpich", "intel")}
_FILES = ("mpi_launch.py", "mpi_nodes.py", "mpi_agent.sh", "mpi_rank.sh")


def mpi_command(
    program: tuple[Word, ...],
    *,
    python: str,
    processes: int,
    options: Mapping[str, str],
    srun_args: tuple[str, ...] = (),
) -> NodeCommand:
    """Return the command that starts `program` as `processes` ranks.

    `options` have been checked. With the launcher `srun` it runs on the first node alone.
    """
    srun = options.get("launcher") == "srun"
    return NodeCommand(
        argv=(
            python,
            "-u",
            (Runtime.TMP, "/mpi_launch.py"),
            f"--processes={processes}",
            *(f"--{key}={value}" for key, value in options.items()),
            *((f"--srun-arg={argument}" for argument in srun_args) if srun else ()),
            *program,
        ),
        files={**framework_files("mpi", *_FILES), **peers_program()},
        once=srun,
    )


def check_options(framework: str, options: Mapping[str, str], *, under_slurm: bool) -> None:
    """Refuse `--set FRAMEWORK.KEY=VALUE` that the launcher does not know.

    Raises:
        UserError: with what it knows.
    """
    for key, value in options.items():
        if key not in OPTIONS:
            raise UserError(
                f"{framework} has no option {key!r} under MPI",
                hint=f"{choices_hint(key, OPTIONS)}; parameters of MPI itself are variables: "
                "--env OMPI_MCA_...=, MPIR_CVAR_...=, I_MPI_...=",
            )
        if value not in _CHOICES.get(key, (value,)):
            raise UserError(f"{framework}.{key}={value}", hint=choices_hint(value, _CHOICES[key]))
        if not value:
            raise UserError(f"{framework}.{key} has no value", hint=f"{framework}.{key}=VALUE")
    srun = options.get("launcher") == "srun"
    if srun and not under_slurm:
        raise UserError(
            f"{framework}.launcher=srun: only a Slurm cluster has srun",
            hint="leave it out: mpirun starts the ranks",
        )
    if "pmi" in options and not srun:
        hint = f"--set {framework}.launcher=srun, or leave it out"
        raise UserError(f"{framework}.pmi is for srun", hint=hint)
