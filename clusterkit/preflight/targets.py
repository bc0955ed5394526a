"""Which nodes to ask, how to reach them, and what the checks may know of the job."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from clusterkit.config.platforms import fabric_of, instance_of, net_plugin_of
from clusterkit.core.commands import MISSING, run_command
from clusterkit.core.errors import UserError, choices_hint
from clusterkit.core.hosts import hostlist
from clusterkit.core.model import (
    NO_PLATFORM,
    ClusterKind,
    ClusterSpec,
    ContainerRuntime,
    GpuRequest,
    Host,
    LaunchPlan,
)
from clusterkit.core.version import __version__
from clusterkit.images.packages import framework_called, module_of
from clusterkit.launch.frameworks.base import mpirun_names
from clusterkit.launch.rank_layout.fabric import parse_fabric
from clusterkit.launch.sbatch_options import gpu_request
from clusterkit.launch.scripts.kinds import gpu_use
from clusterkit.preflight.bundle import Bundle
from clusterkit.preflight.checks.base import Check, Tier
from clusterkit.preflight.collect import asks_for_peers, collect
from clusterkit.preflight.hosts import hosts_of
from clusterkit.preflight.probes import sinfo
from clusterkit.preflight.probes.host.fabric_files import files_of
from clusterkit.preflight.probes.host.placement import BLOCK
from clusterkit.preflight.request import PreflightOptions, refuse_nonsense
from clusterkit.transport import slurm_nodes
from clusterkit.transport.base import WAYS, Reply, Transport, by_shell, by_srun, by_ssh
from clusterkit.transport.probe import Output, PreflightJob

_ALLOCATED_WITHIN_S = 10
_DOCKER_WITHIN_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Nodes that can be asked."""

    job: PreflightJob
    transport: Transport
    slurm: bool
    """Whether Slurm has something to say of these nodes, too."""
    most_nodes: int | None = None
    """So many may be held at once, where they are asked through an allocation."""


def aim(
    options: PreflightOptions, cluster: ClusterSpec, *, step_nodes: int | None = None
) -> Target:
    """Return the nodes of `cluster` that `options` mean.

    No more than `step_nodes` may be asked at once in an allocation of their own.

    Raises:
        UserError: no such hosts, contradictions, fewer nodes than options.
        RemoteError: Slurm does not say which nodes there are.
    """
    refuse_nonsense(options, cluster)
    via = via_of(options, cluster)
    hosts = hosts_of(options, cluster, via)
    kind = _kind(cluster, via)
    # Not resolved: a link may lead elsewhere on the nodes.
    paths = tuple(os.path.abspath(Path(path).expanduser()) for path in options.paths)  # noqa: PTH100
    image = options.image or cluster.image
    env = {**cluster.env, **{name: str(value) for name, value in options.env.items()}}
    mounts = cluster.mounts if cluster.container_runtime is not None else None
    job = dataclasses.replace(
        _job_of(cluster, tuple(host.name for host in hosts), image, cluster.container_runtime),
        kind=kind.value,
        framework=options.framework,
        python_here=_python_here(cluster, options.framework),
        gpus_per_node=options.gpus_per_node or cluster.gpus_per_node,
        slots={host.name: host.slots for host in hosts if host.slots is not None},
        uses_gpus=_uses_gpus(cluster, gpus_requested=options.gpus_per_node is not None),
        env=env,
        files=files_of(cluster.setup, env, mounts),
        mounts=mounts or (),
        paths=_shared(cluster, paths, via),
        image_digest=_digest_here(_engine(cluster.container_runtime), image, via),
        peer_ssh=asks_for_peers(options.select),
    )
    return Target(
        job=job,
        transport=_transport(options, cluster, hosts, job.gpus_per_node, step_nodes),
        slurm=kind.scheduled,
        most_nodes=step_nodes if via == "srun" else None,
    )


def aim_plan(plan: LaunchPlan) -> Target:
    """Return the nodes that a job may get, and what the checks may know of it.

    On Slurm those are the nodes of its partition, less what it excludes and what Slurm gives to
    nobody now: which of them it gets, nobody knows before. At no time are more nodes held to be
    asked than the job wants, and none is woken.

    Raises:
        UserError, RemoteError: as `aim`.
    """
    cluster = plan.cluster
    partition = plan.directives.get("partition") or cluster.partition
    cluster = dataclasses.replace(
        cluster,
        partition=partition,
        gpus_per_node=max(plan.slots) if cluster.gpus_per_node else None,
    )
    most = plan.max_nodes or plan.nodes + plan.spares
    target = aim(PreflightOptions(), cluster, step_nodes=most)
    excluded = frozenset(hostlist.expand(plan.directives.get("exclude") or ""))
    hosts = plan.node_names or tuple(h for h in target.job.hosts if h not in excluded)
    if target.slurm and not plan.node_names:
        without = slurm_nodes.out_of_service(hosts) if hosts else {}
        left = tuple(host for host in hosts if host not in without)
        # All, where those in service are too few: to be told why.
        hosts = left if len(left) >= plan.nodes else hosts
    paths = target.job.paths
    job = job_of_plan(plan, hosts)
    job = dataclasses.replace(
        job,
        paths=(*paths, plan.workdir) if paths else (),
        image_digest=_digest_here(job.container_runtime, job.image, cluster.kind.ways[0]),
    )
    return dataclasses.replace(target, job=job)


def job_of_plan(plan: LaunchPlan, hosts: tuple[str, ...]) -> PreflightJob:
    """Return what the checks may know of a planned job on `hosts`."""
    container, runtime = plan.container, plan.container.runtime if plan.container else None
    return dataclasses.replace(
        _job_of(plan.cluster, hosts, container.image if container else None, runtime),
        nodes=plan.nodes,
        kept_together=not {"switches", "segment"}.isdisjoint(plan.directives),
        framework=plan.framework,
        python_here=_python_here(plan.cluster, plan.framework),
        mpirun=mpirun_names(plan.command),
        # Components may differ in it.
        gpus_per_node=None if plan.components else max(plan.slots),
        gpu_use=gpu_use(plan),
        env=plan.env,
        files=files_of(plan.cluster.setup, plan.env, container.mounts if container else None),
        mounts=container.mounts if container else (),
    )


def _python_here(cluster: ClusterSpec, framework: str | None) -> str | None:
    """Return this interpreter where a job of the framework could run under it on the nodes.

    They see it where it lies on the file system of the run folders, which they have to share.
    """
    found = framework_called(framework)
    package = found.package_name if found is not None else None
    if package is None or not cluster.shared_filesystem or cluster.kind.shares_machine:
        return None
    try:
        apart = _device(Path(sys.prefix)) != _device(Path(cluster.run_dir).expanduser().absolute())
    except OSError:
        return None
    known = importlib.util.find_spec(module_of(package)) is not None
    return sys.executable if known and not apart and sys.executable != cluster.job_python else None


def _device(path: Path) -> int:
    """Return the file system of a folder, or of the one in which it would be made."""
    return next(one for one in (path, *path.parents) if one.exists()).stat().st_dev


def _job_of(
    cluster: ClusterSpec,
    hosts: tuple[str, ...],
    image: str | None,
    runtime: ContainerRuntime | None,
) -> PreflightJob:
    """Return what a cluster tells of any job on it."""
    instance = instance_of(cluster.platform, cluster.instance_type)
    return PreflightJob(
        hosts=hosts,
        kind=cluster.kind.value,
        python=cluster.job_python,
        python_is_set_up=bool(cluster.modules or cluster.setup),
        uses_gpus=_uses_gpus(cluster),
        port=cluster.port_range[0],
        network_interface=cluster.network_interface,
        container_runtime=_engine(runtime),
        image=image,
        rdma_devices=instance.devices,
        rdma_gbps=instance.gbit if instance.devices else None,
        instance_gpus=instance.gpus,
        net_plugin=net_plugin_of(cluster),
        has_fabric=bool(fabric_of(instance)),
        asks_cloud=cluster.platform != NO_PLATFORM,
        allowed_names=cluster.allowed_env,
        asked_by=__version__,
    )


def gather(
    target: Target,
    checks: Sequence[Check],
    *,
    on_reply: Callable[[Reply], None] = lambda _: None,
) -> Bundle:
    """Ask all nodes what `checks` need: one round trip, Slurm once, then traffic if any is chosen.

    Raises:
        RemoteError: the transport itself is missing.
    """
    bundle = collect(target.transport, checks, target.job, on_reply=on_reply)
    if target.slurm:
        bundle = with_slurm(bundle)
    if any(check.tier is Tier.NETWORK for check in checks):
        from clusterkit.preflight.network import with_network  # noqa: PLC0415 - seldom asked for

        bundle = with_network(
            bundle, target.transport, checks, most=target.most_nodes, on_reply=lambda _: None
        )
    return bundle


def via_of(options: PreflightOptions, cluster: ClusterSpec) -> str:
    """Return how nodes are asked: as wanted, else as fits the cluster.

    Raises:
        UserError: there is no such way.
    """
    if options.via is None:
        named = options.hosts or options.hostfile
        return "ssh" if named and cluster.kind.shares_machine else cluster.kind.ways[0]
    if options.via not in WAYS:
        raise UserError(f"--via {options.via}: unknown", hint=choices_hint(options.via, WAYS))
    return options.via


def _kind(cluster: ClusterSpec, via: str) -> ClusterKind:
    """Return the kind of cluster that the nodes are of; other hosts are not this machine."""
    if via == "local":
        return ClusterKind.LOCAL
    if cluster.kind.shares_machine or via == "srun":
        return ClusterKind.SLURM if via == "srun" else ClusterKind.SSH
    return cluster.kind


def _transport(
    options: PreflightOptions,
    cluster: ClusterSpec,
    hosts: Sequence[Host],
    gpus: int | None,
    step_nodes: int | None,
) -> Transport:
    via, timeout_s = via_of(options, cluster), options.timeout
    if via == "ssh":
        known = dataclasses.replace(cluster, hosts=tuple(hosts))
        ssh = by_ssh(known, connect_timeout_s=timeout_s)
        return slurm_nodes.AwakeTransport(ssh) if cluster.kind.scheduled else ssh
    if via == "srun":
        request = gpu_request(cluster, gpus) if gpus else {}
        return by_srun(
            cluster,
            immediate_s=max(1, round(timeout_s or _ALLOCATED_WITHIN_S)),
            # GPUs as the job will ask: where Slurm fences devices, others see none.
            extra=(
                *cluster.plain_srun_args,
                *(f"--{name}={value}" for name, value in request.items()),
            ),
            most_nodes=None if "SLURM_JOB_ID" in os.environ else step_nodes,
        )
    return by_shell()


def _uses_gpus(cluster: ClusterSpec, *, gpus_requested: bool = False) -> bool | None:
    """Return whether the job uses GPUs; slots of a cluster may be processes without one."""
    if cluster.kind.scheduled and cluster.gpu_request is GpuRequest.NONE:
        return False
    return True if gpus_requested else None


def _engine(runtime: ContainerRuntime | None) -> str | None:
    """Return what has to be on the nodes: Compose starts containers of Docker."""
    return "docker" if runtime is ContainerRuntime.COMPOSE else runtime.value if runtime else None


def _digest_here(runtime: str | None, image: str | None, via: str) -> str | None:
    """Return the digest of a job's image in this machine's Docker; None where that is not known."""
    if runtime != ContainerRuntime.DOCKER or not image or via == "local":
        return None
    argv = ("docker", "image", "inspect", "--format", "{{.Id}}", image)
    answer = run_command(argv, timeout_s=_DOCKER_WITHIN_S)
    return answer.output.strip() or None if answer.code == 0 else None


def _shared(cluster: ClusterSpec, paths: tuple[str, ...], via: str) -> tuple[str, ...]:
    """Return the folders that all nodes should share: that of the runs, and what was named."""
    if cluster.kind.scheduled or (
        cluster.kind.lists_hosts and cluster.shared_filesystem and via != "local"
    ):
        run_dir = Path(cluster.run_dir).expanduser()
        there = next(path for path in (run_dir, *run_dir.parents) if path.is_dir())
        return tuple(dict.fromkeys((str(there), *paths)))
    return paths


def with_slurm(bundle: Bundle) -> Bundle:
    """Add what Slurm says of the nodes, asked once."""
    hosts = bundle.job.hosts
    answer = run_command(slurm_nodes.query(hosts))
    no_scontrol = answer.code == MISSING
    if no_scontrol:
        answer = run_command(sinfo.query(hosts))
    output = Output(stdout=answer.output, stderr=answer.errors, exit_code=answer.code)
    if no_scontrol:
        output = sinfo.as_records(output)
    bundle = bundle.with_outputs(slurm_nodes.PROBE.name, slurm_nodes.answers(hosts, output))
    known = slurm_nodes.split_records(answer.output)
    return bundle.with_outputs(BLOCK.name, _blocks()) if known else bundle


def _blocks() -> Mapping[str, Output]:
    """Return what `slurm-block` would print on each node; nothing without blocks in Slurm."""
    answer = run_command(("scontrol", "show", "topology"))
    if answer.code != 0 or "BlockName=" not in answer.output:
        return {}
    with suppress(UserError):  # names that no Slurm of ours writes
        switch_of = parse_fabric(answer.output).switch_of
        return {node: Output(stdout=f"block={at}\nend\n") for node, at in switch_of.items()}
    return {}
