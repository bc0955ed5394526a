"""Decide everything about a job: `make_plan(job, cluster) -> LaunchPlan`, pure."""

from __future__ import annotations

import dataclasses
import os.path
import re
from pathlib import PurePath

from clusterkit.config.units import parse_time_limit
from clusterkit.core.errors import UserError, did_you_mean
from clusterkit.core.hosts import hostlist
from clusterkit.core.model import (
    HANG_AFTER_S,
    ClusterSpec,
    ComponentPlan,
    ContainerPlan,
    HorovodController,
    LaunchPlan,
    OnHang,
    RequeueOn,
    SyncPlan,
)
from clusterkit.core.notification import parse_hang
from clusterkit.launch.frameworks import LaunchInputs, load_framework
from clusterkit.launch.options import JobSpec
from clusterkit.launch.sbatch_options import sbatch_directives
from clusterkit.launch.validate import (
    check_request,
    check_slots,
    check_slots_of_hosts,
    fewer_nodes,
    nodes_in_words,
    problem,
    refused,
    time_limit,
)


def make_plan(job: JobSpec, cluster: ClusterSpec, *, workdir: str) -> LaunchPlan:
    """Return the plan of `job` on `cluster`, run from the folder `workdir`.

    Raises:
        UserError: what was asked for contradicts itself, the cluster, or the framework; all
            problems at once where they do not depend on each other.
    """
    framework = load_framework(job.framework)
    excluded = tuple(dict.fromkeys((*cluster.exclude, *job.exclude)))
    job = dataclasses.replace(job, exclude=excluded)
    check_request(job, cluster, framework, workdir)
    parts = _parts(job, cluster)
    if parts:
        job = dataclasses.replace(
            job,
            nodes=sum(part.nodes for part, _ in parts),
            gpus_per_node=tuple(n for part, of in parts for n in _slots(part, of, part.nodes)),
            image=parts[0][0].image,
        )
    job, workdir, sync = _place_synced(job, cluster, workdir)
    if cluster.kind.shares_machine and cluster.network_interface is None:
        cluster = dataclasses.replace(cluster, network_interface="lo")
    most = job.max_nodes or job.nodes
    names = _node_names(job, cluster, most)
    node_names = names[:most]
    slots = _slots(job, cluster, most)
    processes = job.processes if job.processes is not None else sum(slots[: job.nodes])
    check_slots(framework, cluster, slots, job, processes=processes)
    check_slots_of_hosts(cluster, names, slots)
    container = _container(job, cluster)
    inputs = dataclasses.replace(
        _inputs(job, cluster, in_image=container is not None),
        slots=slots,
        node_names=node_names,
        processes=processes,
    )
    command = framework.command(inputs)
    if command.slot_filter is not None:
        processes = command.slot_filter.processes
    if command.processes is not None:
        processes = command.processes
    if command.once and (container is not None or job.spares or job.restarts):
        wrong = "spares-once" if job.spares else "restarts-once"
        wrong = "container-once" if container is not None else wrong
        raise refused(wrong, job, framework=framework.name)
    if parts and (command.once or command.slot_filter):
        raise refused("components-launcher", framework=framework.name)
    directives = sbatch_directives(
        job, cluster, name=_job_name(job), single_launcher=command.once, slots=max(slots)
    )
    components = _components(job, parts)
    time = time_limit(job, cluster)
    on_hang, tell = parse_hang(job.on_hang)
    cluster_on_hang, cluster_tell = parse_hang(cluster.on_hang)
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
        script_kind=job.script_kind,
        args=job.args,
        command=command,
        one_host_command=framework.command(_on_one_host(inputs)),
        env={**cluster.env, **job.env},
        secrets=tuple(dict.fromkeys((*cluster.secrets, *job.secrets))),
        directives=components[0].directives if components else directives,
        components=components,
        time_limit_s=parse_time_limit(time) if time else None,
        container=container,
        requeue=job.requeue,
        restarts=job.restarts,
        requeue_on=RequeueOn(job.requeue_on),
        on_hang=on_hang or cluster_on_hang or OnHang.REPORT,
        hang_after_s=job.hang_after or cluster.hang_after or HANG_AFTER_S,
        spares=job.spares,
        spare_names=names[most:],
        deepspeed_preset=job.deepspeed_preset,
        sync=sync,
        on_end=job.on_end or cluster.on_end,
        on_failure=job.on_failure or cluster.on_failure,
        on_hang_tell=tell or cluster_tell,
    )


def _parts(job: JobSpec, cluster: ClusterSpec) -> tuple[tuple[JobSpec, ClusterSpec], ...]:
    """Return for each component a job and a cluster of its own nodes."""
    return tuple(
        (
            dataclasses.replace(
                job,
                components=(),
                nodes=one.nodes,
                gpus_per_node=(one.gpus_per_node,) if one.gpus_per_node else job.gpus_per_node,
                image=one.image or job.image,
                sbatch_options={**job.sbatch_options, **one.sbatch_options},
            ),
            dataclasses.replace(cluster, **one.cluster),
        )
        for one in job.components
    )


def _components(
    job: JobSpec, parts: tuple[tuple[JobSpec, ClusterSpec], ...]
) -> tuple[ComponentPlan, ...]:
    """Return what is decided of each component."""
    name, planned = _job_name(job), []
    for part, of in parts:
        slots = _slots(part, of, 1)[0]
        directives = sbatch_directives(part, of, name=name, single_launcher=False, slots=slots)
        container = _container(part, of)
        planned.append(
            ComponentPlan(
                nodes=part.nodes,
                slots=slots,
                cluster=of,
                directives=directives,
                image=container.image if container else None,
            )
        )
    return tuple(planned)


def _node_names(job: JobSpec, cluster: ClusterSpec, nodes: int) -> tuple[str, ...]:
    if not cluster.kind.lists_hosts:
        return ()
    known = tuple(host.name for host in cluster.hosts)
    strangers = [name for name in job.exclude if name not in known]
    if strangers and known:
        hint = did_you_mean(strangers[0], known) or f"its hosts: {hostlist.fold_set(known)}"
        raise refused("unknown-host", job, cluster, host=strangers[0], known=hint)
    names = tuple(name for name in known if name not in job.exclude)
    have = len(names)
    if have < nodes + job.spares:
        requested = nodes_in_words(nodes, job.spares)
        without = f" without {hostlist.fold_set(job.exclude)}" if job.exclude else ""
        values = {"asked": requested, "have": have, "without": without, "fewer": _fewer(job, have)}
        raise refused("few-hosts", job, cluster, **values)
    return names[: nodes + job.spares]


def _fewer(job: JobSpec, have: int) -> str:
    if not have:
        return "exclude fewer" if job.exclude else "list its hosts under hosts:"
    if job.max_nodes is not None and job.nodes < have:
        return f"--nodes {job.nodes}:{have}"
    return fewer_nodes(have, job.nodes, job.spares)


def _slots(job: JobSpec, cluster: ClusterSpec, nodes: int) -> tuple[int, ...]:
    if len(job.gpus_per_node) > 1:
        if len(job.gpus_per_node) != nodes:
            given = len(job.gpus_per_node)
            raise refused("slots-of-nodes", given=given, nodes=nodes)
        return job.gpus_per_node
    if job.gpus_per_node:
        return job.gpus_per_node * nodes
    default = cluster.gpus_per_node or 1
    if cluster.kind.lists_hosts:
        usable = [host for host in cluster.hosts if host.name not in job.exclude]
        return tuple(host.slots or default for host in usable[:nodes])
    return (default,) * nodes


def _inputs(job: JobSpec, cluster: ClusterSpec, *, in_image: bool) -> LaunchInputs:
    return LaunchInputs(
        script=job.script,
        script_kind=job.script_kind,
        args=job.args,
        nodes=job.nodes,
        max_nodes=job.max_nodes,
        # That of the site is not in the image.
        python="python3" if in_image else cluster.python or "python3",
        options=job.launcher_options,
        srun_args=cluster.srun_args,
        horovod_controller=cluster.horovod_controller,
        under_slurm=cluster.kind.scheduled,
        deepspeed_preset=job.deepspeed_preset,
    )


def _on_one_host(inputs: LaunchInputs) -> LaunchInputs:
    return dataclasses.replace(
        inputs,
        nodes=1,
        max_nodes=None,
        node_names=(),
        one_host=True,
        slots=inputs.slots[:1],
        processes=inputs.slots[0],
        python="python3",
        horovod_controller=HorovodController.GLOO,
    )


def _job_name(job: JobSpec) -> str:
    name = job.sbatch_options.get("job-name") or job.name or job.name_of_script
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "job"


def _container(job: JobSpec, cluster: ClusterSpec) -> ContainerPlan | None:
    runtime = job.container or cluster.container_runtime
    image = job.image or cluster.image
    if runtime is None or image is None:
        return None
    return ContainerPlan(
        runtime=runtime,
        image=image,
        mounts=(*cluster.mounts, *job.mounts),
        shm_size=cluster.shm_size,
    )


def _place_synced(
    job: JobSpec, cluster: ClusterSpec, workdir: str
) -> tuple[JobSpec, str, SyncPlan | None]:
    """Return the job with its script as the copy has it, its working directory, and the copy.

    A job that is submitted from somewhere in the folder starts there; from elsewhere, it starts at
    the top of the folder.

    Raises:
        UserError: the cluster needs no copy, or the script is not in the folder.
    """
    if job.sync is None:
        return job, workdir, None
    _check_sync(job, cluster)
    folder = os.path.normpath(job.sync)
    here = workdir if PurePath(workdir).is_relative_to(folder) else folder
    inside = os.path.relpath(here, folder)
    inside = "" if inside == "." else inside
    plan = SyncPlan(folder=folder, workdir=inside, limit_mib=job.sync_limit_mib)
    if not job.script_kind.is_file:
        return job, here, plan
    script = os.path.normpath(os.path.join(workdir, job.script))  # noqa: PTH118 - pure, `..` as well
    if not PurePath(script).is_relative_to(folder):
        raise refused("script-elsewhere", script=script, folder=folder)
    return dataclasses.replace(job, script=os.path.relpath(script, here)), here, plan


def _check_sync(job: JobSpec, cluster: ClusterSpec) -> None:
    problems = []
    if not cluster.kind.lists_hosts or cluster.shared_filesystem:
        otherwise = ", or set `shared_filesystem: false`" if cluster.kind.lists_hosts else ""
        problems.append(problem("sync-shared", job, cluster, otherwise=otherwise))
    if job.container or (job.image and cluster.container_runtime):
        problems.append(problem("sync-image"))
    if job.sync_limit_mib < 1:
        problems.append(problem("sync-limit", job))
    if problems:
        raise UserError(problems=problems)
