"""What a preflight was asked for, and what of it cannot be meant."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from clusterkit.core.errors import Problem, UserError, choices_hint
from clusterkit.launch.option_rows import Option, Place

if TYPE_CHECKING:
    from clusterkit.core.model import ClusterSpec

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightOptions:
    """Which nodes to ask what: flags of `clusterkit preflight`, and arguments in Python."""

    cluster: Annotated[str | None, Option("NAME", "Cluster of clusterkit.yaml, or local.",
        short="-c", variable=True, panel="Nodes")] = None
    nodes: Annotated[int | None, Option("N", "So many nodes of it.",
        short="-n", panel="Nodes")] = None
    hosts: Annotated[str | None, Option("LIST", "These hosts, as n[1-4].", panel="Nodes")] = None
    hostfile: Annotated[Place | None, Option("FILE", "Those of a hostfile.", panel="Nodes")] = None
    via: Annotated[str | None, Option("HOW", "ssh, srun or local; else what fits the cluster.",
        panel="Nodes")] = None
    timeout: Annotated[float | None, Option("S",
        "Seconds to reach a node, or to get an allocation (10).", panel="Nodes")] = None
    select: Annotated[str | Sequence[str], Option("ID,..", "Only these checks: ids or areas.",
        once=True, panel="Options")] = ()
    ignore: Annotated[str | Sequence[str], Option("ID,..", "Not these checks.",
        once=True, panel="Options")] = ()
    network: Annotated[bool, Option("", "Also measure the traffic between the nodes.",
        panel="Options")] = False
    framework: Annotated[str | None, Option("NAME", "What will start the job.",
        short="-f", panel="Options")] = None
    gpus_per_node: Annotated[int | None, Option("G", "GPUs the job wants of each.",
        short="-g", panel="Options")] = None
    path: Annotated[str | Sequence[str], Option("DIR",
        "A folder all nodes must share; repeatable.", panel="Options")] = ()
    env: Annotated[Mapping[str, object], Option("K=V", "A variable of the job; repeatable.",
        short="-e", panel="Options")] = field(default_factory=dict)
    image: Annotated[str | None, Option("NAME", "An image every node must have.",
        panel="Options")] = None
    strict: Annotated[bool, Option("", "Warnings and unknowns count as failures.",
        panel="Options")] = False
    replay: Annotated[Place | None, Option("DIR", "Evaluate what --save kept; no node is asked.",
        panel="Bundle")] = None
# fmt: on

    @property
    def paths(self) -> tuple[str, ...]:
        """The folders that all nodes must share."""
        return (self.path,) if isinstance(self.path, str) else tuple(self.path)


def refuse_nonsense(options: PreflightOptions, cluster: ClusterSpec) -> None:
    """Refuse what no job can want of `cluster`.

    Raises:
        UserError: all of it at once.
    """
    problems = tuple(_problems(options, cluster))
    if problems:
        raise UserError(problems=problems)


def _problems(options: PreflightOptions, cluster: ClusterSpec) -> Iterator[Problem]:
    from clusterkit.core.model import ContainerRuntime  # noqa: PLC0415 - `--self` needs neither
    from clusterkit.launch.frameworks import framework_names  # noqa: PLC0415

    known = framework_names()
    if options.framework is not None and options.framework not in known:
        yield Problem(
            message=f"unknown framework {options.framework!r}",
            hint=choices_hint(options.framework, known),
        )
    if options.timeout is not None and not options.timeout > 0:
        yield Problem(message=f"--timeout {options.timeout:g}: no time at all", hint="--timeout 10")
    if options.gpus_per_node is not None and options.gpus_per_node < 1:
        yield Problem(
            message=f"--gpus-per-node {options.gpus_per_node}: must be at least 1",
            hint="leave it out for a job without GPUs",
        )
    if "" in options.paths:
        yield Problem(message="--path names no folder", hint="such as --path /data")
    if options.image == "":
        yield Problem(message="--image names no image", hint="such as --image /images/train.sif")
    elif options.image is not None and cluster.container_runtime is None:
        yield Problem(
            message=f"--image {options.image} needs a container runtime",
            hint=f"container_runtime: {'|'.join(ContainerRuntime)} in the configuration of "
            f"cluster {cluster.name}",
        )
    for name in options.env:
        if not _VARIABLE.fullmatch(name):
            yield Problem(
                message=f"--env: {name!r} is not a name of an environment variable",
                hint="letters, digits and underscores, no digit first",
            )
