"""mpi: the ranks start under MPI's own mpirun, without SSH, or under Slurm's srun.

Open MPI, MPICH and Intel MPI; which one is found on the nodes. A script of Python or any program,
such as the nccl-tests: each rank finds the variables of MPI, and those of torch.distributed.
"""

from __future__ import annotations

from clusterkit.errors import UserError, choices_hint
from clusterkit.frameworks.base import Framework, LaunchInputs
from clusterkit.model import NodeCommand
from clusterkit.mpi_words import OPTIONS, mpi_command

_CHOICES = {"launcher": ("mpirun", "srun"), "flavour": ("openmpi", "mpich", "intel")}


def command(inputs: LaunchInputs) -> NodeCommand:
    """Return the command of each node, or the one of the first under `srun`."""
    options = dict(inputs.options)
    _check(options)
    if inputs.one_host:
        options.pop("launcher", None)  # a compose file has no Slurm
    elif options.get("launcher") == "srun" and not inputs.under_slurm:
        raise UserError(
            "mpi.launcher=srun: only a Slurm cluster has srun",
            hint="leave it out: mpirun starts the ranks",
        )
    python = (inputs.python, "-u") if inputs.script.endswith(".py") else ()
    return mpi_command(
        (*python, inputs.script, *inputs.args),
        python=inputs.python,
        processes=inputs.processes,
        options=options,
        srun_args=inputs.srun_args,
    )


def _check(options: dict[str, str]) -> None:
    for key, value in options.items():
        if key not in OPTIONS:
            raise UserError(
                f"mpi has no option {key!r}",
                hint=f"{choices_hint(key, OPTIONS)}; parameters of MPI itself are variables: "
                "--env OMPI_MCA_...=, MPIR_CVAR_...=, I_MPI_...=",
            )
        if key in _CHOICES and value not in _CHOICES[key]:
            raise UserError(f"mpi.{key}={value}", hint=choices_hint(value, _CHOICES[key]))
        if not value:
            raise UserError(f"mpi.{key} has no value", hint=f"--set mpi.{key}=VALUE")
    if "pmi" in options and options.get("launcher") != "srun":
        raise UserError("mpi.pmi is for srun", hint="--set mpi.launcher=srun, or leave it out")


FRAMEWORK = Framework(
    name="mpi",
    summary="mpirun without SSH, or srun: Open MPI, MPICH, Intel MPI; any program",
    package="torch",
    image="torch",
    command=command,
    uneven_slots=True,
    by_hand='on each host K: CK_NODES="HOST0 HOST1" CK_NODE_RANK=K bash node.sh',
    provides=(
        "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR",
        "MASTER_PORT", "JAX_COORDINATOR_ADDRESS", "SLURM_PROCID", "SLURM_LOCALID",
    ),
)  # fmt: skip
