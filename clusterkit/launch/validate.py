"""What is refused before planning: contradictions in a job, its cluster and its framework."""

from __future__ import annotations

import re
from collections.abc import Iterator

from clusterkit.config.units import MOUNT_FORMS, TIME_FORMS, is_mount, parse_time_limit
from clusterkit.core.errors import Problem, UserError
from clusterkit.core.hosts.hostlist import MAX_NAMES
from clusterkit.core.model import ClusterKind, ClusterSpec, ContainerRuntime, GpuRequest, JobSpec
from clusterkit.core.text.escapes import LONE_SURROGATE
from clusterkit.launch.deepspeed_presets import check_preset
from clusterkit.launch.frameworks import Framework

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
    ]
    if job.requeue < 0:
        message = f"--requeue {job.requeue}: must be 0 or more"
        problems.append(Problem(message=message, key="requeue"))
    problems += _check_spares(job, cluster)
    if job.deepspeed_preset is not None:
        problems += check_preset(job.deepspeed_preset, framework.name)
    problems += _check_text(job, cluster, workdir)
    time = job.time or cluster.time
    try:
        parse_time_limit(time or "1")
    except ValueError as error:
        problems.append(Problem(message=f"--time: {error}", hint=f"write {TIME_FORMS}", key="time"))
    if problems:
        raise UserError(problems=problems)


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
            yield Problem(
                message=f"{flag} is too large: {value if value < 10**18 else 'a huge number'}",
                hint=f"{flag} takes {most:,} at most",
                key=key,
            )


def _check_nodes(job: JobSpec, framework: Framework) -> list[Problem]:
    problems = []
    if job.nodes < 1:
        problems.append(
            Problem(
                message=f"--nodes {job.nodes}: a job needs at least 1 node",
                hint="--nodes 1",
                key="nodes",
            )
        )
    if job.max_nodes is not None and job.max_nodes < job.nodes:
        problems.append(
            Problem(
                message=f"--nodes {job.nodes}:{job.max_nodes}: the maximum is below the minimum",
                hint=f"--nodes {job.max_nodes}:{job.nodes}",
                key="nodes",
            )
        )
    if job.max_nodes is not None and not framework.elastic:
        problems.append(
            Problem(
                message=f"--nodes {job.nodes}:{job.max_nodes}: {framework.name} cannot change its "
                "number of nodes",
                hint=f"--nodes {job.max_nodes}",
                key="nodes",
            )
        )
    if job.processes is not None and job.processes < 1:
        message = f"--processes {job.processes}: must be at least 1"
        problems.append(Problem(message=message, key="processes"))
    if any(count < 1 for count in job.gpus_per_node):
        problems.append(
            Problem(
                message="--gpus-per-node: every node needs at least 1 slot",
                hint="for a CPU-only job a slot is one process: --gpus-per-node 1",
            )
        )
    return problems


def _check_spares(job: JobSpec, cluster: ClusterSpec) -> list[Problem]:
    if job.spares < 0:
        return [Problem(message=f"--spares {job.spares}: must be 0 or more", key="spares")]
    if job.spares and cluster.kind is ClusterKind.LOCAL:
        message = f"--spares {job.spares}: all nodes of {cluster.name} are this one machine"
        return [Problem(message=message, hint="leave it out", key="spares")]
    if job.spares and job.max_nodes is not None:
        message = f"--spares {job.spares}: an elastic job goes on without the nodes that it loses"
        return [Problem(message=message, hint="leave it out", key="spares")]
    if job.spares and not job.requeue:
        message = f"--spares {job.spares}: used when the job starts again, which it may not"
        return [Problem(message=message, hint="add --requeue 1, or more", key="spares")]
    return []


def nodes_in_words(nodes: int, spares: int) -> str:
    """Return how many nodes a job asks for, its spares told apart."""
    told = f"{nodes} node{'s' * (nodes != 1)}"
    return f"{told} and {spares} spare{'s' * (spares != 1)}" if spares else told


def fewer_nodes(have: int, nodes: int, spares: int) -> str:
    """Return the flags of a job that `have` nodes are enough for; at least 1."""
    if spares and have >= nodes:
        return f"--spares {have - nodes}"
    return f"--nodes {have}" + (" --spares 0" if spares else "")


def _check_environment(job: JobSpec, cluster: ClusterSpec) -> list[Problem]:
    environment = {**cluster.env, **job.env}
    problems = [
        Problem(
            message=f"{name!r} is no name of an environment variable",
            hint="letters, digits and underscores, no digit first",
        )
        for name in (*environment, *cluster.secrets, *job.secrets)
        if not _ENV_NAME.fullmatch(name)
    ]
    problems += [
        Problem(
            message=f"the value of {name} is too long: {len(value):,} characters",
            hint=f"Linux passes {_LONGEST_VALUE:,} bytes in a variable at most: write it "
            "to a file, and pass its path",
            key=f"env.{name}",
        )
        for name, value in environment.items()
        if len(name) + len(value.encode(errors="surrogateescape")) > _LONGEST_VALUE
    ]
    problems += [
        Problem(
            message=f"{name} cannot be set: it belongs to the node script or to bash",
            key=f"env.{name}",
        )
        for name in (*environment, *cluster.secrets, *job.secrets)
        if _TAKEN.fullmatch(name)
    ]
    problems += [
        Problem(
            message=f"{name} is both a secret and a plain variable, which would be written down",
            hint=f"remove it from env: (or --env), and keep --secret {name}",
        )
        for name in (*cluster.secrets, *job.secrets)
        if name in environment
    ]
    return problems


def _check_container(job: JobSpec, cluster: ClusterSpec, workdir: str) -> list[Problem]:
    runtime = job.container or cluster.container_runtime
    if job.image is not None and runtime is None:
        return [
            Problem(
                message=f"--image {job.image} needs a container runtime",
                hint="--container docker|compose|apptainer|enroot|pyxis, or container_runtime: in "
                "the cluster's configuration",
                key="image",
            )
        ]
    if job.container is not None and job.image is None and cluster.image is None:
        message = f"--container {job.container} needs an image"
        return [Problem(message=message, hint="--image NAME", key="container")]
    problems = _check_mounts(job, cluster)
    if runtime is not None and ":" in workdir:
        message = f"no image can mount the folder {workdir}: it has a colon"
        problems.append(Problem(message=message))
    return problems + _check_runtime(runtime, cluster)


def _check_mounts(job: JobSpec, cluster: ClusterSpec) -> list[Problem]:
    if job.mounts and job.image is None and cluster.image is None:
        message = f"--mount {job.mounts[0]}: the job runs in no image"
        return [Problem(message=message, hint="--image NAME --container docker", key="mount")]
    return [
        Problem(
            message=f"--mount {mount}: no mount",
            hint=MOUNT_FORMS,
            key="mount",
        )
        for mount in job.mounts
        if not is_mount(mount)
    ]


def _check_runtime(runtime: ContainerRuntime | None, cluster: ClusterSpec) -> list[Problem]:
    if runtime is ContainerRuntime.PYXIS and cluster.kind is not ClusterKind.SLURM:
        message = f"pyxis is a plugin of Slurm, and {cluster.name} is {cluster.kind}"
        return [Problem(message=message, hint="--container docker, apptainer or enroot")]
    if runtime is ContainerRuntime.COMPOSE and cluster.kind is ClusterKind.SLURM:
        message = f"compose is for clusters without Slurm, and {cluster.name} has it"
        return [Problem(message=message, hint="--container docker, apptainer, enroot or pyxis")]
    return []


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
    if processes > sum(slots):
        raise UserError(
            f"{processes} processes do not fit into {sum(slots)} slots ({written})",
            hint="lower --processes, or raise --nodes or --gpus-per-node",
        )
    even = len(set(slots)) == 1
    if not framework.uneven_slots and not even:
        raise UserError(
            f"{framework.name} needs the same number of processes on every node, not {written}",
            hint=f"--gpus-per-node {min(slots)}, or --framework horovod, which accepts them",
        )
    if not framework.uneven_slots and processes != sum(slots[:nodes]):
        raise UserError(
            f"{framework.name} fills every slot: {processes} processes do not fill {written}",
            hint="leave --processes out, or choose --nodes and --gpus-per-node to match",
        )
    if (
        cluster.kind is ClusterKind.SLURM
        and not even
        and cluster.gpu_request is not GpuRequest.NONE
    ):
        raise UserError(
            f"Slurm gives every node of a job the same number of GPUs, not {written}",
            hint=f"--gpus-per-node {max(slots)} with --processes {sum(slots)}",
        )
