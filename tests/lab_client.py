"""Submit a rendered job whose command is a line of bash: `lab_client RUN_DIR BODY [JSON]`.

Run on a host of the practice cluster, by tests/test_lab_worker.py. JSON holds fields of `JobSpec`,
and the partition.
"""

from __future__ import annotations

import dataclasses
import json
import sys

from clusterkit import runfolder
from clusterkit.executors import submit_plan
from clusterkit.model import ClusterKind, ClusterSpec, GpuRequest, JobSpec
from clusterkit.plan import make_plan
from clusterkit.render import render


def main(run_dir: str, body: str, options: str = "{}") -> None:
    """Submit the job and print its run folder, before and after it was handed over."""
    wanted = json.loads(options)
    cluster = ClusterSpec(
        name="lab",
        kind=ClusterKind.SLURM,
        run_dir=run_dir,
        partition=wanted.pop("partition", None),
        gpu_request=GpuRequest.NONE,
        gpus_per_node=1,
        extra_directives=wanted.pop("directives", {}),
    )
    spec = JobSpec(framework="torchrun", script="x.py", **{"nodes": 3, "time": "5", **wanted})
    plan = make_plan(spec, cluster, workdir="/tmp")
    command = dataclasses.replace(plan.command, argv=("bash", "-c", body))
    plan = dataclasses.replace(plan, command=command)
    run = runfolder.create(cluster, plan.name)
    print(run.path, flush=True)
    submit_plan(plan, render(plan), run, secrets={}, command_line=sys.argv)


if __name__ == "__main__":
    main(*sys.argv[1:])
