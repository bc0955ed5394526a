"""Submit one job: what every way to ask for it goes through, in this order."""

from __future__ import annotations

import dataclasses
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from clusterkit.config.load import load_settings
from clusterkit.config.settings import DEFAULT_ORIGIN
from clusterkit.core.commands import run_command
from clusterkit.core.model import SYNC_LIMIT_MIB, LaunchPlan, NodeCommand, Runtime
from clusterkit.core.notification import parse_way
from clusterkit.executors import executor_for
from clusterkit.executors.node.notify import obstacle
from clusterkit.executors.run.dependencies import Dependencies, Dependency
from clusterkit.executors.run.runfolder import RunFolder, Submission, read_submission
from clusterkit.jobs.starter import leave_behind
from clusterkit.jobs.submit import provenance
from clusterkit.jobs.submit.hand_over import (
    conditions_of,
    hand_over,
    require_engine,
    require_package,
    require_runnable,
)
from clusterkit.jobs.submit.preflight import Passed, SubmitCallbacks, chosen_mode, pass_gate
from clusterkit.jobs.submit.request import JobRequest
from clusterkit.jobs.submit.snapshot import in_words, read_snapshot, sent_snapshot
from clusterkit.jobs.watch import cancel
from clusterkit.launch.array.spec import Sweep

_CROWD = 32
"""So many processes for each CPU of this machine are a mistake."""
_SOON_S = 2.0
"""For so long sinfo may think of its answer; it is only about a warning."""
_UNLESS_TOLD = 'IFS= read -r run && { read -r over || exec "$@" "$run"; }'


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What could be started, as far as it shows without asking anybody."""

    request: JobRequest
    plans: tuple[LaunchPlan, ...]
    """Of the job, or of each job of an array in order."""
    mode: str
    """What is to be asked of preflight first."""
    after: tuple[Dependency, ...]

    @property
    def plan(self) -> LaunchPlan:
        """The plan of the job, or of the first of an array."""
        return self.plans[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRequest(JobRequest):
    """A job whose script is one of our programs, which travels in the node script.

    Nodes need not see where clusterkit is installed: the script and what it imports are written
    into `CK_TMP` there.
    """

    program: Mapping[str, str]
    """Name and text of each file; the script is the one that `script` of the job is called."""

    def plans(
        self, sweep: Sweep | None = None, *, also_exclude: tuple[str, ...] = ()
    ) -> tuple[LaunchPlan, ...]:
        """Return the plans, with the program on board.

        Raises:
            UserError: as for any job.
        """
        return tuple(
            replace(
                plan,
                command=self._carrying(plan.command, plan.script),
                one_host_command=self._carrying(plan.one_host_command, plan.script),
            )
            for plan in JobRequest.plans(self, sweep, also_exclude=also_exclude)
        )

    def _carrying(self, command: NodeCommand, script: str) -> NodeCommand:
        there = (Runtime.TMP, f"/{PurePath(script).name}")
        return replace(
            command,
            argv=tuple(there if word == script else word for word in command.argv),
            files={**command.files, **self.program},
        )


def prepare(request: JobRequest, sweep: Sweep | None = None) -> Prepared:
    """Return what would be submitted: one job, or one for each element of a sweep.

    Raises:
        UserError: it cannot be, with the place of what is wrong.
    """
    plans = request.plans(sweep)
    plan = plans[0]
    with request.placing():
        mode = chosen_mode(request.get("preflight"), plan)
        require_runnable(plan)
        conditions = conditions_of(request.get("after") or (), plan)
    cpus = os.cpu_count() or 1
    if plan.cluster.kind.shares_machine and plan.processes > _CROWD * cpus:
        request.warn(
            f"{plan.processes:,} processes on this machine, which has {cpus:,} CPUs:"
            " --nodes and --gpus-per-node say how many"
        )
    if plan.cluster.kind.shares_machine:
        for way in map(parse_way, (*plan.on_end, *plan.on_failure, *plan.on_hang_tell)):
            if (why := obstacle(way, platform.node())) is not None:
                request.warn(f"`{way}` would fail: {why}")
        if request.get("cluster") is None and _nobody_chose() and _slurm_is_here():
            request.warn(
                "Slurm is here, and this job runs on this machine alone, without Slurm:\n"
                "  `clusterkit init` writes a configuration for it (--cluster local: as now)"
            )
    return Prepared(request=request, plans=plans, mode=mode, after=conditions)


def _nobody_chose() -> bool:
    """Tell whether no file and no variable says which cluster jobs go to."""
    settings = load_settings()
    return not settings.files and settings.origin("default_cluster") is DEFAULT_ORIGIN


def _slurm_is_here() -> bool:
    """Tell whether a Slurm answers that might be meant; within a job of it, it is not."""
    if "SLURM_JOB_ID" in os.environ or shutil.which("sbatch") is None:
        return False
    answer = run_command(("sinfo", "--noheader", "--format=%P"), timeout_s=_SOON_S)
    return answer.ok and bool(answer.output.strip())


def check(prepared: Prepared, callbacks: SubmitCallbacks) -> Passed:
    """Check the nodes for the job, or the first of an array; return the plan to hand over.

    From what it starts is noted as well, once for all.

    Raises:
        PreflightFailedError: preflight found something, and nobody said to go on.
        UserError, RemoteError: as `pass_gate`, or it asks for more than there is.
    """
    require_package(prepared.plan)
    require_engine(prepared.plan)
    # Before the nodes are asked: a job that asks for more than there is reaches none of them.
    check_limits = executor_for(prepared.plan.cluster.kind).check_limits
    boots = prepared.mode != "off" and check_limits(prepared.plan)
    passed = pass_gate(prepared.request, prepared.plan, prepared.mode, callbacks)
    if passed.without:
        boots = check_limits(passed.plan)
    passed = dataclasses.replace(passed, boots=boots and not _forbids(prepared.request))
    job_python = provenance.job_python(passed.plan)
    noted = {provenance.FILE: provenance.provenance_of(Path.cwd(), job_python)}
    passed = dataclasses.replace(passed, documents={**passed.documents, **noted})
    several = len(prepared.plans) > 1
    sent = sent_snapshot(passed.plan, several=several)
    if sent is not None or not prepared.request.get("snapshot"):
        return dataclasses.replace(passed, snapshot=sent)
    limit_mib = prepared.request.get("sync_limit") or SYNC_LIMIT_MIB
    snapshot = read_snapshot(passed.plan, limit_mib, several=several)
    for line in in_words(snapshot):
        callbacks.note(line)
    return dataclasses.replace(passed, snapshot=snapshot)


def _forbids(request: JobRequest) -> bool:
    """Tell whether Slurm is told by the user himself never to put the job back."""
    settings = (*request.flags.get("set", ()), *request.from_file.get("set", ()))
    return any(str(one).replace("_", "-").startswith("sbatch.no-requeue") for one in settings)


def start(
    prepared: Prepared,
    *,
    callbacks: SubmitCallbacks,
    command_line: Sequence[str] = (),
    begun: Callable[[RunFolder], None] | None = None,
) -> tuple[LaunchPlan, RunFolder, Submission]:
    """Check the nodes and hand the job over; return its plan, which may leave out unhealthy nodes.

    Raises:
        PreflightFailedError: preflight found something, and nobody said to go on.
        UserError, RemoteError: as `pass_gate` and `hand_over`.
    """
    passed = check(prepared, callbacks)
    dependencies = Dependencies(after=prepared.after)
    run, submission = hand_over(
        passed.plan,
        passed,
        dependencies,
        command_line=command_line,
        note=callbacks.note,
        show=callbacks.show,
        begun=begun,
    )
    leave_behind([run])
    return passed.plan, run, submission


@contextmanager
def in_foreground(
    prepared: Prepared, *, callbacks: SubmitCallbacks, command_line: Sequence[str]
) -> Iterator[tuple[LaunchPlan, RunFolder, Submission]]:
    """Do as `start` for a block that stays until the end: interrupted or killed, it leaves no job.

    Raises:
        PreflightFailedError, UserError, RemoteError: as `start`.
    """
    known: list[RunFolder] = []
    with ended_with_client() as watch:

        def begun(run: RunFolder) -> None:
            known.append(run)
            watch(run)

        try:
            yield start(prepared, callbacks=callbacks, command_line=command_line, begun=begun)
        except KeyboardInterrupt:
            # It may have been handed over already.
            for run in known:
                if read_submission(run) is not None:
                    cancel(run)
            raise


@contextmanager
def ended_with_client() -> Iterator[Callable[[RunFolder], None]]:
    """Cancel a job should this process be killed within the block, where nothing of it can.

    Which one, is told to what is yielded. A shell waits for a word on a pipe, in a session of its
    own; the kernel closes the pipe when the process has ended, however that was.
    """
    with subprocess.Popen(
        ("sh", "-c", _UNLESS_TOLD, "sh", sys.executable, "-P", "-m", "clusterkit", "cancel"),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as shell:

        def watch(run: RunFolder) -> None:
            if shell.stdin is not None:
                with suppress(OSError):  # somebody may have killed the shell
                    shell.stdin.write(os.fsencode(run.path.absolute()) + b"\n")
                    shell.stdin.flush()

        try:
            yield watch
        finally:
            with suppress(OSError):
                shell.communicate(b"over\nover\n")
