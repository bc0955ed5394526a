"""Look, before a job starts on this machine, whether its Python has what its framework needs."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from importlib import metadata

from clusterkit.errors import UserError
from clusterkit.executors.base import scrubbed_environment
from clusterkit.frameworks import load_framework
from clusterkit.model import ClusterKind, LaunchPlan

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
    if cluster.kind is not ClusterKind.LOCAL or plan.container or cluster.modules or cluster.setup:
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
    package = re.match(r"[\w.-]*", framework.package)
    if not package or not package[0] or not _lacks(path, package[0], environment, plan.workdir):
        return
    install = shlex.join((path, "-m", "pip", "install", _requirement(package[0])))
    raise UserError(
        f"framework {framework.name} needs the package {package[0]}, which {path} does not have",
        hint=f"{install}\n  or set `python:` of cluster {cluster.name} to a Python that has it",
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


def _requirement(package: str) -> str:
    """Return what to install: our extra of that name has the versions that go together."""
    try:
        extras = metadata.metadata("clusterkit").get_all("Provides-Extra") or ()
    except metadata.PackageNotFoundError:  # run from a checkout
        extras = ()
    return f"clusterkit[{package}]" if package in extras else package
