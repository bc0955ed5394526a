"""Tensor, pipeline, context and expert parallel ranks of a job: their sizes, and near nodes.

The sizes belong to the training script, which finds them in its environment; the plan has the nodes
in an order in which ranks that gain most from it are near each other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clusterkit.config.document import read_text
from clusterkit.core.errors import UserError
from clusterkit.core.model import ClusterSpec, Host, LaunchPlan
from clusterkit.launch.options import JobSpec
from clusterkit.launch.rank_layout.exports import variables
from clusterkit.launch.rank_layout.fabric import Fabric, parse_fabric
from clusterkit.launch.rank_layout.parallelism import LayoutRequest, arrange
from clusterkit.launch.rank_layout.placement import Layout, even_islands, node_order, place
from clusterkit.launch.rank_layout.warnings import layout_warnings

SIZES = ("tp", "cp", "ep", "pp")


def laid_out(
    job: JobSpec,
    cluster: ClusterSpec,
    sizes: Mapping[str, Any],
    *,
    planned: Callable[[JobSpec, ClusterSpec], LaunchPlan],
    warn: Callable[[str], None],
) -> LaunchPlan:
    """Return the plan of `job` with the layout that `sizes` ask for; as it is where they do not.

    `sizes` may hold `topology`: a file with what `scontrol show topology` prints, or the bundle of
    a preflight that measured the network. Hosts that are known come into its order here; of those
    that Slurm gives, the plan says how they will.

    Raises:
        UserError: the ranks do not divide so, or the nodes of this job cannot be put into an order.
    """
    plan = planned(job, cluster)
    chosen = {name: sizes[name] for name in SIZES if sizes.get(name) is not None}
    topology = sizes.get("topology")
    if not chosen and topology is None:
        return plan
    fabric = None if topology is None else _fabric(plan, Path(topology))
    layout = _layout(plan, chosen, fabric if plan.node_names else None)
    for problem in layout_warnings(layout):
        warn(str(dataclasses.replace(problem, key=None)))
    job = dataclasses.replace(job, env={**variables(layout.parallelism), **job.env})
    if fabric is None:
        return planned(job, cluster)
    if plan.node_names:
        hosts = _first(cluster, layout.hosts)
        return planned(job, dataclasses.replace(cluster, hosts=hosts))
    order = node_order(layout.parallelism, plan.nodes, plan.slots[0], fabric)
    return dataclasses.replace(planned(job, cluster), order=order)


def _fabric(plan: LaunchPlan, topology: Path) -> Fabric:
    if plan.cluster.kind.shares_machine:
        raise UserError(
            f"--topology orders nodes, and those of {plan.cluster.name} are all this machine",
            hint="leave it out",
        )
    if plan.cluster.kind.scheduled and (plan.command.once or plan.command.slot_filter):
        raise UserError(
            f"--topology: {plan.framework} numbers the nodes of this job itself",
            hint="leave it out; --set sbatch.switches=1 asks Slurm for nodes behind one switch",
        )
    if plan.components:
        raise UserError(
            "--topology: nodes of a heterogeneous job are numbered by component",
            hint="leave it out",
        )
    if not topology.is_dir():
        return parse_fabric(read_text(topology), source=str(topology))
    # Loads all checks, and only here.
    from clusterkit.preflight.network import measured_in  # noqa: PLC0415

    return measured_in(topology)


def _layout(plan: LaunchPlan, sizes: Mapping[str, Any], fabric: Fabric | None) -> Layout:
    slots = plan.slots[0]
    if plan.max_nodes is not None or plan.processes != plan.nodes * slots or len({*plan.slots}) > 1:
        raise UserError(
            "a layout is for a fixed number of nodes with equal slots, and one rank in each",
            hint="--nodes N --gpus-per-node G, without --processes",
        )
    hosts = plan.node_names or tuple(f"node-{number}" for number in range(plan.nodes))
    return place(
        arrange(dataclasses.replace(LayoutRequest(nodes=plan.nodes, gpus_per_node=slots), **sizes)),
        hosts=hosts,
        gpus_per_node=slots,
        islands=even_islands(slots, slots),
        fabric=fabric,
    )


def _first(cluster: ClusterSpec, names: tuple[str, ...]) -> tuple[Host, ...]:
    """Return the hosts of a cluster, those called `names` first and in that order."""
    by_name = {host.name: host for host in cluster.hosts}
    return (
        *(by_name[name] for name in names),
        *(host for host in cluster.hosts if host.name not in names),
    )
