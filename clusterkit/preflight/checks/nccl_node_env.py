"""NCCL002: the variables that a node itself sets, in its environment and nccl.conf."""

from __future__ import annotations

from functools import lru_cache

from clusterkit.preflight.checks.base import (
    About,
    Check,
    Evidence,
    Judgement,
    Ruling,
    missing,
    passed,
)
from clusterkit.preflight.checks.nccl_evidence import job_settings, rulings
from clusterkit.preflight.env_lint import Source, lint
from clusterkit.preflight.probes.host.nccl_settings import CONF, ENVIRONMENT
from clusterkit.transport.probe import Missing

ABOUT = About(
    what="The variables that a node sets by itself: its environment, ~/.nccl.conf (or "
    "NCCL_CONF_FILE) and /etc/nccl.conf.",
    why="NCCL reads all three, and a forgotten line on one node slows or hangs the whole job.",
    how="env and the two files on every node; the rules of `clusterkit lint-env`. What the job "
    "sets itself beats them, and is left to NCCL001.",
    fix="Follow the hint; `allowed_env` of the cluster leaves names alone.",
    source="NCCL sources, src/misc/param.cc; docs/how-to/nccl-environment.md",
)


def judge(evidence: Evidence) -> Judgement:
    """Lint what each node sets."""
    allowed = (*evidence.job.allowed_names, *job_settings(evidence.job))
    for node in evidence.nodes:
        environment, confs = node.of(ENVIRONMENT), node.of(CONF)
        for facts in (environment, confs):
            if isinstance(facts, Missing):
                yield node.name, missing(facts)
        sources = (
            *(() if isinstance(environment, Missing) else (environment,)),
            *(() if isinstance(confs, Missing) else confs),
        )
        if sources:
            for ruling in _judged(sources, allowed):
                yield node.name, ruling


@lru_cache(maxsize=4096)
def _judged(sources: tuple[Source, ...], allowed: tuple[str, ...]) -> tuple[Ruling, ...]:
    found = tuple(rulings(lint(sources, allowed=allowed)))
    return found or (passed("nothing wrong with what the node sets"),)


CHECK = Check(
    id="NCCL002", name="nccl-node-env", about=ABOUT, probes=(ENVIRONMENT, CONF), judge=judge
)
