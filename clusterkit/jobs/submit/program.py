"""Jobs whose script is a program of ours, which travels in the node script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath

from clusterkit.core.model import LaunchPlan, NodeCommand, Runtime
from clusterkit.jobs.submit.request import JobRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRequest(JobRequest):
    """A job with one of our programs as its script.

    Nodes need not see where clusterkit is installed: the script and what it imports are written
    into `CK_TMP` there.
    """

    program: Mapping[str, str]
    """Name and text of each file; the script is the one that `script` of the job is called."""

    def plan(self, *, also_exclude: tuple[str, ...] = ()) -> LaunchPlan:
        """Return the plan, with the program on board.

        Raises:
            UserError: as for any job.
        """
        plan = JobRequest.plan(self, also_exclude=also_exclude)
        return replace(
            plan,
            command=self._carrying(plan.command, plan.script),
            one_host_command=self._carrying(plan.one_host_command, plan.script),
        )

    def _carrying(self, command: NodeCommand, script: str) -> NodeCommand:
        there = (Runtime.TMP, f"/{PurePath(script).name}")
        return replace(
            command,
            argv=tuple(there if word == script else word for word in command.argv),
            files={**command.files, **self.program},
        )
