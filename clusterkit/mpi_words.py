"""The command of a job under MPI: one program on every node, or one `srun` for all of them.

`templates/mpi/launch.py` runs mpirun on the first node, whose daemons every node starts itself, so
that neither SSH nor a scheduler is needed. With `srun`, Slurm starts the ranks.
"""

from __future__ import annotations

from collections.abc import Mapping

from clusterkit.data import read_data
from clusterkit.model import NodeCommand, Runtime, Word

OPTIONS = ("launcher", "flavour", "mpirun", "map-by", "bind-to", "pmi")
"""What `--set mpi.KEY=VALUE` may name."""
_FILES = {
    "mpi_launch.py": "launch.py",
    "mpi_nodes.py": "nodes.py",
    "mpi_agent.sh": "agent.sh",
    "mpi_rank.sh": "rank.sh",
}


def mpi_command(
    program: tuple[Word, ...],
    *,
    python: str,
    processes: int,
    options: Mapping[str, str],
    srun_args: tuple[str, ...] = (),
) -> NodeCommand:
    """Return the command that starts `program` as `processes` ranks.

    `options` are some of `OPTIONS`. With the launcher `srun` it runs on the first node alone.
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
        files={name: read_data("templates", "mpi", source) for name, source in _FILES.items()},
        once=srun,
    )
