"""For checks of what is installed: what is said of a Python without the framework's package."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.images.packages import framework_called, image_with, package_of, pip_line
from clusterkit.launch.frameworks import Framework
from clusterkit.preflight.checks.base import Ruling
from clusterkit.transport.probe import PreflightJob


def needed(job: PreflightJob) -> str | None:
    """Return the package that the job's framework needs, if that is known."""
    framework = framework_called(job.framework)
    return package_of(framework) if framework is not None else None


def lacking(job: PreflightJob) -> Ruling:
    """Return the ruling for a node whose Python has not the package of the job's framework.

    A plain shell may have other packages than a job for which modules are loaded first.
    """
    verdict = Verdict.WARN if job.python_is_set_up else Verdict.FAIL
    where = " in a plain shell" if job.python_is_set_up else ""
    framework = framework_called(job.framework)
    return Ruling(
        verdict=verdict,
        summary=f"{needed(job)} is not installed for the job's Python{where}",
        hint=_hint(framework) if framework is not None else "",
        command=pip_line(framework, job.python) if framework is not None else "",
    )


def _hint(framework: Framework) -> str:
    ways = ["install it there", "name another interpreter in `python:` of the cluster"]
    image = image_with(framework)
    if image is not None:
        ways.append(f"run in an image that has it (--container docker --image {image})")
    return ", or ".join(ways)
