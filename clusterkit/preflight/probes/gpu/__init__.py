"""What a node's GPUs, their driver and the kernel's log say."""

from __future__ import annotations

from collections.abc import Callable

from clusterkit.transport.probe import PreflightJob


def for_gpu_jobs(snippet: str) -> Callable[[PreflightJob], str]:
    """Return what `Probe.command` wants of a snippet that says nothing to jobs without GPUs."""
    no_gpu = "echo 'the job uses no GPU'; exit 77\n"
    return lambda job: no_gpu if job.uses_gpus is False else snippet
