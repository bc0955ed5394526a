"""Run a script on nodes as a job step: inside an allocation, or in one of its own. No SSH needed.

srun hands its standard input to all tasks and labels each line of theirs with the task's number.
It passes lines on in pieces of 1024 bytes (MAX_MSG_LEN of its line buffer, seen with 22.05), which
the labels allow to put together again; without them, pieces of different tasks run into each other.
With --verbose it says itself on which node it starts which task, so that no node can speak for
another one: which task runs where is what srun says, and not what the task does.
"""

from __future__ import annotations

import math
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from clusterkit.core.commands import run_command
from clusterkit.core.errors import RemoteError
from clusterkit.core.hosts.hostlist import fold
from clusterkit.core.model import ClusterSpec
from clusterkit.transport.base import Reply, check_names, reply_of
from clusterkit.transport.probe import Reach, ReachProblem, first_line
from clusterkit.transport.process import Ended, Ending, run_fed
from clusterkit.transport.script import AnswerReader, Compound
from clusterkit.transport.slurm_nodes import (
    Standing,
    raise_if_no_node_is_to_blame,
    read_settings,
    standings,
)

_OF_A_TASK = re.compile(r" *\d{1,7}: ")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
"""With --quit-on-interrupt the first ends the step and gives an allocation back."""
_JOB = re.compile(r"^srun: job(?:id)? ([1-9][0-9]{0,9})\b", re.MULTILINE)
"""What srun says of an allocation of its own (`jobid 7: nodes(3):...`, `job 7 queued and ...`),
before any task says a word; lines of tasks begin with the number of the task."""

_STEP = (
    "--ntasks-per-node=1",
    "--cpus-per-task=1",
    "--label",
    "--verbose",
    "--kill-on-bad-exit=0",
    "--wait=0",
    "--quit-on-interrupt",
    "--cpu-bind=none",
    "--mpi=none",
)

_INPUT = re.compile(r"(?:SLURM|SRUN)_")
"""Input variables of srun(1). An allocation has dozens and releases add more: they contradict our
options, redirect what tasks print, or (SLURM_EXPORT_ENV=NONE) take PATH from them."""
_KEPT = frozenset(
    f"SLURM_{name}"
    for name in (
        *("CONF", "CONF_SERVER", "JWT", "CLUSTERS", "ACCOUNT", "PARTITION", "QOS", "RESERVATION"),
        *("WCKEY", "CONSTRAINT"),
    )
)
"""Of them, those that say which Slurm is asked, and for which of its nodes."""

_TAKEN = re.compile(r"[Rr]equested nodes are busy")
"""What srun --immediate says where a part of a node is taken."""
_LOOK_AGAIN_S = 0.2
_CANCEL_S = 5.0
_ENOUGH = "not asked, as many nodes as the job wants were"
_LABEL = re.compile(rb" *(\d{1,7}): ?(.*)", re.DOTALL)
_LAUNCHED = re.compile(
    r"^srun: launching \S{1,99} on host (\S{1,255}), 1 tasks: \[?(\d{1,7})\]?$", re.MULTILINE
)
"""What srun says of each task, one per node, before it starts it (_print_launch_msg; 22.05)."""
_LONGEST = 64 << 10
"""Bytes of a line of srun's, which are about 1024."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SrunOptions:
    """Where the step runs; what is None is left to Slurm."""

    job_id: str | None = None
    """The allocation to run in, beside what runs there; None for one of its own."""
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    extra: tuple[str, ...] = ()
    """More arguments of srun, such as a request for GPUs."""
    in_job: tuple[str, ...] = ()
    """More arguments of a step in an allocation that is there, such as `--het-group=1`."""
    name: str = "clusterkit-preflight"
    """Of the step, as Slurm lists it."""
    immediate_s: int = 60
    """How long an allocation of its own may be waited for."""
    margin_s: float = 15.0
    """How long the step may take beyond the time that its probes have."""
    most_nodes: int | None = None
    """Of one step; more nodes are asked in steps one after the other. None: all at once."""
    steps_s: float = 10.0
    """After so long no further step is started, and the nodes that are left are not asked."""

    @classmethod
    def of(cls, cluster: ClusterSpec, environment: Mapping[str, str] = os.environ) -> SrunOptions:
        """Return the options of a cluster, seen from inside an allocation if there is one."""
        return cls(
            job_id=environment.get("SLURM_JOB_ID"),
            partition=cluster.partition,
            account=cluster.account,
            qos=cluster.qos,
            constraint=cluster.constraint,
            extra=cluster.plain_srun_args,
        )


class SrunTransport:
    """Nodes reached through Slurm."""

    def __init__(self, options: SrunOptions) -> None:
        """Hold the options; nothing is started yet."""
        self._options = options
        self._asked: set[str] = set()

    def ask(
        self, nodes: Sequence[str], compound: Compound, *, on_reply: Callable[[Reply], None]
    ) -> tuple[Reply, ...]:
        """Run the script as a step on all nodes that are up, or as several; see `Transport.ask`.

        Replies come together, when a step has ended or its time is up. What a node is up to is
        asked before each step, so that none is woken that has been powered down meanwhile.

        Raises:
            RemoteError: there is no srun here, Slurm does not answer, or it refuses the request
                whatever the nodes.
        """
        check_names(nodes)
        replies: dict[str, Reply] = {}
        in_job, began, enough = self._options.job_id is not None, time.monotonic(), False
        while left := [node for node in nodes if node not in replies]:
            known = self._standings(left)
            for node in known:
                if problem := known[node].problem(in_job=in_job):
                    replies[node] = _refused(node, *problem)
            up = [node for node in left if node not in replies]
            if enough:
                replies |= {n: _refused(n, ReachProblem.DEFERRED, _ENOUGH) for n in up}
            elif up:
                most = self._options.most_nodes or len(up)
                free_first = sorted(up, key=lambda n: n in known and known[n].partly_taken)
                step = free_first[:most] if most < len(up) else up
                self._asked.update(step)
                replies |= self._ask_free(step, compound)
            enough = compound.together or time.monotonic() - began > self._options.steps_s
        for node in nodes:
            on_reply(replies[node])
        return tuple(replies[node] for node in nodes)

    def _standings(self, nodes: Sequence[str]) -> dict[str, Standing]:
        """Return what Slurm says of nodes, once none is still completing a step before this one.

        It calls them so after srun has ended, for as long as its epilog takes.
        """
        give_up_at = time.monotonic() + self._options.immediate_s
        while True:
            known = standings(nodes)
            completing = {n for n in self._asked & known.keys() if "COMPLETING" in known[n].states}
            if not completing or time.monotonic() > give_up_at:
                return known
            time.sleep(_LOOK_AGAIN_S)

    def _ask_free(self, nodes: Sequence[str], compound: Compound) -> dict[str, Reply]:
        """Ask nodes in one step; those that are free, where others are partly taken.

        With one of those among them, srun starts none.
        """
        replies = self._run(nodes, compound)
        busy = all(reply.reach.problem is ReachProblem.BUSY for reply in replies.values())
        if busy and self._options.job_id is None:
            known = standings(nodes)
            taken = {n for n in nodes if n in known and known[n].partly_taken}
            free = [n for n in nodes if n not in taken]
            if taken and free:
                replies |= self._run(free, compound)
        return replies

    def _run(self, nodes: Sequence[str], compound: Compound) -> dict[str, Reply]:
        wait_s = 0 if self._options.job_id else self._options.immediate_s
        limit_s = wait_s + compound.timeout_s + self._options.margin_s
        began = time.monotonic()
        reader = StepReader(compound, tasks=len(nodes))
        try:
            ended = run_fed(
                step_argv(nodes, self._options, limit_s=limit_s),
                compound.script,
                on_output=reader.feed,
                timeout_s=limit_s,
                environment=step_environment(os.environ),
                ending=Ending(signals=_SIGNALS, orphaned=_SIGNALS[0], give_back=self._cancel),
            )
        except OSError as error:
            raise RemoteError(
                f"cannot run srun: {error.strerror}",
                hint="where Slurm's commands are missing, ask by ssh: --via ssh",
            ) from error
        seconds = time.monotonic() - began
        messages = _of_srun(ended)
        answers = reader.by_node(nodes, messages)
        if not answers:
            raise_if_no_node_is_to_blame("srun", messages)
        return {
            node: answers[node].reply(node, seconds)
            if node in answers
            else _refused(node, *_silence(messages, ended, node, limit_s), seconds)
            for node in nodes
        }

    def _cancel(self, said: bytes) -> None:
        """Cancel the allocation of an srun that does not end: killed, it would leave that."""
        job = _JOB.search(said.decode(errors="replace"))
        if job is not None and self._options.job_id is None:
            run_command(["scancel", job[1]], timeout_s=_CANCEL_S)


def step_argv(nodes: Sequence[str], options: SrunOptions, *, limit_s: float) -> tuple[str, ...]:
    """Return the command that starts one task on each of the nodes."""
    where = (
        f"--job-name={options.name}",
        f"--nodes={len(nodes)}",
        f"--ntasks={len(nodes)}",
        f"--nodelist={fold(nodes)}",
    )
    if options.job_id:
        there = ("--overlap", f"--jobid={options.job_id}", *options.in_job)
        return ("srun", *_STEP, *where, *there, "sh")
    named = {
        "partition": options.partition,
        "account": options.account,
        "qos": options.qos,
        "constraint": options.constraint,
        "immediate": str(options.immediate_s),
        "time": str(math.ceil(limit_s / 60) + 1),
    }
    requested = (f"--{name}={value}" for name, value in named.items() if value)
    return ("srun", *_STEP, *where, *requested, *options.extra, "sh")


def _binds() -> bool:
    """Tell whether Slurm binds tasks to CPUs; where not, srun complains of each --cpu-bind."""
    plugins = read_settings(timeout_s=_CANCEL_S).get("TaskPlugin")
    return plugins is None or "affinity" in plugins


def attached_argv(
    node: str, job_id: str, words: Sequence[str], *options: str, terminal: bool = False
) -> tuple[str, ...]:
    """Return the command that runs one task of `words` on a node of a job, beside what runs there.

    The task has the streams of srun, or a `terminal` of its own.
    """
    check_names([node])
    without = {"--label", "--verbose"} if _binds() else {"--label", "--verbose", "--cpu-bind=none"}
    step = [word for word in _STEP if word not in without]
    where = ("--nodes=1", "--ntasks=1", f"--nodelist={node}", "--overlap", f"--jobid={job_id}")
    return ("srun", *step, *where, *options, *(("--pty",) if terminal else ()), *words)


def _refused(node: str, problem: ReachProblem, why: str, seconds: float = 0.0) -> Reply:
    reach = Reach(
        problem=problem, detail=why, via="srun", complete=False, seconds=round(seconds, 3)
    )
    return Reply(node=node, reach=reach)


def _of_srun(ended: Ended) -> str:
    """Return the messages of srun itself, without what tasks wrote to standard error."""
    lines = ended.stderr.decode(errors="replace").split("\n")
    return "\n".join(line.strip() for line in lines if not _OF_A_TASK.match(line))


def _silence(messages: str, ended: Ended, node: str, limit_s: float) -> tuple[ReachProblem, str]:
    """Return what srun says of a node, else of all of them, else what is known."""
    lines = messages.splitlines()
    errors = [line.partition("error: ")[2] for line in lines if line.startswith("srun: error: ")]
    about = [line for line in errors if re.search(rf"\b{re.escape(node)}\b", line)]
    why = first_line("\n".join(about or errors))
    if ended.exit_code is None:
        why = f"no answer within {limit_s:g} s" + (f": {why}" if why else "")
    elif not why:
        others = "\n".join(line for line in lines if not line.startswith("srun: "))
        why = first_line(others) or "no task started there"
    return ReachProblem.BUSY if _TAKEN.search(why) else ReachProblem.SCHEDULER, why


def step_environment(own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what would change the step: srun takes options from it."""
    kept = {n: value for n, value in own.items() if n in _KEPT or not _INPUT.match(n)}
    return {**kept, "LC_ALL": "C"}


class _Task:
    """What one task says, its lines put together again."""

    def __init__(self, compound: Compound) -> None:
        self.reader = AnswerReader(compound)
        self._token = compound.token.encode()
        self._line = bytearray()
        self._began_at: float | None = None

    def feed(self, at: float, piece: bytes) -> None:
        """Read a piece of a line: one without the token continues where the last one ended."""
        if self._token in piece:
            self._began_at = self._began_at or at
            self.end()
        if self._line or self._token in piece:
            self._line += piece
        else:
            self.reader.skip(len(piece))
        if len(self._line) > _LONGEST:
            self.end()

    def end(self) -> None:
        """Read what has come of a line."""
        if self._line:
            self.reader.feed(bytes(self._line) + b"\n")
        self._line = bytearray()

    def reply(self, node: str, seconds: float) -> Reply:
        """Return it as the reply of a node."""
        silence = (ReachProblem.SHELL, "no answer came back")
        answered_at = self._began_at
        return reply_of(
            node, self.reader, silence, via="srun", seconds=seconds, answered_at=answered_at
        )


class StepReader:
    """Reads what srun prints while it comes, and keeps of each task what an answer may have."""

    def __init__(self, compound: Compound, *, tasks: int) -> None:
        """Nothing has come yet."""
        self._rest = b""
        self._tasks = [_Task(compound) for _ in range(tasks)]

    def feed(self, at: float, data: bytes) -> bool:
        """Read the next piece, which came at that time (epoch); others may still have to answer."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:_LONGEST]
        for line in lines:
            match = _LABEL.fullmatch(line)
            if match is not None and (task := int(match[1])) < len(self._tasks):
                self._tasks[task].feed(at, match[2])
        return True

    def by_node(self, nodes: Sequence[str], messages: str) -> dict[str, _Task]:
        """Return the tasks that answered, by node, as the `messages` of srun have it.

        A Slurm that does not say so leaves only what they call themselves; of a name that two
        of them claim, neither is believed.
        """
        for task in self._tasks:
            task.end()
        answers = {
            k: answer for k, one in enumerate(self._tasks) if (answer := one.reader.answer())
        }
        known: dict[int, str] = {}
        for node, number in _LAUNCHED.findall(messages):
            known.setdefault(int(number), node)
        if not known:
            claims = Counter(answer.host for answer in answers.values())
            known = {k: one.host for k, one in answers.items() if claims[one.host] == 1}
        answered = {k for k, one in enumerate(self._tasks) if one.reader.excess} | answers.keys()
        requested = frozenset(nodes)
        return {known[k]: self._tasks[k] for k in sorted(answered) if known.get(k) in requested}
