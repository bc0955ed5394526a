"""ray: a Ray cluster of the job's own nodes, and the script once, as its driver.

Every node runs `ray_launch.py`: the first one starts the head and, when the others have
joined, the script with RAY_ADDRESS. Ports and folders are the job's own, so that a Ray which
already runs on a machine is left alone, and each ends with its own job.
"""

from __future__ import annotations

from clusterkit.core.data import framework_files, peers_program
from clusterkit.core.errors import UserError, choices_hint
from clusterkit.core.model import NodeCommand
from clusterkit.launch.frameworks.base import Framework, LaunchInputs, launched_by, shared_files

_FILES = (
    "ray_launch.py", "clusterkit_member.py", "clusterkit_ray.py", "clusterkit_train.py",
    "ray_sitecustomize.py",
)  # fmt: skip
_OURS = "start-timeout"
_RAYS = (
    "num-cpus", "num-gpus", "resources", "labels", "memory", "object-store-memory",
    "object-spilling-directory", "plasma-directory", "min-worker-port", "max-worker-port",
    "worker-port-list", "system-config",
)  # fmt: skip
"""Options of `ray start` that are the user's; the others are decided by the plan."""


def command(inputs: LaunchInputs) -> NodeCommand:
    """Return the command of a node; every node runs the same one."""
    known = (_OURS, *_RAYS)
    unknown = next((name for name in inputs.options if name not in known), None)
    if unknown is not None:
        raise UserError(
            f"ray.{unknown} is not an option of a job", hint=choices_hint(unknown, sorted(known))
        )
    seconds = inputs.options.get(_OURS, "600")
    if not seconds.isdigit():
        raise UserError(f"ray.{_OURS} {seconds!r} is not a number of seconds", hint="600")
    if inputs.max_nodes is None and inputs.processes != sum(inputs.slots):
        raise UserError(
            "under ray, the script itself says how many processes it wants",
            hint="leave --processes out; --set ray.num-cpus=N for another number of CPUs per node",
        )
    options = (f"--ray=--{name}={inputs.options[name]}" for name in _RAYS if name in inputs.options)
    return NodeCommand(
        argv=launched_by(
            "ray_launch.py",
            inputs,
            f"--min-nodes={inputs.nodes}",
            f"--start-timeout={seconds}",
            *options,
        ),
        files={
            **framework_files("ray", *_FILES),
            **shared_files("clusterkit_failure.py", "clusterkit_tree.py"),
            **peers_program(),
        },
    )


FRAMEWORK = Framework(
    name="ray",
    summary="a Ray cluster of the nodes, and the script as its driver",
    package="ray[train]",
    image="ray",
    command=command,
    uneven_slots=True,
    elastic=True,
    by_hand='on each host K: CK_TOKEN=SECRET CK_NODES="HOST0 HOST1" CK_NODE_RANK=K bash node.sh',
    provides=("RAY_ADDRESS",),
)
