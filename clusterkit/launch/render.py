"""Plan -> files, pure: the same plan gives the same bytes; `write_files` puts them on disk."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from clusterkit.core import files
from clusterkit.core.data import PEERS, read_template
from clusterkit.core.errors import UserError, choices_hint
from clusterkit.core.hosts.hostfile import Format
from clusterkit.core.hosts.hostfile_writer import write
from clusterkit.core.model import (
    PORT_STRIDE,
    ContainerPlan,
    ContainerRuntime,
    GpuRequest,
    Host,
    LaunchPlan,
    NodeOrder,
    RenderedFile,
    Runtime,
    Word,
)
from clusterkit.core.version import __version__
from clusterkit.launch.frameworks import load_framework
from clusterkit.launch.frameworks.base import preset_text
from clusterkit.launch.services import Service, service_for
from clusterkit.launch.templates import render_template, template_path

KINDS = ("sbatch", "node", "hostfile", "compose", "config")


_PARTS: Mapping[ContainerRuntime, tuple[str, ...]] = {
    ContainerRuntime.DOCKER: ("docker.sh",),
    ContainerRuntime.COMPOSE: ("docker.sh", "compose.sh"),
    ContainerRuntime.APPTAINER: ("apptainer.sh",),
    ContainerRuntime.ENROOT: ("enroot.sh",),
    ContainerRuntime.PYXIS: ("pyxis.sh",),
}
"""What puts a node's command into an image: `common.sh`, and these, of `scripts/container/`. They
define `ck_enter` (leaves in `ck_inside` the words before the command) and `ck_leave` (tidies up).
"""
_INSIDE = ("inside.sh", "look.py")
"""The first process in the image, and what it uses."""
_VARIANT = {True: "cuda", False: "cpu"}
COMPOSE_NODE = "compose-node.sh"
"""The node script inside the image: one host, and nothing of the site around it."""


def check_kinds(only: Sequence[str]) -> tuple[str, ...]:
    """Return the kinds of files to render; all where none is named.

    Raises:
        UserError: there is no such kind.
    """
    for kind in only:
        if kind not in KINDS:
            raise UserError(f"--only {kind}: no such file", hint=choices_hint(kind, KINDS))
    return tuple(only or KINDS)


def render(
    plan: LaunchPlan, *, only: Iterable[str] = KINDS, service: str | None = None
) -> tuple[RenderedFile, ...]:
    """Return the files of `plan`; the kinds that it has no file for are left out.

    Those for a managed service are what its nodes run: the node script, and a configuration.

    Raises:
        UserError: a shadowing template is wrong (with its line), or there is no such service.
    """
    known = service_for(service, plan) if service is not None else None
    # A service has started the image already.
    node = _node(dataclasses.replace(plan, container=None) if known else plan, service=known)
    makers = {
        "sbatch": lambda: _sbatch(plan, node.text),
        "node": lambda: [node],
        "hostfile": lambda: _hostfile(plan) if plan.node_names else [],
        "compose": lambda: _compose(plan),
        "config": lambda: _config(plan),
    }
    selected = set(only) & {"node", "config"} if known else set(only)
    return tuple(file for kind in KINDS if kind in selected for file in makers[kind]())


def write_files(rendered: Sequence[RenderedFile], folder: Path) -> Iterator[Path]:
    """Write each file into `folder`, and yield its path.

    Raises:
        UserError: it cannot be written.
    """
    files.create_output_folder(folder)
    for file in rendered:
        path = folder / file.name
        files.write_text(
            path,
            file.text,
            mode=files.output(files.PUBLIC_PROGRAM if file.executable else files.PUBLIC),
        )
        yield path


def _node(
    plan: LaunchPlan, *, name: str = "node.sh", service: Service | None = None
) -> RenderedFile:
    container = plan.container
    inside = _INSIDE if container else ()
    parts = ("common.sh", *_PARTS[container.runtime]) if container else ()
    text = _render(
        "node/node.sh.j2",
        plan,
        service=service,
        argv=plan.command.argv,
        env=_environment(plan),
        names=tuple(dict.fromkeys((*plan.command.env, *plan.env, *plan.secrets))),
        files={**plan.command.files, **{name: _container(name) for name in inside}},
        peers=PEERS,
        records=load_framework(plan.framework).torch,
        gpus="" if plan.cluster.gpu_request is GpuRequest.NONE else "1",
        container_functions="\n".join(map(_container, parts)),
        default_nodes=" ".join(plan.node_names) or "localhost",
        default_slots=_slots(plan),
        default_port=str(plan.cluster.port_range[0]),
    )
    return RenderedFile(name=name, text=text, executable=True)


def _container(name: str) -> str:
    return read_template(f"scripts/container/{name}")


def _sbatch(plan: LaunchPlan, node_script: str) -> list[RenderedFile]:
    if not plan.cluster.kind.scheduled:
        return []  # it would name the interface, the Python and the folders of other machines
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
        nodes=str(plan.nodes),
        picks=bool(plan.spares or plan.restarts),
        elsewhere=bool(plan.command.slot_filter or plan.spares or plan.restarts or plan.order),
        **_order(plan.order),
        srun_args=plan.cluster.srun_args,
        node_script=node_script.rstrip("\n"),
    )
    return [RenderedFile(name="job.sbatch", text=text, executable=True)]


def _order(order: NodeOrder | None) -> dict[str, Any]:
    if order is None:
        return {}
    return {
        "order_functions": read_template("scripts/sbatch/order.sh"),
        "together": str(order.together),
        "places": " ".join(str(place) for place in order.places),
        "switches": tuple(" ".join(nodes) for nodes in order.switches),
    }


def _hostfile(plan: LaunchPlan) -> list[RenderedFile]:
    """Return the hostfile where names are known; on Slurm, node.sh writes it."""
    named = zip(plan.node_names, plan.slots, strict=False)
    hosts = tuple(Host(name=name, slots=slots) for name, slots in named)
    # Of all formats the one that DeepSpeed, Horovod and Open MPI read alike.
    return [RenderedFile(name="hostfile", text=write(hosts, Format.DEEPSPEED))]


def _compose(plan: LaunchPlan) -> list[RenderedFile]:
    if plan.container and plan.container.runtime is ContainerRuntime.COMPOSE:
        return _compose_of_hosts(plan, plan.container)
    inside = _inside_the_image(plan)
    container = plan.container
    gpus = plan.cluster.gpu_request is not GpuRequest.NONE
    default_image = load_framework(plan.framework).image
    if default_image and "/" not in default_image:  # as images/catalogue.py calls them
        default_image = f"clusterkit/{default_image}:{_VARIANT[gpus]}"
    text = _render(
        "compose/compose.yaml.j2",
        plan,
        **_of_compose(plan),
        summary=summary(inside),
        image=container.image if container else plan.cluster.image or default_image,
        nccl_env=[pair for pair in plan.env.items() if pair[0].startswith("NCCL_")],
        mounts=container.mounts if container else plan.cluster.mounts,
        shm_size=container.shm_size if container else plan.cluster.shm_size,
        gpus="all" if gpus else None,
    )
    return [RenderedFile(name="compose.yaml", text=text), _node(inside, name=COMPOSE_NODE)]


def _of_compose(plan: LaunchPlan) -> dict[str, str]:
    """Return what every compose file of a plan has: a name that Compose accepts, and mounts."""
    return {
        "project": re.sub(r"[^a-z0-9_-]+", "-", plan.name.lower()).strip("-_") or "train",
        "node_script": COMPOSE_NODE,
        "script_mount": f"./{COMPOSE_NODE}:/clusterkit/node.sh:ro",
        "workdir_mount": f"{plan.workdir}:{plan.workdir}",
    }


def _compose_of_hosts(plan: LaunchPlan, container: ContainerPlan) -> list[RenderedFile]:
    """Return a file for each host, and the node script that all of them run inside the image.

    What stands in them for the runtime variables are defaults, for use by hand: `submit` knows
    better, and says so in a second file.
    """
    names = (*plan.node_names, *plan.spare_names) or tuple(f"node-{k}" for k in range(plan.nodes))
    used = plan.node_names or names
    cluster = dataclasses.replace(plan.cluster, modules=(), setup=())
    inside = dataclasses.replace(plan, cluster=cluster, container=None)
    files = []
    for rank, host in enumerate(names):
        defaults = {
            Runtime.NODES.name: " ".join(used),
            Runtime.SLOTS.name: _slots(plan),
            Runtime.NODE_RANK.name: str(rank),
            **plan.env,
        }
        text = _render(
            "compose/host.yaml.j2",
            plan,
            **_of_compose(plan),
            host=host,
            file_name=f"compose-{host}.yaml",
            summary=summary(plan),
            image=container.image,
            environment=tuple(defaults.items()),
            needs_token=PEERS in plan.command.files and len(used) > 1,
            gpus=plan.cluster.gpu_request is not GpuRequest.NONE,
        )
        files.append(RenderedFile(name=f"compose-{host}.yaml", text=text))
    return [*files, _node(inside, name=COMPOSE_NODE)]


def _inside_the_image(plan: LaunchPlan) -> LaunchPlan:
    """Return the plan of one host, where the image has what the site sets up elsewhere."""
    cluster = dataclasses.replace(
        plan.cluster, modules=(), setup=(), network_interface="lo", python=None
    )
    return dataclasses.replace(
        plan,
        cluster=cluster,
        nodes=1,
        max_nodes=None,
        slots=plan.slots[:1],
        processes=plan.one_host_command.processes or plan.slots[0],
        node_names=(),
        command=plan.one_host_command,
        container=None,
    )


def _config(plan: LaunchPlan) -> list[RenderedFile]:
    if plan.deepspeed_preset is None:
        return []
    return [
        RenderedFile(name="ds_config.json", text=preset_text("deepspeed", plan.deepspeed_preset))
    ]


def summary(plan: LaunchPlan) -> str:
    """Return `torchrun on 3 nodes x 2 slots`, as the header of rendered files says it."""
    nodes = f"{plan.nodes}-{plan.max_nodes}" if plan.max_nodes else str(plan.nodes)
    even = len(set(plan.slots)) == 1
    slots = f"x {_count(plan.slots[0], 'slot')}" if even else f"with {_slots(plan)} slots"
    return (
        f"{plan.framework} on {nodes} {'node' if nodes == '1' else 'nodes'} {slots}, "
        f"{_count(plan.processes, 'process', 'processes')}"
    )


def _count(number: int, one: str, several: str = "") -> str:
    return f"{number} {one if number == 1 else several or one + 's'}"


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
    functions = read_template("scripts/node/filter.sh") if plan.command.slot_filter else ""
    return render_template(
        path, plan=plan, version=__version__, filter_functions=functions, **values
    )
