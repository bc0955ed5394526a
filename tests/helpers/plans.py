"""Plans and run folders made by hand, for tests of what comes after planning."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clusterkit.core.model import ClusterKind, ClusterSpec, LaunchPlan, NodeCommand, RenderedFile

MINIMAL = {
    "CK_JOB_ID": "local-abcdef",
    "CK_RESTART_COUNT": "0",
    "CK_NODE_RANK": "0",
    "CK_NODES": "node-0",
}


def make_cluster(run_dir: Path, **changes: Any) -> ClusterSpec:
    """Return a cluster that keeps its runs in `run_dir`."""
    cluster = ClusterSpec(name="local", kind=ClusterKind.LOCAL, run_dir=str(run_dir))
    return dataclasses.replace(cluster, **changes)


def make_plan(cluster: ClusterSpec, **changes: Any) -> LaunchPlan:
    """Return a plan of two nodes with one slot each."""
    nodes = changes.pop("nodes", 2)
    plan = LaunchPlan(
        name="toy",
        framework="torchrun",
        cluster=cluster,
        nodes=nodes,
        max_nodes=None,
        slots=(1,) * nodes,
        processes=nodes,
        node_names=(),
        workdir="/",
        script="train.py",
        args=(),
        command=NodeCommand(argv=("true",)),
        one_host_command=NodeCommand(argv=("true",)),
        env={},
        secrets=(),
        directives={},
        time_limit_s=None,
        container=None,
        requeue=0,
    )
    return dataclasses.replace(plan, **changes)


def node_script(body: str) -> RenderedFile:
    """Return a node.sh with this body; it passes TERM on to its child as the real one does."""
    return RenderedFile(name="node.sh", text=f"#!/usr/bin/env bash\n{body}\n", executable=True)


def environment(rank: int = 0, nodes: int = 1, **more: str) -> Mapping[str, str]:
    """Return what an executor gives to one node."""
    names = " ".join(f"node-{k}" for k in range(nodes))
    return {**MINIMAL, "CK_NODE_RANK": str(rank), "CK_NODES": names, **more}
