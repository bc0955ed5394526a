"""Look, before a job starts on this machine, whether its Python has what its framework needs."""

from __future__ import annotations

import shutil
import subprocess

from clusterkit.core.errors import UserError
from clusterkit.core.model import LaunchPlan
from clusterkit.executors.base import scrubbed_environment
from clusterkit.images.packages import package_of, remedies
from clusterkit.launch.frameworks import load_framework

_TIMEOUT_S = 20
"""A Python on a slow file system; what takes longer is left to the job."""

_LOOK = """\
import sys
from importlib.util import find_spec
name = sys.argv[1]
if find_spec(name.replace("-", "_")) is None:
    from importlib import metadata
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        print("missing")
"""
"""A package may be imported by another name than it is installed by; either will do."""


def require_package(plan: LaunchPlan) -> None:
    """Refuse a job of this machine whose Python lacks the package of its framework.

    Nothing is said of a Python that cannot be known from here: one in an image, or one that
    modules and setup lines may put on PATH.

    Raises:
        UserError: there is no such Python, or it lacks the package.
    """
    cluster = plan.cluster
    if not cluster.kind.shares_machine or plan.container or cluster.modules or cluster.setup:
        return
    framework = load_framework(plan.framework)
    environment = {**scrubbed_environment(plan.secrets), **plan.env}
    python = cluster.python or "python3"
    path = shutil.which(python, path=environment.get("PATH"))
    if path is None:
        raise UserError(
            f"there is no {python} on this machine to run the job with",
            hint=f"set `python:` of cluster {cluster.name} to the one of your training environment",
        )
    package = package_of(framework)
    if package is None or not _lacks(path, package, environment, plan.workdir):
        return
    ways = (*remedies(framework, path), f"or set `python:` of cluster {cluster.name} to another")
    raise UserError(
        f"framework {framework.name} needs the package {package}, which {path} does not have",
        hint="\n  ".join(ways),
    )


def _lacks(python: str, package: str, environment: dict[str, str], workdir: str) -> bool:
    try:
        done = subprocess.run(
            [python, "-c", _LOOK, package],
            cwd=workdir,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False  # the job itself will say what is wrong with it
    return done.returncode == 0 and done.stdout.strip() == "missing"
