"""What is refused before planning: contradictions in a job, its cluster and its framework."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from clusterkit.config.units import MOUNT_FORMS, is_mount, parse_time_limit, time_hint
from clusterkit.core.data import read_problem
from clusterkit.core.errors import Problem, UserError
from clusterkit.core.hosts.hostlist import MAX_NAMES
from clusterkit.core.model import ClusterSpec, ContainerRuntime, GpuRequest, OnHang, RequeueOn
from clusterkit.core.notification import FORMS, FORMS_OF_HANG, parse_hang, parse_way
from clusterkit.core.text import LONE_SURROGATE
from clusterkit.launch.frameworks import Framework
from clusterkit.launch.frameworks.base import preset_text
from clusterkit.launch.options import JobSpec

problem = partial(read_problem, __file__, "refusals.tsv")
"""Return a problem of `refusals.tsv` by its id, where `{0}` is the job and `{1}` its cluster."""

_MOST_SLOTS = 9999
_MOST_HOSTS = 5
_MOST_RESTARTS = 100_000
_MOST_SECONDS = 10**7
_ON_COMPONENTS = ("env", "mpi", "ray", "torchrun")
"""Frameworks that were tested on heterogeneous jobs."""
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
        *_check_exclude(job, cluster),
        *_check_environment(job, cluster),
        *_check_container(job, cluster, workdir),
        *_check_restarts(job, cluster),
        *_check_notifications(job),
        *_check_components(job, cluster, framework),
    ]
    preset = job.deepspeed_preset
    if preset is not None and framework.name != "deepspeed":
        problems.append(problem("preset-framework", preset, framework=framework.name))
    if preset is not None:
        try:
            preset_text("deepspeed", preset)
        except UserError as error:
            problems += (replace(one, key="ds_preset") for one in error.problems)
    problems += _check_text(job, cluster, workdir)
    limit = time_limit(job, cluster)
    try:
        parse_time_limit(limit or "1")
    except ValueError as error:
        said = "--time" if limit in {job.time, cluster.time} else "sbatch.time"
        hint = time_hint(limit or "")
        problems.append(Problem(message=f"{said}: {error}", hint=hint, key="time"))
    if problems:
        raise UserError(problems=problems)


def time_limit(job: JobSpec, cluster: ClusterSpec) -> str | None:
    """Return the time limit that holds, as it was written; each beats those behind it."""
    options = (job.sbatch_options.get("time"), cluster.extra_directives.get("time"))
    return next(filter(None, (*options, job.time, cluster.time)), None)


def _check_text(job: JobSpec, cluster: ClusterSpec, workdir: str) -> Iterator[Problem]:
    """Yield what no script, plan or log of the job could hold."""
    given = (
        *(("script", job.script), ("the working folder", workdir), ("run_dir", cluster.run_dir)),
        *(("argument", arg) for arg in job.args),
        *((f"the value of {name}", value) for name, value in {**cluster.env, **job.env}.items()),
    )
    for what, value in given:
        if "\0" in value:
            yield problem("nul", what=what, value=value)
        if LONE_SURROGATE.search(value):
            yield problem("not-utf8", what=what, shown=LONE_SURROGATE.sub(_escaped, value))


def _escaped(half: re.Match[str]) -> str:
    r"""Return half of a surrogate pair as text: `\xff` where it stands for a byte of a name."""
    number = ord(half[0])
    return f"\\x{number - 0xDC00:02x}" if 0xDC80 <= number <= 0xDCFF else f"\\u{number:04x}"


def _check_sizes(job: JobSpec) -> Iterator[Problem]:
    """Yield numbers beyond any cluster, for which no plan fits into memory."""
    for key, value, most in (
        ("nodes", max(job.nodes, job.max_nodes or 0), MAX_NAMES),
        ("component", sum(one.nodes for one in job.components), MAX_NAMES),
        ("spares", job.spares, MAX_NAMES),
        ("gpus_per_node", max(job.gpus_per_node, default=0), _MOST_SLOTS),
        ("requeue", job.requeue, _MOST_RESTARTS),
        ("restarts", job.restarts, _MOST_RESTARTS),
        ("hang_after", job.hang_after or 0, _MOST_SECONDS),
    ):
        if value > most:
            flag = f"--{key.replace('_', '-')}"
            shown = value if value < 10**18 else "a huge number"
            yield problem("too-large", flag=flag, shown=shown, most=most, key=key)


def _check_nodes(job: JobSpec, framework: Framework) -> Iterator[Problem]:
    low, high = job.nodes, job.max_nodes
    if low < 1:
        yield problem("no-node", job)
    if high is not None and high < low:
        yield problem("nodes-backwards", job)
    if high is not None and not framework.elastic:
        yield problem("not-elastic", job, framework=framework.name)
    if job.processes is not None and job.processes < 1:
        yield problem("no-process", job)
    if any(count < 1 for count in job.gpus_per_node):
        yield problem("no-slot")


def _check_exclude(job: JobSpec, cluster: ClusterSpec) -> Iterator[Problem]:
    if job.exclude and cluster.kind.shares_machine:
        yield problem("exclude-one-machine", cluster)


def _check_components(
    job: JobSpec, cluster: ClusterSpec, framework: Framework
) -> Iterator[Problem]:
    if not job.components:
        return
    if framework.name not in _ON_COMPONENTS:
        yield problem("components-framework", framework=framework.name)
    if not cluster.kind.scheduled:
        yield problem("components-slurm", job, cluster)
    if len(job.components) == 1:
        yield problem("one-component", job)
    if len(job.gpus_per_node) > 1:
        yield problem("components-slots")
    for flag, number in (("spares", job.spares), ("restarts", job.restarts)):
        if number > 0:
            yield problem("components-nodes", flag=flag, number=number)
    runtime = job.container or cluster.container_runtime
    images = [one.image or job.image or cluster.image for one in job.components]
    if runtime is ContainerRuntime.PYXIS and any(images):
        yield problem("components-pyxis")
    elif any(one.image for one in job.components) and (runtime is None or None in images):
        yield problem("components-image")


def _check_hang(job: JobSpec) -> Iterator[Problem]:
    try:
        action, _ = parse_hang(job.on_hang)
    except ValueError as error:
        action = None
        yield problem("on-hang", error=error, forms=FORMS_OF_HANG)
    if action is OnHang.RESTART and job.max_nodes is not None:
        yield problem("on-hang-elastic")
    elif action is OnHang.RESTART and not (job.requeue or job.restarts):
        yield problem("on-hang-no-restart")
    if job.hang_after is not None and job.hang_after < 1:
        yield problem("hang-after", job)


def _check_restarts(job: JobSpec, cluster: ClusterSpec) -> Iterator[Problem]:
    again = job.requeue or job.restarts
    numbers = (("requeue", job.requeue), ("restarts", job.restarts), ("spares", job.spares))
    for flag, number in numbers:
        if number < 0:
            yield problem("negative", flag=flag, number=number)
    yield from _check_in_place(job, cluster)
    if job.requeue_on not in [*RequeueOn]:
        yield problem("requeue-on", job)
    elif job.requeue_on == RequeueOn.FAILURE and job.max_nodes is not None:
        yield problem("requeue-on-elastic", job)
    elif job.requeue_on == RequeueOn.FAILURE and not again:
        yield problem("requeue-on-no-restart", job)
    yield from _check_hang(job)
    if job.spares <= 0:
        return
    if cluster.kind.shares_machine:
        yield problem("spares-one-machine", job, cluster)
    elif job.max_nodes is not None:
        yield problem("spares-elastic", job)
    elif not again:
        yield problem("spares-no-restart", job)


def _check_in_place(job: JobSpec, cluster: ClusterSpec) -> Iterator[Problem]:
    if job.restarts <= 0:
        return
    if cluster.kind.shares_machine:
        yield problem("restarts-one-machine", job, cluster)
    elif job.max_nodes is not None:
        yield problem("restarts-elastic", job)
    elif cluster.plain_srun_args != cluster.srun_args:
        yield problem("restarts-resumed", job)


def _check_notifications(job: JobSpec) -> Iterator[Problem]:
    for key in ("on_end", "on_failure"):
        for text in getattr(job, key):
            try:
                parse_way(text)
            except ValueError as error:
                flag = f"--{key.replace('_', '-')}"
                yield problem("notification", flag=flag, error=error, forms=FORMS, key=key)


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
        if name in secrets and "=" in name:
            yield problem("secret-value", name=name.partition("=")[0])
        elif not _ENV_NAME.fullmatch(name):
            yield problem("variable-name", name=name)
    for name, value in environment.items():
        if len(name) + len(value.encode(errors="surrogateescape")) > _LONGEST_VALUE:
            yield problem("long-variable", name=name, length=len(value), most=_LONGEST_VALUE)
    for name in (*environment, *secrets):
        if _TAKEN.fullmatch(name):
            yield problem("taken-variable", name=name)
    for name in secrets:
        if name in environment:
            yield problem("known-secret", name=name)


def _check_container(job: JobSpec, cluster: ClusterSpec, workdir: str) -> Iterator[Problem]:
    runtime = job.container or cluster.container_runtime
    image = job.image or cluster.image or next((one.image for one in job.components), None)
    if job.image is not None and runtime is None:
        yield problem("image-runtime", job)
        return
    if job.container is not None and image is None:
        yield problem("container-image", job)
        return
    if job.mounts and image is None:
        yield problem("mount-image", job)
    else:
        for mount in job.mounts:
            if not is_mount(mount):
                yield problem("mount-form", mount=mount, forms=MOUNT_FORMS)
    if runtime is not None and ":" in workdir:
        yield problem("colon", folder=workdir)
    slurm = cluster.kind.scheduled
    if runtime is ContainerRuntime.PYXIS and not slurm:
        yield problem("pyxis", job, cluster)
    if runtime is ContainerRuntime.COMPOSE and slurm:
        yield problem("compose", job, cluster)


def check_slots(
    framework: Framework,
    cluster: ClusterSpec,
    slots: tuple[int, ...],
    job: JobSpec,
    *,
    processes: int,
) -> None:
    """Refuse ranks that do not fit the slots, or slots that the framework cannot fill.

    Raises:
        UserError: with what to ask for instead.
    """
    even = len(set(slots)) == 1
    asks = cluster.kind.scheduled and cluster.gpu_request is not GpuRequest.NONE
    if processes > sum(slots):
        wrong = "processes-slots"
    elif not framework.uneven_slots and not even:
        wrong = "components-uneven" if job.components else "uneven-slots"
    elif not framework.uneven_slots and processes != sum(slots[: job.nodes]):
        wrong = "unfilled-slots"
    elif asks and not even and not job.components:
        wrong = "uneven-gpus"
    else:
        return
    values = {"least": min(slots), "most": max(slots), "total": sum(slots)}
    written = ",".join(str(count) for count in slots)
    named = {"framework": framework.name, "processes": processes, "written": written}
    raise refused(wrong, **named, **values)


def check_slots_of_hosts(cluster: ClusterSpec, names: Sequence[str], slots: Sequence[int]) -> None:
    """Refuse more slots than a host has that the job would run on, or take as a spare.

    Raises:
        UserError: with the hosts that have too few.
    """
    wanted = zip(names, [*slots, *[max(slots)] * len(names)], strict=False)
    few = {name: has for name, n in wanted if (has := cluster.slots_of(name) or n) < n}
    if few:
        least = min(few.values())
        told = ", ".join(f"{name} has {count}" for name, count in [*few.items()][:_MOST_HOSTS])
        raise refused("slots-of-hosts", None, cluster, most=max(slots), told=told, least=least)


def refused(name: str, *values: object, **more: object) -> UserError:
    """Return the error that one problem makes."""
    return UserError(problems=[problem(name, *values, **more)])
