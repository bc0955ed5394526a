"""tensorflow: a `TF_CONFIG` for every process, and an end for those that would never end.

One process per node sees all of its GPUs: what MultiWorkerMirroredStrategy calls a worker, which
sums gradients within itself before others wait for them. `tensorflow.per=slot` starts one for each
slot, as `srun` does for TensorFlow's own SlurmClusterResolver; ranks have their roles in its order.
"""

from __future__ import annotations

from clusterkit.core.data import framework_files, peers_program
from clusterkit.core.errors import UserError, choices_hint
from clusterkit.core.model import NodeCommand
from clusterkit.launch.frameworks.base import Framework, LaunchInputs, launched_by, shared_files

_PER = ("node", "slot")
_ROLES = ("chief", "evaluator", "ps")
"""What a process may be instead of a worker."""


def command(inputs: LaunchInputs) -> NodeCommand:
    """Return the command that starts the processes of a node; every node runs the same one."""
    per, processes = _processes(inputs)
    roles = _roles(inputs, processes)
    return NodeCommand(
        argv=launched_by(
            "tensorflow_launch.py",
            inputs,
            *((f"--processes={processes}",) if per == "slot" else ()),
            *(f"--{role}={count}" for role, count in roles.items() if count),
        ),
        files={
            **framework_files("tensorflow", "tensorflow_launch.py", "tensorflow_meeting.py"),
            **shared_files("clusterkit_ranks.py", "clusterkit_failure.py"),
            **peers_program(),
        },
        processes=processes,
    )


def _processes(inputs: LaunchInputs) -> tuple[str, int]:
    """Return what there is a process for, and how many there are."""
    per = inputs.options.get("per", "node")
    if per not in _PER:
        message = f"tensorflow.per={per}: one process per node, or one per slot"
        raise UserError(message, hint=choices_hint(per, _PER), key="set.tensorflow.per")
    if per == "slot":
        return per, inputs.processes
    if inputs.processes != sum(inputs.slots[: inputs.nodes]):
        raise UserError(
            f"--processes {inputs.processes}: tensorflow starts one process per node",
            hint="leave it out, or add --set tensorflow.per=slot",
            key="processes",
        )
    return per, inputs.nodes


def _roles(inputs: LaunchInputs, processes: int) -> dict[str, int]:
    """Return how many processes are something else than a worker."""
    known = ("per", *_ROLES)
    for name, value in inputs.options.items():
        if name not in known:
            message, hint = f"tensorflow has no option {name!r}", choices_hint(name, known)
            raise UserError(message, hint=hint, key=f"set.tensorflow.{name}")
        if name in _ROLES and value not in {"0", "1"} and not (name == "ps" and value.isdecimal()):
            expected = "a number of processes" if name == "ps" else "0 or 1"
            message = f"tensorflow.{name}={value}: {expected} is wanted"
            raise UserError(message, hint=f"tensorflow.{name}=1", key=f"set.tensorflow.{name}")
    roles = {role: int(inputs.options.get(role, "0")) for role in _ROLES}
    if roles["ps"] and "chief" not in inputs.options:
        roles["chief"] = 1  # who coordinates: ParameterServerStrategy wants one
    others = sum(roles.values())
    if others < processes:
        return roles
    if inputs.one_host:
        return {}  # the job is larger than the one host of its compose file
    listed = " + ".join(f"{count} {role}" for role, count in roles.items() if count)
    raise UserError(
        f"{listed} leave no worker: the job has {processes} process{'es' * (processes != 1)}",
        hint=f"raise --nodes to {others + 1}, or ask for fewer"
        if inputs.options.get("per") != "slot"
        else f"raise --nodes or --gpus-per-node: at least {others + 1} processes are needed",
        key=f"set.tensorflow.{next(role for role in reversed(_ROLES) if roles[role])}",
    )


FRAMEWORK = Framework(
    name="tensorflow",
    summary="TensorFlow: MultiWorkerMirrored, ParameterServer and Mirrored strategies",
    package="tensorflow",
    starts=("keras", "tf"),
    image="tensorflow",
    command=command,
    uneven_slots=True,
    provides=("TF_CONFIG",),
    by_hand='on each host K: CK_TOKEN=SECRET CK_NODES="HOST0 HOST1" CK_NODE_RANK=K bash node.sh',
)
