"""Which variables of a job a bundle keeps: those that checks read. Bundles are sent to others."""

from __future__ import annotations

import dataclasses

from clusterkit.preflight.env_lint.variables import concerns_us
from clusterkit.preflight.probes.gpu import dcgm_diag, nccl_tests
from clusterkit.transport.probe import PreflightJob

MASK = "(not kept)"
_ASKS = frozenset({nccl_tests.ASK, dcgm_diag.ASK})


def masked(job: PreflightJob) -> PreflightJob:
    """Return `job` with the value of every variable masked that no check reads.

    Names alone do not tell a secret, so what is kept is listed, and not what is hidden.
    """
    env = {
        name: value if name in _ASKS or concerns_us(name) else MASK
        for name, value in job.env.items()
    }
    return dataclasses.replace(job, env=env)
