"""torchrun: one elastic agent a node starts the node's ranks (DDP, FSDP, RPC scripts alike).

A job of fixed size uses the static rendezvous, because c10d sorts node names as strings and so
loses Slurm's order (pytorch#191190), and trusts whoever reaches its port: ranks follow
`CK_NODE_RANK`. `--nodes MIN:MAX` has a rendezvous of its own, by `elastic.py`.
"""

from __future__ import annotations

from clusterkit.core.data import framework_files, peers_program
from clusterkit.core.errors import UserError
from clusterkit.core.model import NodeCommand, Runtime, Word
from clusterkit.launch.frameworks.base import (
    Framework,
    LaunchInputs,
    decided_error,
    launched_by,
    option_words,
    shared_files,
)

_DECIDED = frozenset(
    {"nnodes", "node-rank", "master-addr", "master-port", "standalone"}
    | {"rdzv-backend", "rdzv-endpoint", "rdzv-id"}
)
"""Options that the plan decides. With c10d, whoever reaches the port could run programs."""
_PER_NODE = ("nproc-per-node", "nproc_per_node")
_RESTARTS = "max-restarts"
_ELASTIC_RESTARTS = "3"
"""torchrun's own default of 0 would end an elastic job with the first node that it loses."""


def command(inputs: LaunchInputs) -> NodeCommand:
    """Return the agent's command; every node runs the same one."""
    program, names, peers, options = "agent.py", ["agent.py"], {}, inputs.options
    taken = next((name for name in options if name.replace("_", "-") in _DECIDED), None)
    if taken is not None:
        raise decided_error(f"torchrun.{taken}")
    per_node = _per_node(inputs)
    if inputs.max_nodes is not None:
        program = "elastic.py"
        names += ["clusterkit_store.py", "torchrun_elastic.py"]
        peers = peers_program()
        options = {_RESTARTS: _ELASTIC_RESTARTS, **options}
    return NodeCommand(
        argv=launched_by(
            program,  # torchrun, with additions
            inputs,
            *_rendezvous(inputs),
            f"--nproc-per-node={per_node}",
            *option_words(options, skip=_PER_NODE),
            script=inputs.for_launcher(no_python="--no-python"),
        ),
        files={
            **framework_files("torchrun", *names),
            **shared_files("clusterkit_failure.py"),
            **peers,
        },
        processes=per_node * inputs.nodes,
    )


def _per_node(inputs: LaunchInputs) -> int:
    given = next((text for name, text in inputs.options.items() if name in _PER_NODE), None)
    if given is None:
        return inputs.slots[0]
    if not (given.isdecimal() and int(given) > 0):
        hint = "a number of processes; --gpus-per-node says how many slots a node has"
        raise UserError(f"torchrun.{_PER_NODE[0]} is {given!r}", hint=hint)
    return int(given)


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
    torch=True,
    elastic=True,
    by_hand='on each host K: CK_NODES="HOST0 HOST1" CK_NODE_RANK=K bash node.sh',
    provides=("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
)
