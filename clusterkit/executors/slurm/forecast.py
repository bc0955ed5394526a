"""What Slurm says of a job before it is submitted: its start, and the limits that it exceeds.

Nothing is submitted, held or reserved: `sbatch --test-only`, and what scontrol and sacctmgr list.
Limits of accounting are told where sacctmgr answers; a site without slurmdbd has none.
"""

from __future__ import annotations

import getpass
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from clusterkit.core.commands import run_command
from clusterkit.core.errors import Problem
from clusterkit.core.hosts import hostlist
from clusterkit.core.model import LaunchPlan
from clusterkit.executors.base import Forecast
from clusterkit.executors.slurm import limits
from clusterkit.executors.slurm.limits import Partition, clock, seconds_of
from clusterkit.executors.slurm.refusals import own_message, refusal
from clusterkit.executors.slurm.states import moment_of

_START = re.compile(
    r"to start at (\S+)(?: on cluster \S+)?(?: a)? using \d+ processors? on (?:nodes )?(\S+)"
)
"""What `sbatch --test-only` prints on stderr (Slurm's api/allocate.c), 26.05 with "a"."""
_NO_SLURM = "fatal: "
"""How sbatch ends that finds no configuration, munge or controller: nobody has refused anything."""
_TIMEOUT_S = 20.0
_MOST_RESERVATIONS = 3
_LONGEST = 1000
_TRES = {
    "MaxTRES": "a job has at most",
    "MaxTRESPU": "the jobs of a user together have at most",
    "GrpTRES": "all its jobs together have at most",
}
"""Columns of sacctmgr(1) that bound what one job may ask for, and what they say."""
_ASSOCIATION = ("Account", "DefaultQOS", "MaxWall", "MaxTRES", "GrpTRES")
_QOS = ("Name", "MaxWall", *_TRES)
Record = Mapping[str, str]


def forecast(plan: LaunchPlan, script: str) -> Forecast:
    """Ask Slurm of a job with this plan and script; say so where it does not answer."""
    of_parts = [limits.partitions_of(part) for part in plan.parts]
    problems = limits.problems_of_parts(plan, of_parts) + limits.unknown_nodes(plan, of_parts)
    partitions = [partition for some in of_parts for partition in some]
    listed = run_command(["scontrol", "show", "reservation", "-o"], timeout_s=_TIMEOUT_S)
    windows, now = parse_records(listed.output), time.time()
    problems += own_reservation(plan, windows, now) if listed.ok else []
    problems += [problem for limit in _limits_of(plan) for problem in exceeded(plan, limit)]
    known = Forecast(
        problems=tuple(problems), notes=tuple(upcoming(plan, partitions, windows, now))
    )
    answer = run_command(
        ["sbatch", "--test-only", f"--chdir={plan.workdir}"],
        timeout_s=_TIMEOUT_S,
        given=script.encode(),
    )
    if not answer.ran:
        return replace(known, unknown=answer.errors)
    found = _START.search(answer.errors + answer.output)
    if found is not None and (starts_at := moment_of(found[1])) is not None:
        return replace(known, starts_at=starts_at, nodes=found[2][:_LONGEST])
    refused = refusal(answer, plan, Path("job.sbatch"))
    if refused is None or _NO_SLURM in answer.errors:
        return replace(known, unknown=own_message(answer).splitlines()[-1])
    message = own_message(answer).removeprefix("allocation failure: ")
    would = Problem(message=f"Slurm would refuse the job: {message}", hint=refused.hint)
    return replace(known, problems=(*known.problems, would))


def parse_records(text: str) -> list[Record]:
    """Read what `scontrol show ... -o` prints: a line of KEY=VALUE words for each object."""
    lines = (dict(word.partition("=")[::2] for word in line.split()) for line in text.splitlines())
    return [line for line in lines if "ReservationName" in line]


def own_reservation(plan: LaunchPlan, windows: Sequence[Record], now: float) -> list[Problem]:
    """Return why the job cannot run in the reservation that it names; nothing where it names none.

    A job has to end before its reservation does (scontrol(1), RESERVATIONS).
    """
    name = plan.directives.get("reservation")
    if not name:
        return []
    found = next((one for one in windows if one["ReservationName"] == name), None)
    if found is None:
        names = ", ".join(one["ReservationName"] for one in windows) or "none"
        message = f"there is no reservation {name}"
        return [Problem(message=message, hint=f"scontrol show reservation lists: {names}")]
    begin, end = moment_of(found.get("StartTime", "")), moment_of(found.get("EndTime", ""))
    if end is None or plan.time_limit_s is None:
        return []
    room = int(end - max(now, begin or now))
    if plan.time_limit_s <= room:
        return []
    left = f"{clock(room)} are left of it" if room > 0 else "it is over"
    message = f"{clock(plan.time_limit_s)} asked for in reservation {name}, and {left}"
    return [
        Problem(message=message, hint=f"--time {clock(room)}" if room > 0 else "choose another")
    ]


def upcoming(
    plan: LaunchPlan, partitions: Sequence[Partition], windows: Sequence[Record], now: float
) -> Iterator[str]:
    """Yield which reservations of others begin while the job would run, if it started now.

    Slurm starts a job on reserved nodes only where its time limit ends before they are taken.
    """
    names = {node.name for partition in partitions for node in partition.nodes}
    shown = 0
    for one in windows:
        begin, end = moment_of(one.get("StartTime", "")), moment_of(one.get("EndTime", ""))
        held = set(hostlist.expand(one.get("Nodes", "").replace("(null)", "")))
        if begin is None or end is None or begin <= now or shown == _MOST_RESERVATIONS:
            continue
        long = plan.time_limit_s is None or now + plan.time_limit_s > begin
        if long and held & names and one["ReservationName"] != plan.directives.get("reservation"):
            shown += 1
            nodes = hostlist.fold_set(held & names)
            yield (
                f"reservation {one['ReservationName']} takes {nodes} from {_local(begin)} to "
                f"{_local(end)}: only what ends before it starts there now "
                f"(--time {clock(int(begin - now))} or less)"
            )


def exceeded(plan: LaunchPlan, limit: Record) -> Iterator[Problem]:
    """Yield in what the job exceeds one row of sacctmgr, named under `where`."""
    where = limit["where"]
    most_s = seconds_of(limit.get("MaxWall", ""))
    if most_s is not None and plan.time_limit_s is not None and plan.time_limit_s > most_s:
        message = f"{clock(plan.time_limit_s)} asked for, but {where} allows {clock(most_s)}"
        yield Problem(message=message, hint=f"--time {clock(most_s)}")
    nodes = plan.nodes + plan.spares
    gpus = sum(
        (part.nodes + part.spares) * limits.gpus_per_node(part.directives) for part in plan.parts
    )
    for column, says in _TRES.items():
        most = dict(word.partition("=")[::2] for word in limit.get(column, "").split(","))
        for name, unit, count in (("node", "nodes", nodes), ("gres/gpu", "GPUs", gpus)):
            allowed = most.get(name, "")
            if allowed.isdigit() and count > int(allowed):
                yield Problem(
                    message=f"{count} {unit} asked for, but in {where} {says} {allowed} ({column})",
                    hint="ask for fewer, or for another account or QOS: "
                    "sacctmgr show assoc user=$USER format=account,qos",
                )


def _limits_of(plan: LaunchPlan) -> Iterator[Record]:
    """Yield the rows of accounting that apply to the job; none where nobody answers."""
    user = getpass.getuser()
    rows = _sacctmgr("assoc", f"user={user}", _ASSOCIATION)
    account = plan.directives.get("account")
    if account is None and len(rows) > 1:
        default = _sacctmgr("user", f"name={user}", ("DefaultAccount",))
        account = default[0]["DefaultAccount"] if default else None
    of_user = [row for row in rows if account is None or row["Account"] == account][:1]
    yield from ({**row, "where": f"account {row['Account']}"} for row in of_user)
    qos = plan.directives.get("qos") or next((row["DefaultQOS"] for row in of_user), "")
    if qos:
        found = _sacctmgr("qos", f"name={qos}", _QOS)
        yield from ({**row, "where": f"QOS {row['Name']}"} for row in found)


def _sacctmgr(kind: str, which: str, columns: Sequence[str]) -> list[Record]:
    command = ["sacctmgr", "-n", "-P", "show", kind, "where", which]
    answer = run_command([*command, f"format={','.join(columns)}"], timeout_s=_TIMEOUT_S)
    rows = [line.split("|") for line in answer.output.splitlines()] if answer.ok else []
    return [dict(zip(columns, row, strict=True)) for row in rows if len(row) == len(columns)]


def _local(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment, tz=UTC).astimezone():%m-%d %H:%M}"
