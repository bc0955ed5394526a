"""`clusterkit bench collectives`: how fast collectives are, and whether their results are right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from clusterkit.cli.frame.flags import JsonFlag, explained
from clusterkit.cli.frame.job_options import DryRunFlag, takes_job_options
from clusterkit.core.errors import UserError

JOB = (
    *("cluster", "nodes", "gpus_per_node", "time", "name", "env", "secret", "exclude", "set"),
    *("tp", "pp", "cp", "ep", "topology"),
    *("image", "container", "mount", "preflight", "exclude_unfit", "force"),
)


@takes_job_options(*JOB)
@explained
def allreduce(
    options: Mapping[str, Any],
    ops: str = "all-reduce",
    over: str | None = None,
    sizes: str | None = None,
    iterations: int = 20,
    seconds: int = 60,
    backend: str = "auto",
    by: str = "auto",
    from_: str | None = None,
    interconnect: str | None = None,
    gpu: str | None = None,
    save: bool = False,
    dry_run: DryRunFlag = False,
    json: JsonFlag = False,
) -> None:
    """Measure collectives between the ranks of a job, and check their results.

    Bandwidths are those of nccl-tests. The largest message is compared with what
    `estimate` assumes, the best with what is published for such GPUs.

    Exit code 1 if a result was wrong or the job failed.
    """
    from clusterkit.cli.bench import collectives, job
    from clusterkit.estimate.machines.gpus import gpu_named
    from clusterkit.estimate.machines.interconnects import interconnect_named
    from clusterkit.observe.bench.allreduce.answer import answer

    arguments = collectives.arguments_of(
        options,
        over=over,
        ops=ops,
        sizes=sizes,
        iterations=iterations,
        seconds=seconds,
        backend=backend,
        by=by,
    )
    if interconnect is not None:
        interconnect_named(interconnect)
    if gpu is not None:
        gpu_named(gpu)
    if save and backend == "gloo":
        raise UserError("--save: estimates are of GPUs and nccl", hint="leave out one of the two")
    cluster = options.get("cluster")
    if save and cluster is not None:
        from clusterkit.config.load import load_settings

        load_settings().cluster(cluster)  # a wrong name is to be told before hours of waiting
    if from_ is not None:
        measured = collectives.read(from_, options)
        of_job = None
    else:
        of_all = seconds * len(arguments["ops"])
        of_job, measured = job.run_job(
            *(collectives.BENCH, options, arguments), seconds=of_all, dry_run=dry_run, as_json=json
        )
        cluster = of_job.submission.cluster
    found = answer(measured, interconnect=interconnect, gpu=gpu)
    raise typer.Exit(collectives.show(found, of_job, cluster, save=save, as_json=json))
