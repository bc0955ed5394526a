"""The `#SBATCH` directives of a job: the plan's, the site's own, and the user's last word."""

from __future__ import annotations

import re
from collections.abc import Mapping

from clusterkit.config.units import parse_time_limit
from clusterkit.core.data import read_table
from clusterkit.core.errors import UserError
from clusterkit.core.hosts import hostlist
from clusterkit.core.model import ClusterSpec, GpuRequest
from clusterkit.core.text import NOT_IN_A_LINE
from clusterkit.launch.options import JobSpec
from clusterkit.launch.validate import problem, refused, time_limit

NOTICE_S = 90
"""How long before the time limit USR2 is sent, so that a script can write a checkpoint; a quarter
of a limit that is short."""
_NOTICE_BELOW_S = 65536
"""sbatch(1) reads no more than 65535 seconds in `--signal`."""

_TABLE = tuple(read_table(__file__, "sbatch_options.tsv"))
OURS = frozenset(row["option"] for row in _TABLE if row["written"])
"""Options that `sbatch_directives` writes by itself; any other was asked for by name."""
_INSTEAD = {row["option"]: row["instead"] for row in _TABLE if row["instead"]}
"""Options that would contradict the plan, and what to use instead."""


def sbatch_directives(
    job: JobSpec, cluster: ClusterSpec, *, name: str, single_launcher: bool, slots: int
) -> Mapping[str, str | None]:
    """Return sbatch options by their long names; None for one that takes no value.

    `slots` are those of one node; a job of a `single_launcher` gets a Slurm task for each,
    any other job one task per node.

    Raises:
        UserError: a directive of the site or of the user cannot be one, or the notice is longer
            than the time limit.
    """
    min_nodes = job.nodes + job.spares
    nodes = f"{min_nodes}-{job.max_nodes}" if job.max_nodes else str(min_nodes)
    gpus = job.gpus_per_node or cluster.gpus_per_node or cluster.gpu_type
    sites = {
        "cpus-per-task": (cluster.cpus_per_node or 0) // (slots if single_launcher else 1),
        "mem": cluster.memory,
        "time": job.time or cluster.time,
        **{key: getattr(cluster, key) for key in ("partition", "account", "qos", "constraint")},
        "exclude": hostlist.fold(job.exclude),
    }
    extra = {key: value or None for key, value in cluster.extra_directives.items()}
    overrides = {key: value or None for key, value in job.sbatch_options.items()}
    # With a word about tasks Slurm counts them for MIN nodes, and gives no more than MIN (22.05).
    # The step of the job says it again in any case.
    tasks = not job.max_nodes or cluster.gpu_request is GpuRequest.GPUS_PER_TASK
    directives: dict[str, str | None] = {
        "job-name": name,
        "nodes": nodes,
        **({"ntasks-per-node": str(slots) if single_launcher else "1"} if tasks else {}),
        # Without a word about GPUs anywhere, a slot is a CPU process: Slurm is asked for none.
        **(gpu_request(cluster, slots, single_launcher=single_launcher) if gpus else {}),
        **{key: str(value) for key, value in sites.items() if value},
        "signal": f"USR2@{_notice_s(job, time_limit(job, cluster))}",
        "requeue" if job.requeue else "no-requeue": None,
        **({"no-kill": None} if job.max_nodes or job.restarts else {}),
        "open-mode": "append",
        "output": "%x-%j.out",
    }
    directives = {
        key: value
        for key, value in (directives | extra).items()
        if key not in cluster.skip_directives
    }
    for one, other in (("requeue", "no-requeue"), ("no-requeue", "requeue")):
        if one in overrides:
            directives.pop(other, None)
    directives |= overrides
    _check_directives(directives, overrides)
    return directives


def _notice_s(job: JobSpec, limit: str | None) -> int:
    limit_s = parse_time_limit(limit) if limit else None
    if job.notice is None:
        return NOTICE_S if limit_s is None else max(1, min(NOTICE_S, limit_s // 4))
    below_s = min(limit_s or _NOTICE_BELOW_S, _NOTICE_BELOW_S)
    if not 0 < job.notice < below_s:
        until = f"the time limit of {limit}" if below_s == limit_s else f"{below_s} seconds"
        raise refused("notice", job, until=until)
    return job.notice


def gpu_request(
    cluster: ClusterSpec, gpus: int, *, single_launcher: bool = False
) -> dict[str, str | None]:
    """Return the option that asks Slurm for `gpus` on each node, in the site's own way.

    `single_launcher` says that one task runs for the whole job and each GPU has a task.
    """
    typed = f"{cluster.gpu_type}:{gpus}" if cluster.gpu_type else str(gpus)
    match cluster.gpu_request:
        case GpuRequest.GPUS_PER_NODE:
            return {"gpus-per-node": typed}
        case GpuRequest.GRES:
            return {"gres": f"gpu:{typed}"}
        case GpuRequest.GPUS_PER_TASK:
            return {"gpus-per-task": "1" if single_launcher else typed}
        case GpuRequest.NONE:
            return {}


def _check_directives(
    directives: Mapping[str, str | None], overrides: Mapping[str, str | None]
) -> None:
    problems = [
        problem("decided-directive", option=key, instead=_INSTEAD[key])
        for key in overrides
        if key in _INSTEAD
    ]
    for key, value in directives.items():
        if not re.fullmatch(r"[a-z][a-z0-9-]*", key):
            problems.append(problem("directive-name", option=key))
        if value is not None and (bad := NOT_IN_A_LINE.search(value)) is not None:
            option = "--name" if key == "job-name" and key not in overrides else f"sbatch.{key}"
            what = (
                "a line break" if bad[0] in "\n\r\x85\u2028\u2029" else f"the character {bad[0]!r}"
            )
            problems.append(problem("directive-value", option=option, what=what))
    if problems:
        raise UserError(problems=problems)
