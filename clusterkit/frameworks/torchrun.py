"""torchrun: one elastic agent a node starts the node's ranks (DDP, FSDP, RPC scripts alike).

A job of fixed size uses the static rendezvous, because c10d sorts node names as strings and so
loses Slurm's order (pytorch#191190): ranks follow `CK_NODE_RANK`. Only `--nodes MIN:MAX` uses
c10d, with an id that no earlier attempt of the job has used, through `elastic.py`.
"""

from __future__ import annotations

from clusterkit.data import read_data
from clusterkit.frameworks.base import Framework, LaunchInputs, option_words, shared_files
from clusterkit.model import NodeCommand, Runtime, Word

_RESTARTS = "max-restarts"
_ELASTIC_RESTARTS = "3"
"""torchrun's own default of 0 would end an elastic job with the first node that it loses."""


def command(inputs: LaunchInputs) -> NodeCommand:
    """Return the agent's command; every node runs the same one."""
    names, options = ["agent.py"], inputs.options
    if inputs.max_nodes is not None:
        names.append("elastic.py")
        options = {_RESTARTS: _ELASTIC_RESTARTS, **options}
    return NodeCommand(
        argv=(
            inputs.python,
            "-u",
            (Runtime.TMP, f"/{names[-1]}"),  # torchrun, with additions
            *_rendezvous(inputs),
            f"--nproc-per-node={inputs.slots[0]}",
            *option_words(options),
            inputs.script,
            *inputs.args,
        ),
        files={
            **{name: read_data("templates", "torchrun", name) for name in names},
            **shared_files("clusterkit_failure.py"),
        },
    )


def _rendezvous(inputs: LaunchInputs) -> tuple[Word, ...]:
    if inputs.max_nodes is not None:
        return (
            # An allocation does not grow: to wait for more nodes than it has would cost 30 s.
            (f"--nnodes={inputs.nodes}:", Runtime.NNODES),
            "--rdzv-backend=clusterkit",
            ("--rdzv-endpoint=", Runtime.HEAD_ADDR, ":", Runtime.PORT),
            ("--rdzv-id=", Runtime.JOB_ID, "-", Runtime.RESTART_COUNT),
        )
    return (
        ("--nnodes=", Runtime.NNODES),
        ("--node-rank=", Runtime.NODE_RANK),
        ("--master-addr=", Runtime.HEAD_ADDR),
        ("--master-port=", Runtime.PORT),
    )


FRAMEWORK = Framework(
    name="torchrun",
    summary="PyTorch's own launcher: DDP, FSDP, RPC",
    package="torch",
    starts=("ddp", "fsdp", "pytorch", "torch", "torchelastic"),
    image="torch",
    command=command,
    elastic=True,
    by_hand='on each host K: CK_NODES="HOST0 HOST1" CK_NODE_RANK=K bash node.sh',
    provides=("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
)
