"""horovod: inside an allocation without SSH; over MPI where the site's Horovod is built on it.

With gloo, every node runs `horovod_launch.py`: the first node serves Horovod's own rendezvous, to
the ranks of the job alone (`horovod_rendezvous.py`), and each node starts its local ranks with the
HOROVOD_* variables that `horovodrun` would have set over SSH; a job of `--nodes MIN:MAX` runs
`horovod_elastic.py` there, with Horovod's elastic driver on the first node. With MPI, `srun` starts
one task per rank under Slurm, and mpirun elsewhere.
"""

from __future__ import annotations

from clusterkit.core.data import framework_files, peers_program
from clusterkit.core.errors import UserError
from clusterkit.core.model import HorovodController, NodeCommand
from clusterkit.launch.frameworks.base import (
    MPI_OPTIONS,
    Framework,
    LaunchInputs,
    check_mpi_options,
    launched_by,
    mpi_command,
    option_words,
    shared_files,
)

_RESETS = "reset-limit"
"""How often the ranks of an elastic job may begin anew; a compose file has a job of one host."""


def command(inputs: LaunchInputs) -> NodeCommand:
    """Return the command of each node, or of the first one alone where `srun` starts the ranks."""
    if inputs.horovod_controller is HorovodController.MPI:
        return _over_mpi(inputs)
    elastic = inputs.max_nodes is not None
    known = {_RESETS} if elastic or inputs.one_host else set()
    known |= set(MPI_OPTIONS) if inputs.one_host else set()
    unknown = [option for option in inputs.options if option not in known]
    if unknown:
        raise UserError(
            f"horovod has no launcher option {unknown[0]!r} inside an allocation",
            hint="set HOROVOD_* variables with --env instead",
        )
    rendezvous = {**framework_files("horovod", "horovod_rendezvous.py"), **peers_program()}
    if not elastic:
        return NodeCommand(
            argv=launched_by("horovod_launch.py", inputs, f"--processes={inputs.processes}"),
            files={
                **framework_files("horovod", "horovod_launch.py"),
                **rendezvous,
                **shared_files(
                    "clusterkit_ranks.py", "clusterkit_failure.py", "ranks_sitecustomize.py"
                ),
            },
        )
    files = framework_files("horovod", "horovod_elastic.py")
    return NodeCommand(
        argv=launched_by(
            "elastic.py",
            inputs,
            f"--min-nodes={inputs.nodes}",
            # Whichever nodes are lost: as many slots as the smallest ones have.
            f"--min-processes={sum(sorted(inputs.slots)[: inputs.nodes])}",
            *option_words(inputs.options),
        ),
        files={**files, **rendezvous},
    )


def _over_mpi(inputs: LaunchInputs) -> NodeCommand:
    if inputs.max_nodes is not None:
        raise UserError(
            "an MPI-built Horovod cannot change its number of nodes",
            hint=f"--nodes {inputs.max_nodes}, or horovod_controller: gloo for this cluster",
        )
    options = {"launcher": "srun" if inputs.under_slurm else "mpirun", **inputs.options}
    check_mpi_options("horovod", options, under_slurm=inputs.under_slurm)
    return mpi_command((*inputs.program, *inputs.args), inputs, options)


FRAMEWORK = Framework(
    name="horovod",
    summary="Horovod on gloo without SSH, or on MPI",
    package="horovod",
    image="horovod",
    command=command,
    uneven_slots=True,
    elastic=True,
    by_hand="horovodrun -np N --hostfile hostfile python train.py",
    provides=("HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE"),
)
