"""env: one process for each slot, told who it is by the variables that scripts read anyway.

For scripts that need no launcher: Lightning, `torch.distributed` with `env://`, `nn.DataParallel`
with one slot, `torch.distributed.rpc`, `jax.distributed`, and those written for `srun` with one
task for each GPU. `--set env.per-node=1` starts one process per node instead, for all of its GPUs.
"""

from __future__ import annotations

from clusterkit.core.data import framework_files
from clusterkit.core.errors import UserError
from clusterkit.core.model import NodeCommand
from clusterkit.launch.frameworks.base import Framework, LaunchInputs, launched_by, shared_files

PER_NODE = "per-node"


def command(inputs: LaunchInputs) -> NodeCommand:
    """Return the command that starts the processes of a node; every node runs the same one."""
    odd = next((name for name in inputs.options if name != PER_NODE), None)
    if odd is not None:
        raise UserError(
            f"env has no launcher, and so no option {odd!r}",
            hint=f"set variables with --env instead, and processes of a node with {PER_NODE}",
        )
    per_node = inputs.options.get(PER_NODE)
    if per_node is not None and not (per_node.isdecimal() and int(per_node) > 0):
        raise UserError(f"env.{PER_NODE} is {per_node!r}", hint="a number of processes, such as 1")
    slots = inputs.slots if per_node is None else [min(n, int(per_node)) for n in inputs.slots]
    return NodeCommand(
        argv=launched_by(
            "env_launch.py",
            inputs,
            f"--processes={inputs.processes}",
            *((f"--per-node={per_node}",) if per_node is not None else ()),
        ),
        files={
            **framework_files("env", "env_launch.py"),
            **shared_files(
                "clusterkit_ranks.py", "clusterkit_failure.py", "ranks_sitecustomize.py"
            ),
        },
        processes=min(inputs.processes, sum(slots)),
    )


FRAMEWORK = Framework(
    name="env",
    summary="one process per slot, told who it is: Lightning, JAX, srun-style scripts",
    package="",
    starts=("jax", "lightning", "pytorch-lightning", "srun"),
    image="torch",
    command=command,
    torch=True,
    uneven_slots=True,
    by_hand='on each host K: CK_NODES="HOST0 HOST1" CK_NODE_RANK=K bash node.sh',
    provides=(
        "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR",
        "MASTER_PORT", "JAX_COORDINATOR_ADDRESS", "JAX_LOCAL_DEVICE_IDS", "SLURM_PROCID",
        "SLURM_LOCALID",
    ),
)  # fmt: skip
