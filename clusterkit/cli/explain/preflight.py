"""Preflight as a whole: the verb, and what `submit` makes of it."""

from __future__ import annotations

from collections.abc import Iterator

from clusterkit.cli.explain.config_keys import key_facts
from clusterkit.cli.explain.reference import cluster_keys
from clusterkit.cli.explain.topic import Topic, paragraphs, table

_MODES = {
    "auto": "Judges the job's NCCL variables. Where the job spans several nodes, asks them too, in "
    "one round trip: on ssh clusters, and on Slurm where jobs ask for GPUs. Where srun "
    "is not there or gets no node, a warning says so and the job goes on. No node that is powered "
    "down is woken, and no more nodes are held at a time than the job wants; where some were not "
    "asked, each node of the job checks itself before it starts.",
    "full": "Asks the nodes of every job, and measures the network between them, which takes up "
    "to some minutes. Each node checks itself once more before it starts, in 10 s at most.",
    "off": "Does nothing.",
}


def topics() -> Iterator[Topic]:
    """Yield the topic; it takes the place of the one about the key of the same name."""
    yield Topic(
        name="preflight",
        summary="proving that nodes are fit, by itself or before a job",
        text="\n\n".join(
            (
                paragraphs(
                    "`clusterkit preflight` asks every node of a cluster how it is, judges what "
                    "they say, and names those that are not fit. It changes nothing on any node.",
                    "`clusterkit submit` does so by itself before it hands a job over. "
                    "--preflight, or `preflight:` in the cluster, says how much of it:",
                ),
                table(_MODES.items()),
                paragraphs(
                    "Where a check fails, nothing is submitted and the exit code is 1. "
                    "--exclude-unfit goes on without the unfit nodes if enough are left, --force "
                    "goes on as it is. What was found stands in preflight.json of the run folder.",
                    "See also `clusterkit explain checks`, `verdicts`, and each check by its id. "
                    "As a key of a cluster:",
                ),
                table(key_facts(cluster_keys()["preflight"])),
            )
        ),
    )
