"""sbatch's refusals, each with what to change in clusterkit's own words.

A refusal has to be proven: sbatch may time out, or be killed, after the controller has accepted.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from clusterkit.core.commands import TIMED_OUT, Answer, run_command
from clusterkit.core.data import read_table
from clusterkit.core.errors import did_you_mean
from clusterkit.core.model import LaunchPlan
from clusterkit.executors.base import RefusalError
from clusterkit.launch.sbatch_options import OURS

_HINTS = tuple(
    (re.compile(row["pattern"], re.IGNORECASE), row["key"], row["hint"])
    for row in read_table(__file__, "refusal_hints.tsv")
)
_NO_HINT = (None, "", "")
_SINFO_S = 5.0
_FAILED = "Batch job submission failed:"
"""What the real sbatch says last, of every request that it has made (sbatch.c)."""
_UNPROVEN = re.compile(
    r"timed out|unable to contact|zero bytes|zero length|unexpected m"
    r"|(send|receive|connect\w{0,9}|shutdown) failure"
    r"|insane message|header lengths|entire message|incompatible versions"
    r"|connection (re|forced)|missing socket|rate limit|authenticat|munge|credential|broken pipe"
    r"|standby|not connected|no route to host|network is|temporarily un|interrupted system call"
    r"|shutting do",
    re.IGNORECASE,
)
"""Errors of communication: slurm_errno.c below 2000 and from 5000 on, and errno(3)."""
_ENDS = frozenset({*range(1, 124), 255})
"""Exit codes of a program that has ended by itself, not of `timeout`, `env` or a signal.

255 is that of an sbatch which does not understand its options.
"""


def refusal(answer: Answer, plan: LaunchPlan, script: Path) -> RefusalError | None:
    """Return the error for an sbatch that has certainly not submitted the job; None for others.

    It has sbatch's own words, and a hint.
    """
    if not answer.ran:
        hint = f"submit where Slurm is installed (cluster {plan.cluster.name} is of kind slurm), "
        return RefusalError(answer.errors, hint=f"{hint}or use --cluster local")
    if not _is_proven(answer):
        return None
    message = own_message(answer)
    return RefusalError(
        f"sbatch refused the job: {message}",
        hint=_hint(message, plan) or f"the script that was refused: {script}",
    )


def own_message(answer: Answer) -> str:
    """Return the message of sbatch, or how it ended."""
    if answer.code == TIMED_OUT:
        return _own_message(answer.errors)
    ended = f"it was ended by signal {-answer.code}" if answer.code < 0 else f"exit {answer.code}"
    message = _own_message(answer.errors) or _own_message(answer.output)
    return message or (ended if answer.code else "it printed no job id")


def accepted_id(output: str) -> str | None:
    """Return the id that `sbatch --parsable` prints (`ID` or `ID;CLUSTER`), on the last such line.

    A site's own sbatch may say anything beside it.
    """
    ids = re.findall(r"^(?:Submitted batch job )?(\d{1,18})(?:;\S+)?\s*$", output, re.MULTILINE)
    return ids[-1] if ids else None


def _is_proven(answer: Answer) -> bool:
    """Tell whether the controller refused the request, or sbatch never made one."""
    lines = [line.strip() for line in answer.errors.splitlines() if line.strip()]
    if answer.code not in _ENDS or accepted_id(answer.output) or not lines:
        return False
    answers = [line.partition(_FAILED)[2] for line in lines if _FAILED in line]
    if any(_UNPROVEN.search(line) for line in lines if _FAILED not in line):
        return False
    if answers:
        return all(_is_controllers(answer) for answer in answers)
    return any(line.startswith("sbatch: ") for line in lines)


def _is_controllers(answer: str) -> bool:
    """Tell whether the controller refused with that; what stands in brackets differs by release."""
    text = answer.partition(" (")[0].strip()
    return bool(text) and any(known.startswith(text) for known in _controllers_refusals())


@functools.cache
def _controllers_refusals() -> tuple[str, ...]:
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    return tuple(line for line in text.splitlines() if not line.startswith("#"))


def _own_message(text: str) -> str:
    lines = [re.sub(r"^sbatch: (error: )?", "", line.strip()) for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith('Try "sbatch --help"')]
    return "\n".join(dict.fromkeys(lines))


def _asked_for(message: str, plan: LaunchPlan) -> str | None:
    """Return what to change where sbatch names an option that only the user or the site wrote."""
    for option in re.findall(r"--([a-z][a-z0-9-]*)", message):
        if option in plan.cluster.extra_directives:
            return f"remove {option} from `extra_directives` of cluster {plan.cluster.name}"
        if option in plan.directives and option not in OURS:
            unknown = "unrecognized option" in message
            near = did_you_mean(option, OURS, alike=0.8) if unknown else None
            return near or f"remove --set sbatch.{option}, or give it another value"
    return None


def _hint(message: str, plan: LaunchPlan) -> str | None:
    change = _asked_for(message, plan)
    if change is not None:
        return change
    named = (part.directives.get("partition") or part.cluster.partition for part in plan.parts)
    partition = ", ".join(dict.fromkeys(name or "the site's default" for name in named))
    _, key, text = next((row for row in _HINTS if row[0].search(message)), _NO_HINT)
    hint = text.format(cluster=plan.cluster.name, partition=partition)
    if not key:
        return hint or None
    if value := _typed(plan, key):
        near = _near_partition(value) if key == "partition" else None
        return f"--set sbatch.{key}={value}: {near or hint.removeprefix('to ')}"
    value = plan.directives.get(key) or ""
    if key == "partition" and (near := _near_partition(value)) is not None:
        return f"`partition: {value}` of cluster {plan.cluster.name}: {near}"
    return (
        f"set `{key}` of cluster {plan.cluster.name}{' ' if hint.startswith('to ') else '; '}{hint}"
    )


def _typed(plan: LaunchPlan, key: str) -> str | None:
    """Return the value of an option that `--set` gave, and not the configuration."""
    value = plan.directives.get(key)
    ours = (getattr(plan.cluster, key), plan.cluster.extra_directives.get(key))
    return value if value not in ours else None


def _near_partition(name: str) -> str | None:
    listed = run_command(["sinfo", "--noheader", "--format=%R"], timeout_s=_SINFO_S)
    return did_you_mean(name, listed.output.split()) if listed.ok else None
