"""What Slurm says of jobs: squeue first, because it needs no accounting; sacct for older ones.

squeue lists ended jobs too, for as long as slurmctld keeps them (MinJobAge, five minutes unless
the site says otherwise). Job ids are used again after a reset of the controller, so a job counts
as ours only where its script (squeue) or its name (sacct) is ours too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from clusterkit.core.commands import run_command
from clusterkit.core.data import read_table
from clusterkit.core.errors import RemoteError, UserError
from clusterkit.core.hosts import hostlist
from clusterkit.core.model import JobState
from clusterkit.executors.base import SchedulerState
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.executors.slurm.limits import seconds_of
from clusterkit.transport import slurm_nodes
from clusterkit.transport.probe import Unparsed
from clusterkit.transport.slurm_nodes import SlurmNode

_ROWS = {row["slurm"]: row for row in read_table(__file__, "states.tsv")}
_STATES = {word: JobState(row["state"]) for word, row in _ROWS.items()}

_LOST, _NOT_BOOTED = (_ROWS[word]["reason"] for word in ("NODE_FAIL", "BOOT_FAIL"))
_NO_NODES = re.compile(r"Nodes required for job are DOWN|ReqNodeNotAvail")
_PUT_BACK = "BeginTime"
"""Why a job waits a while after Slurm has put it back, as it does where a node did not start."""
_OF_JOB = re.compile(r"(?<!\S)(FailedNode|NodeList|Partition|Reason|Restarts|StartTime)=(\S+)")
_BAD = {*slurm_nodes.BROKEN, *slurm_nodes.FAILING}
_NOTHING = frozenset({"", "(null)", "None", "none"})

_SQUEUE_FORMAT = "%i|%T|%r|%S|%l|%o"
_COMPONENT = re.compile(r"\+\d{1,7}$")
_CANCELLED, _COMPLETING = "CANCELLED", "COMPLETING"
_SACCT_FIELDS = "JobIDRaw,State,ExitCode,Start,TimelimitRaw,JobName"
_UNKNOWN_ID = "invalid job id"
"""squeue's error where the only id it was asked for is not known any more."""
_DAY_S = 86400
_MOST_ROWS = 5
"""So many groups of nodes that are down are told of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What a job must be for its id to mean ours."""

    script: Path
    name: str
    since: float
    """When it was submitted, in seconds since the epoch."""

    @classmethod
    def of(cls, run: RunFolder, submission: Submission) -> Query:
        """Return what the job of this run must be."""
        return cls(script=run.sbatch, name=submission.name, since=submission.submitted_at)


def query(queries: Mapping[str, Query]) -> dict[str, SchedulerState]:
    """Return the state of every job of these ids that Slurm still knows and that is ours.

    Raises:
        RemoteError: squeue is missing or could not ask; that a job has gone is another answer.
    """
    if not queries:
        return {}
    found = parse_squeue(squeue("-j", ",".join(queries), "-o", _SQUEUE_FORMAT), queries)
    missing = {job_id: job for job_id, job in queries.items() if job_id not in found}
    if missing:
        found |= _query_accounting(missing)
    alone = len(queries) == 1  # of an array Slurm would be asked a thousand questions
    for job_id, known in found.items():
        if why := _explanation(job_id, known, alone=alone):
            found[job_id] = replace(known, reason=f"{known.reason}: {why}" if known.reason else why)
    return found


def _explanation(job_id: str, known: SchedulerState, *, alone: bool) -> str:
    """Return what Slurm's records add to the reason of a job; empty where that is nothing."""
    if known.reason in {_LOST, _NOT_BOOTED}:
        return explain_node_failure(job_id)
    if alone and known.word == "CONFIGURING":
        return explain_boot(job_id)
    if alone and _NO_NODES.match(known.reason or ""):
        return explain_missing_nodes(_job(job_id), "down,drain,fail")
    if alone and known.reason == _PUT_BACK and (job := _job(job_id)).get("Restarts", "0") != "0":
        return explain_missing_nodes(job, "down")
    return ""


def components_of(job_id: str) -> tuple[tuple[str, ...], ...]:
    """Return the nodes of a job that runs, in Slurm's order, by component; mostly there is one.

    Raises:
        RemoteError: squeue does not say which they are.
    """
    # Components have ids one after the other, and are listed in any order.
    answer = run_command(["squeue", "-h", "-t", "R", "-j", job_id, "-o", "%A|%N"])
    rows = [line.strip().partition("|") for line in answer.output.splitlines()]
    listed = sorted((int(own), names) for own, _, names in rows if own.isdigit() and names)
    nodes = tuple(hostlist.expand(names, source="squeue") for _, names in listed)
    if answer.code or not nodes:
        message = answer.errors.strip() or "squeue lists none"
        raise RemoteError(
            f"Slurm does not say on which nodes {job_id} runs: {message}",
            hint=f"squeue -j {job_id} shows what it says",
        )
    return nodes


def nodes_of(job_id: str) -> tuple[str, ...]:
    """Return the nodes of a job that runs, in the order of their ranks.

    Raises:
        RemoteError: squeue does not say which they are.
    """
    return tuple(node for component in components_of(job_id) for node in component)


def exit_code_of(job_id: str) -> int | None:
    """Return the exit code that Slurm holds of the batch script, as a shell would give it."""
    answer = run_command(["scontrol", "show", "job", "-o", job_id])
    match = re.search(r"\bExitCode=(\d+):(\d+)", answer.output)
    return shell_code(match[1], match[2]) if match else None


def parse_squeue(text: str, queries: Mapping[str, Query]) -> dict[str, SchedulerState]:
    """Read `squeue -h -t all -o "%i|%T|%r|%S|%l|%o"`; lines that are no rows are passed over.

    Of a heterogeneous job (`12+0`, `12+1`) the first component counts, whose script it is. Slurm
    says of that one that it failed, where another was cancelled by itself: that it was is known
    once that one has completed.
    """
    found: dict[str, SchedulerState] = {}
    ended, completing = dict[str, int](), set[str]()
    for named, word, reason, start, limit, command in _rows(text, queries, fields=6):
        job_id, _, component = named.partition("+")
        if component not in {"", "0"}:
            if word == _CANCELLED:
                ended[job_id] = int(component) + 1
            elif word == _COMPLETING:
                completing.add(job_id)
        elif is_script(command.strip(), queries[job_id].script):
            state = state_of(word, reason=reason.strip())
            found[job_id] = replace(state, start=moment_of(start), limit_s=seconds_of(limit))
    for job_id in ended.keys() & found.keys():
        if found[job_id].state is JobState.FAILED:
            cancelled = state_of(_CANCELLED, reason=f"component {ended[job_id]} was cancelled")
            found[job_id] = _at_times_of(found[job_id], cancelled)
    for job_id in completing & found.keys() - ended.keys():
        if found[job_id].state is JobState.FAILED:
            found[job_id] = _at_times_of(found[job_id], state_of(_COMPLETING))
    return found


def _at_times_of(job: SchedulerState, state: SchedulerState) -> SchedulerState:
    return replace(state, start=job.start, limit_s=job.limit_s)


def parse_sacct(text: str, queries: Mapping[str, Query]) -> dict[str, SchedulerState]:
    """Read `sacct -n -X -P -o JobIDRaw,State,ExitCode,Start,TimelimitRaw,JobName`."""
    found = {}
    for job_id, word, code, start, minutes, name in _rows(text, queries, fields=6):
        if name == queries[job_id].name:
            status, _, signum = code.partition(":")
            known = status.isdigit() and signum.isdigit()
            state = state_of(word, code=shell_code(status, signum) if known else None)
            limit_s = 60 * int(minutes) if minutes.isdecimal() else None
            found[job_id] = replace(state, start=moment_of(start), limit_s=limit_s)
    return found


def _rows(text: str, queries: Mapping[str, Query], *, fields: int) -> Iterator[list[str]]:
    """Yield the fields of each line about a job that was asked for."""
    rows = (line.split("|", fields - 1) for line in text.splitlines())
    known = (row for row in rows if len(row) == fields)
    return (row for row in known if _COMPONENT.sub("", row[0]) in queries)


def moment_of(text: str) -> float | None:
    """Return a local time as squeue prints it in seconds since the epoch; None for `N/A`."""
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def is_script(command: str, script: Path) -> bool:
    """Tell whether what Slurm calls the command of a job is this script, by whatever path.

    The folder of a run has a name that no other has; only paths with that name are resolved,
    which takes a look at the disk.
    """
    if command == str(script):
        return True
    same_end = Path(command).parts[-2:] == script.parts[-2:]
    return same_end and os.path.realpath(command) == os.path.realpath(script)


def state_of(word: str, *, reason: str = "", code: int | None = None) -> SchedulerState:
    """Translate a state as Slurm prints it, such as `CANCELLED by 1000` or `NODE_FAIL`."""
    first = word.split(maxsplit=1)[0].rstrip("+") if word.split() else ""
    state = _STATES.get(first, JobState.UNKNOWN)
    known = reason if reason not in {"None", "(null)", ""} else None
    usual = _ROWS[first]["reason"] if first in _ROWS else ""
    return SchedulerState(
        state=state,
        word=first,
        reason=usual or (known if state is not JobState.SUCCEEDED else None),
        exit_code=code if state.final else None,
    )


def explained(word: str) -> tuple[str, JobState, str] | None:
    """Return Slurm's name of a state, what it is for us, and its meaning; None for no state.

    The word is the name in any case, or squeue's short form of it, such as `CG`.

    >>> explained("CG")[0]
    'COMPLETING'
    """
    for name, row in _ROWS.items():
        if word.upper() == name or (word and word == row["short"]):
            return name, JobState(row["state"]), row["words"]
    return None


def shell_code(status: str, signum: str) -> int:
    """Return Slurm's `status:signal` as a shell would: 128 + N for a signal.

    Slurm writes a batch script that ended with 143 as `143:0` or `0:15`, by release.
    """
    return 128 + int(signum) if int(signum) else int(status)


def _query_accounting(queries: Mapping[str, Query]) -> dict[str, SchedulerState]:
    """Ask sacct. Only how a job ended counts.

    A job that squeue does not list, and that is still running here, is one whose end never reached
    the database (a "runaway job"): it would run for ever.
    """
    start = since(min(job.since for job in queries.values()))
    known = parse_sacct(sacct("-S", start, "-j", ",".join(queries), "-o", _SACCT_FIELDS), queries)
    # An empty word, because a state of the database alone must not count as one that may requeue.
    return {job_id: replace(state, word="") for job_id, state in known.items() if state.state.final}


def squeue(*options: str) -> str:
    """Return what squeue lists of jobs in any state.

    Raises:
        RemoteError: squeue is missing or could not ask; that a job has gone is another answer.
    """
    answer = run_command(["squeue", "-h", "-t", "all", *options], environment=_plain_times())
    if answer.code and _UNKNOWN_ID not in answer.errors.lower():
        output = answer.errors.strip() or "squeue failed"
        raise RemoteError(f"Slurm does not answer: {output}", hint="try again; or: scontrol ping")
    return answer.output


def _plain_times() -> dict[str, str]:
    # Whoever has set another format of times has it in all that squeue and sacct print.
    return {**os.environ, "LC_ALL": "C", "SLURM_TIME_FORMAT": "standard"}


def sacct(*options: str) -> str:
    """Return what accounting has of jobs; nothing where it is disabled, as at many small sites."""
    answer = run_command(["sacct", "-n", "-X", "-P", *options], environment=_plain_times())
    return answer.output if answer.code == 0 else ""


def since(moment: float) -> str:
    """Return the day before a moment (in seconds since the epoch) as sacct takes it."""
    return datetime.fromtimestamp(moment - _DAY_S, tz=UTC).strftime("%Y-%m-%d")


def explain_boot(job_id: str) -> str:
    """Return how many nodes of a job are up and which still boot; empty where all are up."""
    job = _job(job_id)
    nodes = _nodes(job.get("NodeList", ""))
    booting = [node for node in nodes if slurm_nodes.asleep(node.states)]
    if not booting:
        return ""
    # Slurm from 23.02 on says of a partition whether it has one of its own.
    shown = [["partition", job["Partition"]]] if "Partition" in job else []
    answers = (run_command(["scontrol", "show", *what]).output for what in (*shown, ["config"]))
    limits = (re.search(r"\bResumeTimeout\s*=\s*(\d+)", answer) for answer in answers)
    limit = next(filter(None, limits), None)
    given_up = f", given up after {limit[1]} s (ResumeTimeout)" if limit else ""
    since_when = f" since {job['StartTime'].rpartition('T')[2]}" if "StartTime" in job else ""
    which = _folded([node.name for node in booting])
    up = f"{len(nodes) - len(booting)} of {len(nodes)} nodes up"
    return f"{up}, {which} boot{since_when}{given_up}"


def explain_missing_nodes(job: Mapping[str, str], states: str) -> str:
    """Return which nodes of the partition that a job waits for are in these states, and why."""
    asked = ["sinfo", "-h", "-p", job.get("Partition", ""), f"--states={states}"]
    listed = run_command([*asked, "-o", "%N|%T|%E"])
    rows = [line.split("|", 2) for line in listed.output.splitlines()[:_MOST_ROWS]]
    return "; ".join(
        f"{names} is {state}" + (f", {reason}" if reason not in _NOTHING else "")
        for names, state, reason in (row for row in rows if len(row) == 3)
    )


def _job(job_id: str) -> dict[str, str]:
    """Return what the record of a job says of its nodes."""
    answer = run_command(["scontrol", "show", "job", "-o", job_id])
    found: dict[str, str] = {}
    for key, text in _OF_JOB.findall(answer.output):  # a line for each component
        if text not in _NOTHING:
            also = f"{found[key]}," if key == "NodeList" and key in found else ""
            found[key] = also + text
    return found


def explain_node_failure(job_id: str) -> str:
    """Return which node it was and why, as far as Slurm's records have it.

    The controller may have lost its own link: then all nodes answer again, and no record names one.
    """
    job = _job(job_id)
    listed = job.get("NodeList") or _accounted(job_id)
    failed = job.get("FailedNode")
    because = f" (Slurm's reason: {job['Reason']})" if "Reason" in job else ""
    if not failed and not listed:
        return f"Slurm's record names no node{because}"
    nodes = _nodes(failed or listed)
    bad = [node for node in nodes if _BAD & {*slurm_nodes.faults(node.states)}]
    own_link = ", all at once: perhaps the controller's own link was cut"
    if bad:
        all_at_once = own_link if len(bad) == len(nodes) > 1 else ""
        return "; ".join(_states_of(bad)) + all_at_once + because
    of = failed or f"one of {listed}"
    again = "in good order again by now" if nodes else "of which Slurm says no more"
    return f"{of}, {again}{because}"


def _nodes(listed: str) -> list[SlurmNode]:
    answer = run_command(["scontrol", "show", "node", "-o", listed])
    found = []
    for record in slurm_nodes.split_records(answer.output if answer.code == 0 else "").values():
        with suppress(Unparsed):
            found.append(slurm_nodes.parse(record))
    return found


def _accounted(job_id: str) -> str:
    found = sacct("-j", job_id, "-o", "NodeList").strip()
    return "" if found in _NOTHING or "\n" in found or found == "None assigned" else found


def _states_of(bad: list[SlurmNode]) -> list[str]:
    """Return which nodes are in which state and why, those alike together."""
    alike: dict[tuple[str, str], list[str]] = {}
    for node in bad:
        alike.setdefault(("+".join(node.states).lower(), node.reason), []).append(node.name)
    lines = []
    for (state, reason), names in alike.items():
        lines.append(f"{_folded(names)} is {state}" + (f", {reason}" if reason else ""))
    return lines


def _folded(names: list[str]) -> str:
    try:
        return hostlist.fold_set(names)
    except UserError:
        return ", ".join(names)
