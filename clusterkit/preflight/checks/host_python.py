"""HOST: the job's Python on the nodes: interpreter, torch, framework and clusterkit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from clusterkit.core.distribution import DISTRIBUTION, FOREIGN, wheel_name
from clusterkit.core.findings import Verdict
from clusterkit.images.packages import framework_called, image_with, pip_line
from clusterkit.preflight.checks.base import known, machine_check, uniform
from clusterkit.preflight.checks.results import Advice, Result, Results, advice, ok, skip
from clusterkit.preflight.checks.types import Check, Evaluation, Evidence, NodeFacts, Tier, check
from clusterkit.preflight.probes.host import job_python
from clusterkit.preflight.probes.host.job_python import JobPython
from clusterkit.transport.probe import PreflightJob

if TYPE_CHECKING:
    from clusterkit.launch.frameworks import Framework


def _compared(
    evidence: Evidence,
    key: Callable[[JobPython | None], str | Result | None],
    what: str,
    odd: Verdict,
) -> Results:
    hint = advice("HOST013", "same").hint
    return uniform(evidence, job_python.PROBE, key, what=what, odd=odd, hint=hint)


def _python_check(id_: str, name: str, of_image: str) -> Callable[[Evaluation], Check]:
    """Return a decorator for a comparison of interpreters, skipped in jobs that bring an image."""

    def skip_if(job: PreflightJob) -> str | None:
        return None if job.container_runtime is None else of_image

    return check(id_, name, job_python.PROBE, tier=Tier.ROUND_TRIP, skip_if=skip_if)


@_python_check("HOST013", "host-python", "the interpreter is the image's")
def _python(evidence: Evidence) -> Results:
    job = evidence.job
    # A bare name that no node has may come from modules, which a plain shell has not loaded.
    certain = any(known(evidence, job_python.PROBE)[0].values()) or "/" in job.python
    case = "path" if "/" in job.python else ""
    absent = advice("HOST013", case, python=job.python).result(
        Verdict.FAIL if certain else Verdict.WARN,
        f"{job.python} not found" + ("" if certain else " in a plain shell"),
    )
    return _compared(
        evidence, lambda python: python.version if python else absent, "Python", Verdict.FAIL
    )


@_python_check("HOST014", "host-torch", "torch is the image's")
def torch(evidence: Evidence) -> Results:
    """Fail nodes that lack torch or differ from the others."""
    have = any(python and python.torch for python in known(evidence, job_python.PROBE)[0].values())
    return _compared(
        evidence,
        lambda python: _torch_version(python, evidence.job, have=have),
        "torch",
        Verdict.FAIL,
    )


def _torch_version(python: JobPython | None, job: PreflightJob, *, have: bool) -> str | Result:
    wrong = advice("HOST014", python=job.python)
    if python is None:
        return skip("no interpreter")
    if python.torch is None and _needed(job) == "torch":
        return _lacking(job, python)
    if python.torch is None:
        required = have or job.framework == "deepspeed"
        absent = wrong.fail(f"torch is not installed for {_named(python, job)}")
        return absent if required else skip(NO_TORCH)
    if python.cuda is None and python.hip is None and (verdict := wants_gpus(job)):
        what = f"torch {python.torch} is a build without GPU support"
        return wrong.result(verdict, what + (f", and {job.gpu_use}" if job.gpu_use else ""))
    device = f"CUDA {python.cuda}" if python.cuda else f"ROCm {python.hip}" if python.hip else "CPU"
    return f"{python.torch}, {device}" + (f", NCCL {python.nccl}" if python.nccl else "")


def wants_gpus(job: PreflightJob) -> Verdict | None:
    """Return how bad a build for CPUs is; a plain shell may have another one than the job."""
    if job.uses_gpus:
        return Verdict.WARN if job.python_is_set_up else Verdict.FAIL
    return Verdict.WARN if job.gpu_use else None


NO_TORCH = "torch is not installed"
"""What is said where no framework is named, so that nobody knows whether the job needs torch."""
_COMPARED = (DISTRIBUTION, "submitit", "deepspeed", "horovod", "accelerate")


@_python_check("HOST015", "host-packages", "the packages are the image's")
def _packages(evidence: Evidence) -> Results:
    job, package = evidence.job, _needed(evidence.job)
    package = None if package == "torch" else package  # of which HOST014 tells
    compared = dict.fromkeys((*_COMPARED, package) if package else _COMPARED)

    def versions(python: JobPython | None) -> str | Result | None:
        if python is None:
            return skip("no interpreter")
        there = python.packages
        if package not in {None, *there}:
            return _lacking(job, python)
        return ", ".join(f"{name} {there[name]}" for name in compared if name in there) or None

    return _compared(evidence, versions, "packages", Verdict.WARN)


def _needed(job: PreflightJob) -> str | None:
    """Return the package that the job's framework needs, if that is known."""
    framework = framework_called(job.framework)
    return framework.package_name if framework is not None else None


def _lacking(job: PreflightJob, python: JobPython) -> Result:
    """Return the result for a node whose Python lacks the package of the job's framework.

    A plain shell may have other packages than a job for which modules are loaded first.
    """
    framework = framework_called(job.framework)
    install = Advice()
    if framework is not None:
        install = Advice(hint=_ways(framework, job), command=pip_line(framework, job.python))
    verdict = Verdict.WARN if job.python_is_set_up else Verdict.FAIL
    where = " in a plain shell" if job.python_is_set_up else ""
    what = f"{_needed(job)} is not installed for {_named(python, job)}{where}"
    return install.result(verdict, what)


def _named(python: JobPython, job: PreflightJob) -> str:
    """Return which interpreter it was: `python3` may be any."""
    return f"the job's Python ({python.executable or job.python})"


def _ways(framework: Framework, job: PreflightJob) -> str:
    ways = [
        "install it there",
        "name one that has it in the cluster: `python: /path/to/bin/python`",
    ]
    if job.python_here is not None:
        yours = f"yours has it, and the nodes see it: `python: {job.python_here}` in the cluster"
        ways = [yours, ways[0]]
    image = image_with(framework)
    if image is not None:
        ways.append(f"run in an image that has it (--container docker --image {image})")
    return ", or ".join(ways)


def _not_comparable(job: PreflightJob) -> str | None:
    if job.asked_by is None:
        return "its version is not known"
    return None if job.container_runtime is None else "clusterkit is the image's"


@machine_check("HOST016", "host-clusterkit", job_python.PROBE, skip_if=_not_comparable)
def _clusterkit(node: NodeFacts, job: PreflightJob) -> Result:
    python, here = node.need(job_python.PROBE), job.asked_by or ""
    packages = python.packages if python else {}
    there = packages.get(DISTRIBUTION)
    if FOREIGN in packages:
        summary = f"another project named {FOREIGN} ({packages[FOREIGN]}) is installed over ours"
        values = {"foreign": FOREIGN, "ours": DISTRIBUTION}
        return advice("HOST016", "foreign", python=job.python, **values).warn(summary)
    if there is None:
        return skip("not installed for the job's Python")
    if there == here:
        return ok(f"clusterkit {there} on both sides")
    install = advice("HOST016", "other", python=job.python, wheel=wheel_name(here))
    return install.warn(f"clusterkit {there} is there, {here} is what asks")


def _no_mpirun(job: PreflightJob) -> str | None:
    if not job.mpirun:
        return "no mpirun starts its ranks"
    return None if job.container_runtime is None else "mpirun is the image's"


@machine_check("HOST018", "host-mpirun", job_python.PROBE, skip_if=_no_mpirun)
def _mpirun(node: NodeFacts, job: PreflightJob) -> Result:
    python = node.need(job_python.PROBE)
    if python is None:
        return skip("no interpreter")
    if python.mpirun:
        return ok(python.mpirun)
    # A job on Slurm has the PATH of the shell that submits, and may have loaded a module there.
    certain = job.kind != "slurm" and not job.python_is_set_up
    return advice("HOST018").result(
        Verdict.FAIL if certain else Verdict.WARN,
        f"no {job.mpirun[0]} to start the ranks with" + ("" if certain else " in a plain shell"),
    )
