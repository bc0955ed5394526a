"""What is refused before planning: contradictions in a job, its cluster and its framework."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from clusterkit.config.units import MOUNT_FORMS, TIME_FORMS, is_mount, parse_time_limit
from clusterkit.core.errors import Problem, UserError
from clusterkit.core.hosts.hostlist import MAX_NAMES
from clusterkit.core.model import ClusterSpec, ContainerRuntime, GpuRequest
from clusterkit.core.text import LONE_SURROGATE
from clusterkit.launch.frameworks import Framework
from clusterkit.launch.frameworks.base import preset_text
from clusterkit.launch.options import JobSpec

_MOST_SLOTS = 9999
_MOST_RESTARTS = 100_000
_LONGEST_VALUE = (1 << 17) - 2
"""MAX_ARG_STRLEN of execve(2), less the `=` and the NUL."""
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TAKEN = re.compile(r"(?i:CK)_.*|BASHOPTS|BASH_VERSINFO|EUID|PPID|SHELLOPTS|UID")
"""Variables of the node script, and those that bash lets nobody set."""


def check_request(job: JobSpec, cluster: ClusterSpec, framework: Framework, workdir: str) -> None:
    """Refuse what cannot be planned, all problems at once.

    Raises:
        UserError: the job contradicts itself, the cluster or the framework.
    """
    problems = [
        *_check_sizes(job),
        *_check_nodes(job, framework),
        *_check_environment(job, cluster),
        *_check_container(job, cluster, workdir),
        *_check_restarts(job, cluster),
    ]
    if job.deepspeed_preset is not None:
        problems += _check_preset(job.deepspeed_preset, framework.name)
    problems += _check_text(job, cluster, workdir)
    try:
        parse_time_limit(job.time or cluster.time or "1")
    except ValueError as error:
        problems.append(Problem(message=f"--time: {error}", hint=f"write {TIME_FORMS}", key="time"))
    if problems:
        raise UserError(problems=problems)


def _check_preset(name: str, framework: str) -> Iterator[Problem]:
    if framework != "deepspeed":
        message = f"--ds-preset {name} is for deepspeed, and the framework is {framework}"
        hint = "--framework deepspeed, or leave --ds-preset out"
        yield Problem(message=message, hint=hint, key="ds_preset")
    try:
        preset_text("deepspeed", name)
    except UserError as error:
        yield from (replace(problem, key="ds_preset") for problem in error.problems)


def _check_text(job: JobSpec, cluster: ClusterSpec, workdir: str) -> Iterator[Problem]:
    """Yield what no script, plan or log of the job could hold."""
    given = (
        *(("script", job.script), ("the working folder", workdir), ("run_dir", cluster.run_dir)),
        *(("argument", arg) for arg in job.args),
        *((f"the value of {name}", value) for name, value in {**cluster.env, **job.env}.items()),
    )
    for what, value in given:
        if "\0" in value:
            yield Problem(message=f"{what} {value!r} holds a NUL character")
        if LONE_SURROGATE.search(value):
            shown = value.encode(errors="surrogateescape").decode(errors="backslashreplace")
            yield Problem(
                message=f"{what} is not UTF-8: {shown}",
                hint="scripts and plans of jobs are: rename it, such as with `convmv` or `mv`",
            )


def _check_sizes(job: JobSpec) -> Iterator[Problem]:
    """Yield numbers beyond any cluster, for which no plan fits into memory."""
    for key, value, most in (
        ("nodes", max(job.nodes, job.max_nodes or 0), MAX_NAMES),
        ("spares", job.spares, MAX_NAMES),
        ("gpus_per_node", max(job.gpus_per_node, default=0), _MOST_SLOTS),
        ("requeue", job.requeue, _MOST_RESTARTS),
    ):
        if value > most:
            flag = f"--{key.replace('_', '-')}"
            shown = value if value < 10**18 else "a huge number"
            hint = f"{flag} takes {most:,} at most"
            yield Problem(message=f"{flag} is too large: {shown}", hint=hint, key=key)


def _check_nodes(job: JobSpec, framework: Framework) -> Iterator[Problem]:
    low, high = job.nodes, job.max_nodes
    if low < 1:
        message = f"--nodes {low}: a job needs at least 1 node"
        yield Problem(message=message, hint="--nodes 1", key="nodes")
    if high is not None and high < low:
        message = f"--nodes {low}:{high}: the maximum is below the minimum"
        yield Problem(message=message, hint=f"--nodes {high}:{low}", key="nodes")
    if high is not None and not framework.elastic:
        message = f"--nodes {low}:{high}: {framework.name} cannot change its number of nodes"
        yield Problem(message=message, hint=f"--nodes {high}", key="nodes")
    if job.processes is not None and job.processes < 1:
        message = f"--processes {job.processes}: must be at least 1"
        yield Problem(message=message, key="processes")
    if any(count < 1 for count in job.gpus_per_node):
        hint = "for a CPU-only job a slot is one process: --gpus-per-node 1"
        yield Problem(message="--gpus-per-node: every node needs at least 1 slot", hint=hint)


def _check_restarts(job: JobSpec, cluster: ClusterSpec) -> Iterator[Problem]:
    for flag, number in (("requeue", job.requeue), ("spares", job.spares)):
        if number < 0:
            yield Problem(message=f"--{flag} {number}: must be 0 or more", key=flag)
    if job.spares <= 0:
        return
    why, hint = None, "leave it out"
    if cluster.kind.shares_machine:
        why = f"all nodes of {cluster.name} are this one machine"
    elif job.max_nodes is not None:
        why = "an elastic job goes on without the nodes that it loses"
    elif not job.requeue:
        why, hint = "used when the job starts again, which it may not", "add --requeue 1, or more"
    if why is not None:
        yield Problem(message=f"--spares {job.spares}: {why}", hint=hint, key="spares")


def nodes_in_words(nodes: int, spares: int) -> str:
    """Return how many nodes a job asks for, its spares told apart."""
    counted = f"{nodes} node{'s' * (nodes != 1)}"
    return f"{counted} and {spares} spare{'s' * (spares != 1)}" if spares else counted


def fewer_nodes(have: int, nodes: int, spares: int) -> str:
    """Return the flags of a job that `have` nodes are enough for; at least 1."""
    if spares and have >= nodes:
        return f"--spares {have - nodes}"
    return f"--nodes {have}" + (" --spares 0" if spares else "")


def _check_environment(job: JobSpec, cluster: ClusterSpec) -> Iterator[Problem]:
    environment = {**cluster.env, **job.env}
    secrets = (*cluster.secrets, *job.secrets)
    for name in (*environment, *secrets):
        if not _ENV_NAME.fullmatch(name):
            hint = "letters, digits and underscores, no digit first"
            yield Problem(message=f"{name!r} is not a name of an environment variable", hint=hint)
    for name, value in environment.items():
        if len(name) + len(value.encode(errors="surrogateescape")) > _LONGEST_VALUE:
            yield Problem(
                message=f"the value of {name} is too long: {len(value):,} characters",
                hint=f"Linux passes {_LONGEST_VALUE:,} bytes in a variable at most: write it "
                "to a file, and pass its path",
                key=f"env.{name}",
            )
    for name in (*environment, *secrets):
        if _TAKEN.fullmatch(name):
            message = f"{name} cannot be set: it belongs to the node script or to bash"
            yield Problem(message=message, key=f"env.{name}")
    for name in secrets:
        if name in environment:
            yield Problem(
                message=f"{name} is both a secret and a plain variable, which would be written "
                "down",
                hint=f"remove it from env: (or --env), and keep --secret {name}",
            )


def _check_container(job: JobSpec, cluster: ClusterSpec, workdir: str) -> Iterator[Problem]:
    runtime = job.container or cluster.container_runtime
    image = job.image or cluster.image
    if job.image is not None and runtime is None:
        hint = "--container docker|compose|apptainer|enroot|pyxis, or container_runtime: in "
        hint += "the cluster's configuration"
        message = f"--image {job.image} needs a container runtime"
        yield Problem(message=message, hint=hint, key="image")
        return
    if job.container is not None and image is None:
        message = f"--container {job.container} needs an image"
        yield Problem(message=message, hint="--image NAME", key="container")
        return
    if job.mounts and image is None:
        message = f"--mount {job.mounts[0]}: the job runs in no image"
        yield Problem(message=message, hint="--image NAME --container docker", key="mount")
    else:
        for mount in job.mounts:
            if not is_mount(mount):
                yield Problem(message=f"--mount {mount}: no mount", hint=MOUNT_FORMS, key="mount")
    if runtime is not None and ":" in workdir:
        yield Problem(message=f"no image can mount the folder {workdir}: it has a colon")
    slurm = cluster.kind.scheduled
    if runtime is ContainerRuntime.PYXIS and not slurm:
        message = f"pyxis is a plugin of Slurm, and {cluster.name} is {cluster.kind}"
        yield Problem(message=message, hint="--container docker, apptainer or enroot")
    if runtime is ContainerRuntime.COMPOSE and slurm:
        message = f"compose is for clusters without Slurm, and {cluster.name} has it"
        yield Problem(message=message, hint="--container docker, apptainer, enroot or pyxis")


def check_slots(
    framework: Framework,
    cluster: ClusterSpec,
    slots: tuple[int, ...],
    *,
    nodes: int,
    processes: int,
) -> None:
    """Refuse ranks that do not fit the slots, or slots that the framework cannot fill.

    Raises:
        UserError: with what to ask for instead.
    """
    written = ",".join(str(count) for count in slots)
    even = len(set(slots)) == 1
    asks = cluster.kind.scheduled and cluster.gpu_request is not GpuRequest.NONE
    if processes > sum(slots):
        message = f"{processes} processes do not fit into {sum(slots)} slots ({written})"
        hint = "lower --processes, or raise --nodes or --gpus-per-node"
    elif not framework.uneven_slots and not even:
        message = f"{framework.name} needs the same number of processes on every node, "
        message += f"not {written}"
        hint = f"--gpus-per-node {min(slots)}, or --framework horovod, which accepts them"
    elif not framework.uneven_slots and processes != sum(slots[:nodes]):
        message = f"{framework.name} fills every slot: {processes} processes do not fill {written}"
        hint = "leave --processes out, or choose --nodes and --gpus-per-node to match"
    elif asks and not even:
        message = f"Slurm gives every node of a job the same number of GPUs, not {written}"
        hint = f"--gpus-per-node {max(slots)} with --processes {sum(slots)}"
    else:
        return
    raise UserError(message, hint=hint)
