"""SLURM003: whether the nodes of the job have the same features and GRES in Slurm."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import (
    About,
    Check,
    Evidence,
    Judgement,
    Ruling,
    Tier,
    uniform,
)
from clusterkit.transport.slurm_nodes import PROBE, SlurmNode

ABOUT = About(
    what="The nodes of the job are of one kind: same features, same generic resources.",
    why="Sites tell generations of GPUs and fabrics apart by features; a job over two kinds runs at"
    " the pace of the slower one, or not at all where the fabric ends.",
    how="ActiveFeatures and Gres of scontrol show node, by majority vote.",
    fix="Ask for one kind with --constraint, or leave the odd nodes out.",
    source="man sbatch, --constraint",
)


def judge(evidence: Evidence) -> Judgement:
    """Warn of odd nodes."""
    if evidence.job.kind != "slurm":
        yield None, Ruling(verdict=Verdict.SKIP, summary="not a Slurm cluster")
    else:
        yield from uniform(
            evidence,
            PROBE,
            _kind,
            what="kind of node",
            odd=Verdict.WARN,
            hint="ask for one kind of node: submit --set sbatch.constraint=FEATURE",
        )


def _kind(node: SlurmNode) -> str | None:
    gres = ",".join(f"{name}:{count}" for name, count in sorted((node.gres or {}).items()))
    return " ".join(filter(None, (gres, ",".join(sorted(node.features))))) or None


CHECK = Check(
    id="SLURM003",
    name="slurm-features",
    about=ABOUT,
    probes=(PROBE,),
    judge=judge,
    tier=Tier.ROUND_TRIP,
)
