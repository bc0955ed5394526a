"""Run an attempt of a job with `--restarts` as a step of its Slurm job, and decide what follows.

`python -m clusterkit.executors.node.step RUN_FOLDER srun ...`, by the batch script, which begins
once more where `restart-K.json` is there at the end. srun waits for a node that has gone until
Slurm notices; here the nodes' own word counts.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from clusterkit.core import files, processes
from clusterkit.core.commands import require_utf8, run_command
from clusterkit.core.errors import ClusterkitError
from clusterkit.core.hosts import hostlist
from clusterkit.core.model import JobState, NodeResult, Runtime
from clusterkit.core.timing import scaled
from clusterkit.executors.node.identity import Identity
from clusterkit.executors.node.notify import Ending, notify
from clusterkit.executors.node.supervisor import BLOCKED
from clusterkit.executors.node.watch import (
    BATCH_HOST,
    TERMINATION,
    may_requeue,
    requeue,
    say,
    write_left_out,
)
from clusterkit.executors.run import attempts, node_results, restarts, runfolder
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.transport import slurm_nodes

_LOOK_EVERY_S = scaled(1.0, 0.5)
_LEFT_S = scaled(20.0, 10.0)
"""How long the nodes that are left may take to end, once one has gone."""
_END_S = 1.5
"""How long srun may take once its step was cancelled."""
_CONNECT_S = 3.0
_AT_ONCE = 64
_PAUSES_S = (2.0, 4.0, 8.0, 16.0)
"""Between questions to a controller that does not answer."""
_OTHERS_DOING = frozenset({"timeout", "preempted", "cancelled"})
"""Reasons of nodes after which a restart would last no longer."""
_ADDRESS = re.compile(r"\bNodeAddr=(\S+)")
_PORT = re.compile(r"\bPort=([0-9]{1,5})\b")


class Step:
    """The step of one attempt, and what comes after it."""

    def __init__(self, run: RunFolder, submission: Submission) -> None:
        """Know the job; nothing is started yet."""
        environment = {Runtime.NODE_RANK.name: "0", **os.environ}
        self.run = run
        self.submission = submission
        self.me = Identity.from_environment(environment)
        self.host = os.environ[BATCH_HOST]
        self.told = False
        """Whether somebody has told this process to end."""

    def run_to_end(self, command: Sequence[str]) -> int:
        """Run the step; return its exit code, as a shell gives it."""
        pid = os.posix_spawnp(command[0], list(command), dict(os.environ), setsigmask=())
        give_up_at = None
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                raw = os.waitstatus_to_exitcode(status)
                return raw if raw >= 0 else 128 - raw
            self._heed(_LOOK_EVERY_S, pid)
            lost = self._lost()
            now = time.monotonic()
            if lost is not None:
                give_up_at = give_up_at or now + _LEFT_S
                if now >= give_up_at or not self._still_there(lost):
                    give_up_at = now + _LEFT_S
                    self._end(pid)

    def follow(self) -> None:
        """Let the attempt that has failed be followed by another, here or from the queue."""
        if not self._may_follow():
            return
        why = self._why()
        restarted = restarts.count(self.run, self.me.attempt)
        if attempts.is_restart(self.submission, JobState.FAILED, restarted):
            away = self._away()
            if away is not None:
                self._restart(why, away)
                return
            say("clusterkit: too few nodes are left for a restart in this allocation")
        if may_requeue(self.run, self.submission, self.me):
            requeue(self.run, self.me, why)
        else:
            self._tell(why)

    def _tell(self, why: str) -> None:
        """Tell of an end that workers took for one that a restart follows."""
        results = node_results.read_results(self.run, self.me.attempt).nodes
        failure = node_results.first_failure(self.run, self.me.attempt)
        ending = Ending(
            state=JobState.FAILED,
            reason=why,
            exit_code=node_results.first_exit_code(results, failure),
            attempt=self.me.attempt,
            node=self.host,
        )
        notify(self.run, self.submission, ending, self.run.log(0))

    def _restart(self, why: str, away: Collection[str]) -> None:
        run, attempt = self.run, self.me.attempt
        write_left_out(run)
        names = "".join(f"{name}\n" for name in sorted(away))
        files.write_text(run.away(os.environ.get("SLURM_RESTART_COUNT", "0")), names)
        pause_s = restarts.pause_s(run, attempt)
        restarts.note(run, attempt, why)
        number = f"attempt {attempt + 2} of {self.submission.most_attempts}"
        pause = f" after a pause of {pause_s:.0f} s" if pause_s else ""
        say(f"clusterkit: {node_results.in_a_line(why)}; {number}{pause}, in this allocation")
        while not (self._is_over() or restarts.is_due(run, attempt)):
            self._heed(_LOOK_EVERY_S)
        self._heed(0.0)
        if self._is_over():
            files.remove(run.restarted(attempt))

    def _heed(self, seconds: float, pid: int | None = None) -> None:
        signum = processes.await_signal(BLOCKED, seconds)
        if signum is None or signum is signal.SIGCHLD:
            return
        self.told = self.told or signum in TERMINATION
        if pid is not None:
            processes.send(pid, signum)

    def _is_over(self) -> bool:
        run = self.run
        return self.told or runfolder.is_cancelled(run) or runfolder.is_removed(run)

    def _lost(self) -> NodeResult | None:
        failure = node_results.first_failure(self.run, self.me.attempt)
        return failure if failure is not None and failure.lost is not None else None

    def _still_there(self, lost: NodeResult) -> bool:
        """Tell whether nodes that have not gone are still at work, and may write why they end."""
        gone = {lost.node, *attempts.listed_nodes(lost.among)} - {self.host}
        ranks = (rank for rank, name in enumerate(self.me.among) if name not in gone)
        return not all(node_results.has_result(self.run, k, self.me.attempt) for k in ranks)

    def _end(self, pid: int) -> None:
        """End the steps of this attempt, which srun would wait for."""
        job_id = os.environ["SLURM_JOB_ID"]
        listed = run_command(["squeue", "-h", "-s", "-j", job_id, "-o", "%i"]).output.split()
        steps = [step for step in listed if step.rpartition(".")[2].isdigit()]
        if steps:
            run_command(["scancel", *steps])
        deadline = time.monotonic() + _END_S
        while time.monotonic() < deadline:
            if not processes.alive(pid):
                return
            time.sleep(0.2)
        processes.send(pid, signal.SIGKILL)

    def _may_follow(self) -> bool:
        run, attempt = self.run, self.me.attempt
        lost = self._lost()
        reasons = {result.reason for result in node_results.read_results(run, attempt).nodes}
        if self._is_over() or reasons & _OTHERS_DOING or run.requeued(attempt).exists():
            return False
        if lost is not None and lost.node == self.host and not lost.among:
            return False  # this one: the others have asked Slurm already
        again = restarts.may_start_again(run, self.submission, JobState.FAILED, attempt)
        return again and self._is_running()

    def _is_running(self) -> bool:
        """Tell whether Slurm continues with the job: `scancel` may have ended the step."""
        question = ["squeue", "-h", "-j", os.environ["SLURM_JOB_ID"], "-o", "%T"]
        for pause_s in (*_PAUSES_S, 0.0):
            answer = run_command(question)
            if not answer.code:
                return answer.output.strip() == "RUNNING"
            self._heed(pause_s)
            if self._is_over():
                break
        return False

    def _why(self) -> str:
        results = node_results.read_results(self.run, self.me.attempt).nodes
        failure = node_results.first_failure(self.run, self.me.attempt)
        found = next((result for result in results if result.found), failure)
        if found is not None:
            return node_results.failure_text(found)
        return node_results.silence_of(results) or "the step failed"

    def _away(self) -> frozenset[str] | None:
        """Return the nodes of the allocation that a restart leaves out; None if it needs one."""
        nodes = hostlist.expand(os.environ["SLURM_JOB_NODELIST"], source="SLURM_JOB_NODELIST")
        left_out = node_results.left_out(self.run)
        lost = self._lost()
        doubtful = {lost.node, *attempts.listed_nodes(lost.among)} if lost else set()
        doubtful.discard(self.host)
        usable: set[str] = set()
        # Whoever has gone is used again only where there are too few others, and if it answers.
        for asked in (set(nodes) - doubtful - left_out, doubtful - left_out):
            usable |= asked & {self.host, *_answering(sorted(asked - {self.host}))}
            if len(usable) >= self.submission.nodes:
                return frozenset(nodes) - usable
        return None


def _answering(nodes: Sequence[str]) -> set[str]:
    """Return the nodes whose slurmd answers now; all where Slurm does not say where they are."""
    if not nodes:
        return set()
    records = run_command(["scontrol", "show", "node", "-o", ",".join(nodes)])
    common = slurm_nodes.read_settings().get("SlurmdPort", "")
    found = slurm_nodes.split_records(records.output if not records.code else "")
    if not found or not re.fullmatch("[0-9]{1,5}", common):
        return set(nodes)

    def answers(name: str) -> bool:
        record = found.get(name, "")
        address, port = _ADDRESS.search(record), _PORT.search(record)
        with suppress(OSError):
            where = (address[1] if address else name, int(port[1] if port else common))
            with socket.create_connection(where, timeout=_CONNECT_S):
                return True
        return False

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return {name for name, there in zip(nodes, pool.map(answers, nodes), strict=True) if there}


def main(arguments: list[str]) -> int:
    """Run the step, decide what follows, and return the exit code of the step."""
    # From the first line on: bash has this as its child, and Slurm ends both.
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    require_utf8()
    run = RunFolder(Path(arguments[0]).absolute())
    submission = runfolder.read_submission(run)
    code = 2
    try:
        if submission is None:
            say(f"clusterkit: error: {run.submission} cannot be read")
            return code
        step = Step(run, submission)
        code = step.run_to_end(arguments[1:])
        if code:
            step.follow()
    except (ClusterkitError, OSError) as error:
        say(f"clusterkit: error: {error}")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
