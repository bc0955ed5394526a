"""Decide everything about a job: `make_plan(job, cluster) -> LaunchPlan`, pure."""

from __future__ import annotations

import dataclasses
import re
from pathlib import PurePath

from clusterkit.config.units import parse_time_limit
from clusterkit.directives import sbatch_directives
from clusterkit.errors import Problem, UserError
from clusterkit.frameworks import Framework, LaunchInputs, load_framework
from clusterkit.model import (
    ClusterKind,
    ClusterSpec,
    ContainerPlan,
    ContainerRuntime,
    GpuRequest,
    HorovodController,
    JobSpec,
    LaunchPlan,
)
from clusterkit.presets import check_preset

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TAKEN = re.compile(r"(?i:CK)_.*|BASHOPTS|BASH_VERSINFO|EUID|PPID|SHELLOPTS|UID")
"""Variables of the node script, and those that bash lets nobody set."""


def make_plan(job: JobSpec, cluster: ClusterSpec, *, workdir: str) -> LaunchPlan:
    """Return the plan of `job` on `cluster`, run from the folder `workdir`.

    Raises:
        UserError: what was asked for contradicts itself, the cluster, or the framework; all
            problems at once where they do not depend on each other.
    """
    framework = load_framework(job.framework)
    _check(job, cluster, framework, workdir)
    if cluster.kind is ClusterKind.LOCAL and cluster.network_interface is None:
        cluster = dataclasses.replace(cluster, network_interface="lo")
    most = job.max_nodes or job.nodes
    node_names = _node_names(job, cluster, most)
    slots = _slots(job, cluster, most)
    processes = job.processes if job.processes is not None else sum(slots[: job.nodes])
    _check_slots(framework, cluster, slots, nodes=job.nodes, processes=processes)
    inputs = _inputs(job, cluster, slots, processes)
    command = framework.command(inputs)
    container = _container(job, cluster)
    if command.once and container is not None:
        raise UserError(
            f"{framework.name} over MPI starts its ranks by srun, outside any image",
            hint="start the container in the script itself, or set horovod_controller: gloo",
        )
    directives = sbatch_directives(
        job, cluster, name=_job_name(job), once=command.once, slots=max(slots)
    )
    time = directives.get("time") or job.time or cluster.time
    return LaunchPlan(
        name=_job_name(job),
        framework=framework.name,
        cluster=cluster,
        nodes=job.nodes,
        max_nodes=job.max_nodes,
        slots=slots,
        processes=processes,
        node_names=node_names,
        workdir=workdir,
        script=job.script,
        args=job.args,
        command=command,
        one_host_command=framework.command(_on_one_host(inputs)),
        env={**cluster.env, **job.env},
        secrets=tuple(dict.fromkeys((*cluster.secrets, *job.secrets))),
        directives=directives,
        time_limit_s=parse_time_limit(time) if time else None,
        container=container,
        requeue=job.requeue,
        deepspeed_preset=job.deepspeed_preset,
    )


def _check(job: JobSpec, cluster: ClusterSpec, framework: Framework, workdir: str) -> None:
    problems = [
        *_check_nodes(job, framework),
        *_check_environment(job, cluster),
        *_check_container(job, cluster, workdir),
    ]
    if job.requeue < 0:
        problems.append(Problem(message=f"--requeue {job.requeue}: must be 0 or more"))
    if job.deepspeed_preset is not None:
        problems += check_preset(job.deepspeed_preset, framework.name)
    for what, value in (("script", job.script), *(("argument", arg) for arg in job.args)):
        if "\0" in value:
            problems.append(Problem(message=f"{what} {value!r} holds a NUL character"))
    time = job.time or cluster.time
    try:
        parse_time_limit(time or "1")
    except ValueError as error:
        problems.append(Problem(message=f"--time: {error}"))
    if problems:
        raise UserError(problems=problems)


def _check_nodes(job: JobSpec, framework: Framework) -> list[Problem]:
    problems = []
    if job.nodes < 1:
        problems.append(
            Problem(message=f"--nodes {job.nodes}: a job needs at least 1 node", hint="--nodes 1")
        )
    if job.max_nodes is not None and job.max_nodes < job.nodes:
        problems.append(
            Problem(
                message=f"--nodes {job.nodes}:{job.max_nodes}: the maximum is below the minimum",
                hint=f"--nodes {job.max_nodes}:{job.nodes}",
            )
        )
    if job.max_nodes is not None and not framework.elastic:
        problems.append(
            Problem(
                message=f"--nodes {job.nodes}:{job.max_nodes}: {framework.name} cannot change its "
                "number of nodes",
                hint=f"--nodes {job.max_nodes}, or --framework torchrun",
            )
        )
    if job.processes is not None and job.processes < 1:
        problems.append(Problem(message=f"--processes {job.processes}: must be at least 1"))
    if any(count < 1 for count in job.gpus_per_node):
        problems.append(
            Problem(
                message="--gpus-per-node: every node needs at least 1 slot",
                hint="for a CPU-only job a slot is one process: --gpus-per-node 1",
            )
        )
    return problems


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
        Problem(message=f"the value of {name} holds a NUL character")
        for name, value in environment.items()
        if "\0" in value
    ]
    problems += [
        Problem(message=f"{name} cannot be set: it belongs to the node script or to bash")
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
                hint="--container docker|apptainer|enroot|pyxis, or container_runtime: in the "
                "cluster's configuration",
            )
        ]
    if job.container is not None and job.image is None and cluster.image is None:
        return [Problem(message=f"--container {job.container} needs an image", hint="--image NAME")]
    if runtime is not None and ":" in workdir:
        return [Problem(message=f"no image can mount the folder {workdir}: it has a colon")]
    if runtime is ContainerRuntime.PYXIS and cluster.kind is not ClusterKind.SLURM:
        return [
            Problem(
                message=f"pyxis is a plugin of Slurm, and {cluster.name} is {cluster.kind}",
                hint="--container docker, apptainer or enroot",
            )
        ]
    return []


def _node_names(job: JobSpec, cluster: ClusterSpec, nodes: int) -> tuple[str, ...]:
    if cluster.kind is not ClusterKind.SSH:
        return ()
    names = tuple(host.name for host in cluster.hosts if host.name not in job.exclude)
    if len(names) < nodes:
        raise UserError(
            f"{nodes} nodes asked for, but cluster {cluster.name} has {len(names)}"
            + (f" without {','.join(job.exclude)}" if job.exclude else ""),
            hint=f"--nodes {len(names)}" if names else "list its hosts under hosts:",
        )
    return names[:nodes]


def _slots(job: JobSpec, cluster: ClusterSpec, nodes: int) -> tuple[int, ...]:
    if len(job.gpus_per_node) > 1:
        if len(job.gpus_per_node) != nodes:
            raise UserError(
                f"--gpus-per-node gives {len(job.gpus_per_node)} nodes their slots, "
                f"but the job has {nodes}",
                hint="give one number for all nodes, or one a node",
            )
        return job.gpus_per_node
    if job.gpus_per_node:
        return job.gpus_per_node * nodes
    default = cluster.gpus_per_node or 1
    if cluster.kind is ClusterKind.SSH:
        usable = [host for host in cluster.hosts if host.name not in job.exclude]
        return tuple(host.slots or default for host in usable[:nodes])
    return (default,) * nodes


def _check_slots(
    framework: Framework,
    cluster: ClusterSpec,
    slots: tuple[int, ...],
    *,
    nodes: int,
    processes: int,
) -> None:
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


def _inputs(
    job: JobSpec, cluster: ClusterSpec, slots: tuple[int, ...], processes: int
) -> LaunchInputs:
    return LaunchInputs(
        script=job.script,
        args=job.args,
        nodes=job.nodes,
        max_nodes=job.max_nodes,
        slots=slots,
        processes=processes,
        python=cluster.python or "python3",
        options=job.launcher_options,
        srun_args=cluster.srun_args,
        cpus_per_rank=cluster.cpus_per_node and max(1, cluster.cpus_per_node // max(slots)),
        horovod_controller=cluster.horovod_controller,
        under_slurm=cluster.kind is ClusterKind.SLURM,
        deepspeed_preset=job.deepspeed_preset,
    )


def _on_one_host(inputs: LaunchInputs) -> LaunchInputs:
    return dataclasses.replace(
        inputs,
        nodes=1,
        max_nodes=None,
        slots=inputs.slots[:1],
        processes=inputs.slots[0],
        python="python3",
        horovod_controller=HorovodController.GLOO,
    )


def _job_name(job: JobSpec) -> str:
    name = job.sbatch_options.get("job-name") or job.name or PurePath(job.script).stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "job"


def _container(job: JobSpec, cluster: ClusterSpec) -> ContainerPlan | None:
    runtime = job.container or cluster.container_runtime
    image = job.image or cluster.image
    if runtime is None or image is None:
        return None
    return ContainerPlan(
        runtime=runtime,
        image=image,
        mounts=cluster.mounts,
        shm_size=cluster.shm_size,
    )
