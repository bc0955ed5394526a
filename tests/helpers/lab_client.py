"""Submit a rendered job whose command is a line of bash: `lab_client RUN_DIR BODY [JSON]`.

Run on a host of the practice cluster, by `lab_jobs`. JSON
holds fields of `JobSpec`, and the cluster's kind, hosts, partition and directives.
"""

from __future__ import annotations

import dataclasses
import json
import sys

from clusterkit.core.model import (
    ClusterKind,
    ClusterSpec,
    ContainerRuntime,
    GpuRequest,
    Host,
)
from clusterkit.executors import submit_plan
from clusterkit.executors.run import runfolder
from clusterkit.launch.options import JobSpec
from clusterkit.launch.plan import make_plan
from clusterkit.launch.render import render


def main(run_dir: str, body: str, options: str = "{}") -> None:
    """Submit the job and print its run folder, before and after it was handed over."""
    wanted = json.loads(options)
    kind = ClusterKind(wanted.pop("kind", "slurm"))
    if "container" in wanted:
        wanted["container"] = ContainerRuntime(wanted["container"])
    hosts = tuple(Host(name=name) for name in wanted.pop("hosts", ()))
    cluster = ClusterSpec(
        name="lab",
        kind=kind,
        run_dir=run_dir,
        hosts=hosts if kind is ClusterKind.SSH else (),
        partition=wanted.pop("partition", None),
        gpu_request=GpuRequest.NONE,
        gpus_per_node=wanted.pop("slots", 1),
        extra_directives=wanted.pop("directives", {}),
        shared_filesystem=wanted.pop("shared", True),
        venv=wanted.pop("venv", "~/.clusterkit/venv"),
    )
    spec = JobSpec(framework="torchrun", **{"script": "x.py", "nodes": 3, "time": "5", **wanted})
    plan = make_plan(spec, cluster, workdir="/tmp")
    command = dataclasses.replace(plan.command, argv=("bash", "-c", body))
    plan = dataclasses.replace(plan, command=command)
    run = runfolder.create(cluster, plan.name)
    print(run.path, flush=True)
    submit_plan(plan, render(plan), run, secrets={}, command_line=sys.argv)


if __name__ == "__main__":
    main(*sys.argv[1:])
