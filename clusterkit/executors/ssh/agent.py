"""The node agent of one node of a job over ssh: what a scheduler's daemon is elsewhere.

Run on the node as `python -m clusterkit.executors.ssh.agent RUN_FOLDER RANK ATTEMPT`. It takes the
slots, leaves the session in which it was started, and says so in one line of JSON; then it waits
for the other nodes, starts the worker, looks after it, sweeps, and gives the slots back. All it
knows stands in `keepers/RANK.json`, and its last word in `ends/RANK.json`; one that has gone
without was killed, or its machine was. While it lives, it touches `keepers/RANK.heartbeat`.
With `RUN_FOLDER --check NODE SLOTS` it only says whether it could take the slots.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from clusterkit.core import files, processes
from clusterkit.core.commands import require_utf8
from clusterkit.core.errors import ClusterkitError, RemoteError, UserError
from clusterkit.core.model import JobState, NodeResult
from clusterkit.core.ownership import require_own
from clusterkit.core.version import __version__
from clusterkit.executors.base import REQUEUED, scrubbed_environment
from clusterkit.executors.node.coordinator import join
from clusterkit.executors.node.ending import tell_over_ssh
from clusterkit.executors.node.identity import visible_gpus
from clusterkit.executors.node.partition import PeerState
from clusterkit.executors.node.peers import is_told_to_end
from clusterkit.executors.node.supervisor import BLOCKED, Start, Supervisor
from clusterkit.executors.node.watch import say
from clusterkit.executors.run import node_results, runfolder
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.executors.ssh import slots
from clusterkit.executors.ssh.agent_files import AGENT
from clusterkit.executors.ssh.layout import (
    CHECK,
    HEARTBEAT_EVERY_S,
    LAYOUT,
    SshLayout,
    read_layout,
)
from clusterkit.executors.ssh.slots import Held, Kind, SlotsBusy

_LAYOUT_S = 20.0
"""How long to wait for what the client wrote a moment ago."""
REFUSED = 3
"""Exit code where the node does not take the job; the line says why."""


def main(arguments: list[str]) -> int:
    """Take this node for the job, and keep it in a process of its own; with CHECK, only try."""
    run = RunFolder(Path(arguments[0]))
    try:
        for path in (run.path, run.path / LAYOUT):
            require_own(path, use="run what it names")
        if arguments[1] == CHECK:
            held = _take(run, read_layout(run), arguments[2], int(arguments[3]))
            print(json.dumps({"free": held.slots}))
            return 0
        rank = int(arguments[1])
        layout = _layout_of(run, attempt=int(arguments[2])).at_home(run)
        held = _take(run, layout, layout.names[rank], layout.slots[rank])
    except ClusterkitError as error:
        print(json.dumps(_refusal(error)))
        return REFUSED
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        with os.fdopen(reader, encoding="utf-8") as stream:
            output = stream.read() or json.dumps({"refused": "the node agent ended at once"})
        print(output)
        return REFUSED if "refused" in json.loads(output) else 0
    os.close(reader)

    def answer(document: dict[str, Any]) -> None:
        os.write(writer, json.dumps(document).encode())
        os.close(writer)

    try:
        _leave_session(run, rank)
        agent = _NodeAgent(run, layout, rank, held)
        agent.write_about()
    except ClusterkitError as error:
        answer(_refusal(error))
        return REFUSED
    agent.keep(lambda: answer({"pid": os.getpid()}))
    return 0


def _refusal(error: ClusterkitError) -> dict[str, Any]:
    """Return the message where the job is not taken; what to do about it, the client knows."""
    kind = (
        error.kind
        if isinstance(error, SlotsBusy | OtherReleaseError | SharedFolderError)
        else Kind.OTHER
    )
    return {
        "refused": error.message if isinstance(error, RemoteError) else str(error),
        "kind": kind,
    }


def _layout_of(run: RunFolder, *, attempt: int) -> SshLayout:
    """Return the layout of this very attempt.

    A network file system may show that of the attempt before for a while; and where this start took
    too long, the client has given it up, and may have begun the next.

    Raises:
        RemoteError: it is of another attempt.
        UserError: it cannot be read.
    """
    deadline = time.monotonic() + _LAYOUT_S
    while (layout := read_layout(run)).attempt < attempt and time.monotonic() < deadline:
        time.sleep(0.5)
        runfolder.listed(run.path)  # makes it look again
    if layout.attempt != attempt:
        raise RemoteError(f"this is attempt {attempt + 1}, and {layout.attempt + 1} is to run")
    return layout


class OtherReleaseError(RemoteError):
    """Client and node would not understand each other."""

    kind = Kind.RELEASE


class SharedFolderError(RemoteError):
    """Nodes write into one folder that should each have their own."""

    kind = Kind.SHARED


def _take(run: RunFolder, layout: SshLayout, node: str, count: int) -> Held:
    if layout.version != __version__:
        raise OtherReleaseError(f"clusterkit {__version__} is there, and {layout.version} here")
    known = layout.cluster.slots_of(node)
    return slots.take(count, known or max(len(visible_gpus()), count), job=run.run_id, node=node)


def _leave_session(run: RunFolder, rank: int) -> None:
    """Become a process that neither the end of the login nor that of its terminal reaches."""
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    log = files.open_for_append(run.submitit / f"keeper_{rank}.log")
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, descriptor in ((0, nothing), (1, log), (2, log)):
        os.dup2(descriptor, target)
    os.close(log)
    os.close(nothing)


@contextmanager
def _beating(path: Path) -> Iterator[None]:
    """Touch `path` every so often while the block runs; what cannot be written is left out."""
    over = threading.Event()

    def beat() -> None:
        while not over.is_set():
            with suppress(ClusterkitError):
                files.touch(path)
            over.wait(HEARTBEAT_EVERY_S)

    threading.Thread(target=beat, daemon=True).start()
    try:
        yield
    finally:
        over.set()


class _NodeAgent:
    """One node while it is kept: what it was told, and what it holds."""

    def __init__(self, run: RunFolder, layout: SshLayout, rank: int, held: Held) -> None:
        self.run = run
        self.layout = layout
        self.rank = rank
        self.held = held
        self.marker = run.marker(rank)
        self.peer_state = PeerState(run, layout)
        self.connection = join(rank, self.peer_state, layout.candidates)
        self.supervisor = self._supervisor()
        self.about: dict[str, Any] = {
            "schema": runfolder.SCHEMA,
            "node": layout.names[rank],
            "attempt": layout.attempt,
            "pid": os.getpid(),
            "start_time": processes.start_time(os.getpid()),
            "boot_id": processes.boot_id(),
            "slots": held.slots,
            "began_at": time.time(),
        }

    def _supervisor(self) -> Supervisor:
        """Return what looks after the worker from now on, with all of the time that it may take."""
        return Supervisor(
            self.run,
            marker=self.marker,
            time_limit_s=self.layout.time_limit_s,
            attempt=self.layout.attempt,
            aware=self.layout.ours or self.layout.tasks == 1,
            is_cancelled=lambda: self.peer_state.cancelled,
            failed_elsewhere=lambda: self.peer_state.failure is not None,
        )

    def write_about(self) -> None:
        """Write down who keeps the node.

        Raises:
            SharedFolderError: the agent of another node has done so here, and should not see this.
        """
        files.write_json(self.run.agent(self.rank), self.about)
        names = () if self.layout.shared else runfolder.listed(self.run.agents)
        for name in names:
            other = files.read_json(self.run.agents / name) if AGENT.fullmatch(name) else None
            mine = name == self.run.agent(self.rank).name
            if other is not None and other.get("attempt") == self.layout.attempt and not mine:
                raise SharedFolderError(
                    f"it shares the run folder with {other.get('node')}, and "
                    "`shared_filesystem: false` denies it"
                )

    def write_end(self, result: NodeResult) -> None:
        """Write down how it ended, unless another node agent has this rank by now."""
        there = files.read_json(self.run.agent(self.rank)) or self.about
        if all(there.get(key) == self.about[key] for key in ("node", "attempt", "pid")):
            end = {"state": _state(result), "exit_code": result.exit_code, "at": result.ended_at}
            files.write_json(self.run.end(self.rank), {**self.about, **end})

    def keep(self, begun: Callable[[], None]) -> None:
        """Call `begun`, see the job to its end, give the slots back, and tell the others."""
        processes.adopt_orphans()
        try:
            # The watchdog holds the slots too: they are not free before it has killed the rest.
            guard = processes.guarded(self.marker, holding=self.held.descriptors)
            with guard, _beating(self.run.heartbeat(self.rank)):
                begun()
                result = self._run()
            self.held.release()
            self.peer_state.end()
            if not self.layout.shared:
                files.remove(self.run.secrets)  # a next attempt brings them again
            try:
                self.write_end(result)
            except ClusterkitError as error:  # no reason to leave the other nodes alone
                say(f"clusterkit: {error}")
        finally:
            self.connection.leave()
        if self.layout.ours:
            tell_over_ssh(self.run, self.rank, self.peer_state, result, attempt=self.layout.attempt)

    def _run(self) -> NodeResult:
        """Run the worker once all nodes are there; return how it ended, as it says or is seen."""
        started_at = time.time()
        code, fault = 128 + signal.SIGTERM, None
        try:
            self.peer_state.begin()
            self.connection.begin()
            if self.connection.await_go():
                self.peer_state.look()
                code = self._work(code)
        except ClusterkitError as error:
            say(f"clusterkit: {error}")
            code, fault = 1, str(error)
        result = node_results.read_result(self.run, self.rank, self.layout.attempt)
        if result is None:
            result = NodeResult(
                node_rank=self.rank,
                node=self.layout.names[self.rank],
                exit_code=code if code >= 0 else 128 - code,
                started_at=started_at,
                ended_at=time.time(),
                reason=self._reason() if code and fault is None else None,
                unfit=fault,
            )
            if self.layout.ours and code < 0 and result.reason is None:
                result = replace(result, lost=f"has lost clusterkit's worker (signal {-code})")
            self._write(result)
        if result.exit_code and result.reason == "terminated":
            # By somebody who told this node alone: a shutdown, or a kill by hand.
            self.peer_state.note_failure(self.layout.lost(self.rank, "was told to end (SIGTERM)"))
        elif result.exit_code and result.reason is None:
            self.peer_state.note_failure(result)
        return result

    def _work(self, code: int) -> int:
        """Run the worker to its end; a function begins again with each checkpoint that it wrote.

        Return its exit code, or `code` where it was not started.
        """
        while True:
            before = self._pickled()
            (code,) = self.supervisor.run_to_end((self._start(),)) or (code,)
            # Whoever exits with this code and has written nothing would do so for ever.
            if self.layout.ours or code != REQUEUED or self._pickled() == before:
                return code
            self.supervisor = self._supervisor()

    def _pickled(self) -> int | None:
        """Return what changes with each pickle of the function, which replaces the one before."""
        path = Path(self.layout.logs) / f"{self.layout.job_id}_submitted.pkl"
        try:
            return path.stat().st_ino
        except OSError:
            return None

    def _write(self, result: NodeResult) -> None:
        attempt, n_nodes, min_nodes = self.layout.attempt, len(self.layout.names), self.layout.least
        try:
            node_results.write_result(
                self.run, result, attempt=attempt, n_nodes=n_nodes, min_nodes=min_nodes
            )
        except UserError as error:  # the others hear of it
            node_results.note_unwritten(self.run, result, error, attempt=attempt, of=n_nodes)
            say(f"clusterkit: {error}")

    def _reason(self) -> str | None:
        """Return why the command ended or was never started, where that was not its own doing."""
        if self.supervisor.state is JobState.TIMEOUT:
            return "timeout"
        if self.peer_state.cancelled or runfolder.is_cancelled(self.run):
            return "cancelled"
        if self.peer_state.failure is not None:
            return "peer"
        on_request = is_told_to_end() or self.supervisor.state is JobState.CANCELLED
        return "terminated" if on_request else None

    def _start(self) -> Start:
        layout = self.layout
        port = self.connection.port or layout.ports[0]  # known once all are there
        head = layout.names[0]
        environment = {
            **scrubbed_environment(),
            **layout.environment,
            **layout.variables(self.rank, executor="ssh", head=head, port=port),
        }
        if not layout.ours:
            environment[processes.MARKER] = self.marker
        gpus = visible_gpus()
        if gpus and all(slot < len(gpus) for slot in self.held.slots):
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[slot] for slot in self.held.slots)
        return Start(
            argv=layout.command,
            environment=environment,
            log=Path(layout.logs) / f"{layout.job_id}_{self.rank}_log.out",
            workdir=layout.workdir,
        )


def _state(result: NodeResult) -> JobState:
    if result.exit_code == 0:
        return JobState.SUCCEEDED
    known = {"cancelled": JobState.CANCELLED, "timeout": JobState.TIMEOUT}
    return known.get(result.reason or "", JobState.FAILED)


if __name__ == "__main__":
    require_utf8()
    sys.exit(main(sys.argv[1:]))
