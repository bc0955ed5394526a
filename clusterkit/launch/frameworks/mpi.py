"""mpi: the ranks start under MPI's own mpirun, without SSH, or under Slurm's srun.

Open MPI, MPICH and Intel MPI; which one is found on the nodes. A script of Python or any program,
such as the nccl-tests: each rank finds the variables of MPI, and those of torch.distributed.
"""

from __future__ import annotations

from clusterkit.core.model import NodeCommand, ScriptKind
from clusterkit.launch.frameworks.base import (
    Framework,
    LaunchInputs,
    check_mpi_options,
    mpi_command,
)


def command(inputs: LaunchInputs) -> NodeCommand:
    """Return the command of each node, or the one of the first under `srun`."""
    options = dict(inputs.options)
    if inputs.one_host:
        # A compose file has no Slurm.
        options = {k: v for k, v in options.items() if k not in {"launcher", "pmi"}}
    check_mpi_options("mpi", options, under_slurm=inputs.under_slurm)
    program = inputs.program
    if inputs.script_kind is ScriptKind.PYTHON and not inputs.script.endswith(".py"):
        program = (inputs.script,)  # with a Python of its own, such as what pip installs
    return mpi_command((*program, *inputs.args), inputs, options)


FRAMEWORK = Framework(
    name="mpi",
    summary="mpirun without SSH, or srun: Open MPI, MPICH, Intel MPI; any program",
    package="",
    image="mpi",
    starts=("mpirun", "openmpi", "mpich", "mpi4py"),
    command=command,
    uneven_slots=True,
    by_hand='on each host K: CK_TOKEN=SECRET CK_NODES="HOST0 HOST1" CK_NODE_RANK=K bash node.sh',
    provides=(
        "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR",
        "MASTER_PORT", "JAX_COORDINATOR_ADDRESS", "SLURM_PROCID", "SLURM_LOCALID",
    ),
)  # fmt: skip
