"""The job's own interpreter and the versions of what it would import, without importing it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clusterkit.core.data import read_program, read_snippet
from clusterkit.core.distribution import DISTRIBUTION
from clusterkit.core.shell import quote, quote_path
from clusterkit.images.packages import framework_called
from clusterkit.preflight.probes.snippets import read_pairs, text_of
from clusterkit.transport.probe import PreflightJob, Probe, Unparsed

_HANDED_ON = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH")
"""Variables of the job that decide which interpreter it gets, and whether that starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPython:
    """An interpreter and what is installed for it."""

    executable: str
    """Its path on the node, as it says itself."""
    version: str
    noexec: bool
    """Whether it lies on a mount from which no library can be loaded."""
    packages: Mapping[str, str]
    torch: str | None
    cuda: str | None
    """The CUDA that torch was built for; None in a build without."""
    hip: str | None
    nccl: str | None
    """Of the wheel that torch loads it from; None where NCCL comes another way."""
    mpirun: str | None = None
    """Where the program of the job is that starts its ranks, if one of those it names is there."""


def _command(job: PreflightJob) -> str | None:
    if job.container_runtime is not None:
        return None  # the job's interpreter is the one of the image
    assignments = [f"{name}={quote(job.env[name])}" for name in _HANDED_ON if name in job.env]
    exports = f"export {' '.join(assignments)}\n" if assignments else ""
    framework = framework_called(job.framework)
    package = framework.package_name if framework is not None else None
    return exports + read_snippet(
        "job_python",
        python=quote_path(job.python),
        program=quote(read_program("programs/preflight/job_packages.py")),
        package=" ".join(
            quote(word)
            for word in (DISTRIBUTION, package, *(f"--which={name}" for name in job.mpirun))
            if word
        ),
    )


def parse(text: str) -> JobPython | None:
    """Read the pairs of the program; None where there is no such interpreter."""
    pairs = read_pairs(text)
    if "absent" in pairs:
        return None
    if "whole" not in pairs or pairs.get("noexec") not in {"0", "1"}:
        raise Unparsed("not what the program prints")
    packages = {
        key.removeprefix("package "): value
        for key, value in pairs.items()
        if key.startswith("package ") and value
    }
    nccl = [value for name, value in packages.items() if name.startswith("nvidia-nccl-")]
    return JobPython(
        executable=pairs.get("executable", ""),
        version=text_of(pairs, "version"),
        noexec=pairs["noexec"] == "1",
        packages=packages,
        torch=pairs.get("built torch") or packages.get("torch"),
        cuda=pairs.get("built cuda") or None,
        hip=pairs.get("built hip") or None,
        nccl=nccl[0] if len(nccl) == 1 else None,
        mpirun=pairs.get("which") or None,
    )


PROBE = Probe(name="job-python", command=_command, parse=parse, timeout_s=20.0)
