"""sbatch's refusals, each with what to change in clusterkit's own words."""

from __future__ import annotations

import re
from pathlib import Path

from clusterkit.commands import MISSING, TIMED_OUT, Answer
from clusterkit.directives import OURS
from clusterkit.errors import RemoteError
from clusterkit.executors.base import RefusalError
from clusterkit.model import LaunchPlan

_GPU_STYLES = "gpus-per-node, gres, gpus-per-task or none"

_HINTS: tuple[tuple[str, str], ...] = (
    (
        r"max ?submit|max ?jobs|job count limit|temporarily unable to accept",
        "you have as many jobs as you may: wait for some to end, or cancel some",
    ),
    (
        r"invalid partition|partition name",
        "set `partition` of cluster {cluster} to one that `sinfo -s` lists (now: {partition})",
    ),
    (
        r"group not permitted|not permitted to use this partition|access/permission denied",
        "you may not use partition {partition}: choose another one, or ask its administrators",
    ),
    (
        r"account",
        "set `account` of cluster {cluster}; yours: sacctmgr show assoc user=$USER format=account",
    ),
    (r"qos", "set `qos` of cluster {cluster}; yours: sacctmgr show assoc user=$USER format=qos"),
    (
        r"gres|generic resource|gpus|trackable resource",
        "set `gpu_request` of cluster {cluster} to what this site accepts: " + _GPU_STYLES,
    ),
    (
        r"time limit|maxtime|time specification",
        "ask for less with --time; `sinfo -o '%P %l'` lists what each partition allows",
    ),
    (r"memory", "set `memory` of cluster {cluster}; `sinfo -o '%P %m'` lists what nodes have (MB)"),
    (
        r"feature|constraint",
        "set `constraint` of cluster {cluster}; `sinfo -o '%P %f'` lists features",
    ),
    (
        r"node count|node configuration|more processors|too many (nodes|cpus|tasks)|cpu count",
        "ask for fewer nodes or GPUs; `sinfo -N -o '%N %c %m %G'` lists what there is",
    ),
    (
        r"unable to contact|zero bytes|connect failure|socket timed out|protocol authentication",
        "slurmctld does not answer; try again, or ask `scontrol ping`",
    ),
    (
        r"unrecognized option|invalid option|invalid --|unknown option",
        "this Slurm does not know the option: name it in `skip_directives` of cluster {cluster}",
    ),
    (r"wckey", "set one with --set sbatch.wckey=NAME"),
    (r"credential|munge", "munge does not answer on this machine: systemctl status munge"),
)


def refusal(answer: Answer, plan: LaunchPlan, script: Path) -> RemoteError:
    """Return the error for an sbatch that did not accept the job: its own words, and a hint.

    It is a `RefusalError` where the job is certain not to run.
    """
    if answer.code == MISSING:
        return RefusalError(
            answer.errors,
            hint=f"submit where Slurm is installed (cluster {plan.cluster.name} is of kind slurm), "
            "or use --cluster local",
        )
    if answer.code == TIMED_OUT:
        return RemoteError(
            f"{answer.errors}; the job may have been accepted all the same",
            hint="clusterkit status finds it if so",
        )
    words = _own_words(answer.errors) or _own_words(answer.output)
    return RefusalError(
        f"sbatch refused the job: {words or f'exit code {answer.code}'}",
        hint=_hint(words, plan) or f"the script that was refused: {script}",
    )


def _own_words(text: str) -> str:
    lines = [re.sub(r"^sbatch: (error: )?", "", line.strip()) for line in text.splitlines()]
    return "\n".join(dict.fromkeys(line for line in lines if line))


def _asked_for(words: str, plan: LaunchPlan) -> str | None:
    """Return what to change where sbatch names an option that only the user or the site wrote."""
    for option in re.findall(r"--([a-z][a-z0-9-]*)", words):
        if option in plan.cluster.extra_directives:
            return f"remove {option} from `extra_directives` of cluster {plan.cluster.name}"
        if option in plan.directives and option not in OURS:
            return f"remove --set sbatch.{option}, or give it another value"
    return None


def _hint(words: str, plan: LaunchPlan) -> str | None:
    asked_for = _asked_for(words, plan)
    if asked_for is not None:
        return asked_for
    for pattern, hint in _HINTS:
        if re.search(pattern, words, re.IGNORECASE):
            partition = plan.directives.get("partition") or plan.cluster.partition
            return hint.format(
                cluster=plan.cluster.name, partition=partition or "the site's default"
            )
    return None
