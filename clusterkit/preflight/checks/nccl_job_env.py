"""NCCL001: the variables that the job sets."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.preflight.checks.base import About, Check, Evidence, Judgement, Ruling, passed
from clusterkit.preflight.checks.nccl_evidence import rulings
from clusterkit.preflight.env_lint import from_environment, lint

ABOUT = About(
    what="The NCCL, PyTorch, Gloo, UCX and libfabric variables of the job and its cluster.",
    why="NCCL ignores names that it does not know and reads `true` as 0, without a word.",
    how="The rules of `clusterkit lint-env`, applied to `env` of the cluster and --env of the job.",
    fix="Follow the hint; `allowed_env` of the cluster leaves names alone.",
    source="docs/how-to/nccl-environment.md; NCCL sources, src/misc/param.cc",
)


def judge(evidence: Evidence) -> Judgement:
    """Lint what the job sets."""
    source = from_environment(evidence.job.env, "the job")
    if not source.settings:
        yield None, Ruling(verdict=Verdict.SKIP, summary="the job sets no such variable")
        return
    found = tuple(rulings(lint([source], allowed=evidence.job.allowed_names)))
    for ruling in found or (passed("nothing wrong with the variables of the job"),):
        yield None, ruling


CHECK = Check(id="NCCL001", name="nccl-job-env", about=ABOUT, probes=(), judge=judge)
