"""Plan -> files, pure: the same plan gives the same bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from clusterkit import __version__, hostfile
from clusterkit.containers import container_words, pyxis_arguments
from clusterkit.frameworks import load_framework
from clusterkit.model import GpuRequest, Host, LaunchPlan, RenderedFile, Word
from clusterkit.presets import preset_text
from clusterkit.templating import render_template, template_path

KINDS = ("sbatch", "node", "hostfile", "compose", "config")
PORT_STRIDE = 10
"""Ports that belong to one job; the next job id gets the next ten."""


def render(plan: LaunchPlan, *, only: Iterable[str] = KINDS) -> tuple[RenderedFile, ...]:
    """Return the files of `plan`; the kinds that it has no file for are left out.

    Raises:
        UserError: a shadowing template is wrong (with its line).
    """
    makers = {
        "sbatch": _sbatch,
        "node": _node,
        "hostfile": _hostfile,
        "compose": _compose,
        "config": _config,
    }
    rendered = (makers[kind](plan) for kind in KINDS if kind in set(only))
    return tuple(file for file in rendered if file is not None)


def _node(plan: LaunchPlan) -> RenderedFile:
    gpus = plan.cluster.gpu_request is not GpuRequest.NONE
    prefix = container_words(
        plan.container,
        workdir=plan.workdir,
        environment=(*plan.env, *plan.secrets),
        gpus=gpus,
    )
    text = _render(
        "node/node.sh.j2",
        plan,
        argv=(*prefix, *plan.command.argv),
        env=_environment(plan),
        default_nodes=" ".join(plan.node_names) or "localhost",
        default_slots=_slots(plan),
        default_port=str(plan.cluster.port_range[0]),
    )
    return RenderedFile(name="node.sh", text=text, executable=True)


def _sbatch(plan: LaunchPlan) -> RenderedFile:
    low, high = plan.cluster.port_range
    text = _render(
        "sbatch/job.sbatch.j2",
        plan,
        directives=tuple(plan.directives.items()),
        summary=summary(plan),
        default_slots=_slots(plan),
        port_low=str(low),
        port_places=str((high - low + 1) // PORT_STRIDE),
        port_range=f"{low}-{high}",
        requeue=str(plan.requeue),
        srun_args=(
            *plan.cluster.srun_args,
            *pyxis_arguments(plan.container, workdir=plan.workdir),
        ),
        node_script=_node(plan).text.rstrip("\n"),
    )
    return RenderedFile(name="job.sbatch", text=text, executable=True)


def _hostfile(plan: LaunchPlan) -> RenderedFile | None:
    if not plan.node_names:
        return None  # Slurm names the nodes; node.sh writes the hostfile there
    hosts = tuple(
        Host(name=name, slots=slots)
        for name, slots in zip(plan.node_names, plan.slots, strict=False)
    )
    # Of all formats the one that DeepSpeed, Horovod and Open MPI read alike.
    return RenderedFile(name="hostfile", text=hostfile.write(hosts, hostfile.Format.DEEPSPEED))


def _compose(plan: LaunchPlan) -> RenderedFile:
    container = plan.container
    default_image = f"clusterkit/{load_framework(plan.framework).image}:latest"
    text = _render(
        "compose/compose.yaml.j2",
        plan,
        project=re.sub(r"[^a-z0-9_-]+", "-", plan.name.lower()).strip("-_") or "train",
        summary=f"{plan.framework}, {plan.slots[0]} processes",
        image=container.image if container else plan.cluster.image or default_image,
        slots=str(plan.slots[0]),
        nccl_env=[pair for pair in plan.env.items() if pair[0].startswith("NCCL_")],
        workdir_mount=f"{plan.workdir}:{plan.workdir}",
        mounts=container.mounts if container else plan.cluster.mounts,
        shm_size=container.shm_size if container else plan.cluster.shm_size,
        gpus=None if plan.cluster.gpu_request is GpuRequest.NONE else "all",
    )
    return RenderedFile(name="compose.yaml", text=text)


def _config(plan: LaunchPlan) -> RenderedFile | None:
    if plan.deepspeed_preset is None:
        return None
    return RenderedFile(name="ds_config.json", text=preset_text(plan.deepspeed_preset))


def summary(plan: LaunchPlan) -> str:
    """Return `torchrun on 3 nodes x 2 slots`, as the header of rendered files says it."""
    nodes = f"{plan.nodes}-{plan.max_nodes}" if plan.max_nodes else str(plan.nodes)
    word = "node" if nodes == "1" else "nodes"
    even = len(set(plan.slots)) == 1
    slots = f"x {plan.slots[0]} slots" if even else f"with {_slots(plan)} slots"
    return f"{plan.framework} on {nodes} {word} {slots}, {plan.processes} processes"


def _environment(plan: LaunchPlan) -> list[tuple[str, Word]]:
    interface: dict[str, Word] = {}
    if plan.cluster.network_interface:
        names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
        interface = dict.fromkeys(names, plan.cluster.network_interface)
    return list({**interface, **plan.command.env, **plan.env}.items())


def _slots(plan: LaunchPlan) -> str:
    return " ".join(str(count) for count in plan.slots)


def _render(name: str, plan: LaunchPlan, **values: Any) -> str:
    path = template_path(name, plan.cluster.templates)
    return render_template(path, plan=plan, version=__version__, **values)
