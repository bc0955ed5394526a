"""The keeper of one node of a job over ssh: what a scheduler's daemon is elsewhere.

Run on the node as `python -m clusterkit.executors.ssh_keeper RUN_FOLDER RANK`. It takes the slots,
leaves the session in which it was started, and says so in one line of JSON; then it waits for the
other nodes, starts the worker, looks after it, sweeps, and gives the slots back. All it knows
stands in `keepers/RANK.json`, and its last word in `ends/RANK.json`; one that has gone without was
killed, or its machine was.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clusterkit import __version__, files, processes, runfolder
from clusterkit.errors import ClusterkitError, RemoteError
from clusterkit.executors import ssh_slots
from clusterkit.executors.allocation import Allocation, visible_gpus
from clusterkit.executors.base import scrubbed_environment
from clusterkit.executors.ssh_layout import SshLayout, read_layout
from clusterkit.executors.ssh_link import Hub, Link
from clusterkit.executors.ssh_slots import Held, SlotsBusy
from clusterkit.executors.supervisor import WATCHED, Start, Supervisor
from clusterkit.model import JobState, NodeResult
from clusterkit.runfolder import RunFolder

REFUSED = 3
"""Exit code where the node does not take the job; the line says why."""


def main(arguments: list[str]) -> int:
    """Take this node for the job, and keep it in a process of its own."""
    run, rank = RunFolder(Path(arguments[0])), int(arguments[1])
    try:
        layout = read_layout(run)
        _require_version(layout, rank)
        held = _take(run, layout, rank)
    except ClusterkitError as error:
        print(json.dumps(_refusal(error)))
        return REFUSED
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        with os.fdopen(reader, encoding="utf-8") as stream:
            said = stream.read()
        print(said or json.dumps({"refused": "the keeper ended at once", "hint": None}))
        return 0 if said else REFUSED
    os.close(reader)
    _leave_session(run, rank)

    def begun() -> None:
        os.write(writer, json.dumps({"pid": os.getpid()}).encode())
        os.close(writer)

    _Keeper(run, layout, rank, held).keep(begun)
    return 0


def _refusal(error: ClusterkitError) -> dict[str, Any]:
    busy = isinstance(error, SlotsBusy)
    if isinstance(error, RemoteError):
        return {"refused": error.message, "hint": error.hint, "busy": busy}
    return {"refused": str(error), "hint": None, "busy": busy}


def _require_version(layout: SshLayout, rank: int) -> None:
    if layout.version != __version__:
        raise RemoteError(
            f"clusterkit {__version__} is there, and {layout.version} here",
            node=layout.names[rank],
            hint="install the same release on all nodes",
        )


def _take(run: RunFolder, layout: SshLayout, rank: int) -> Held:
    wanted = layout.slots[rank]
    offered = layout.offered[rank] or max(len(visible_gpus()), wanted)
    return ssh_slots.take(wanted, offered, job=run.run_id, node=layout.names[rank])


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


class _Keeper:
    """One node while it is kept: what it was told, and what it holds."""

    def __init__(self, run: RunFolder, layout: SshLayout, rank: int, held: Held) -> None:
        self.run = run
        self.layout = layout
        self.rank = rank
        self.held = held
        self.marker = run.marker(rank)
        self.link = Hub(run, layout) if rank == 0 else Link(run, layout, rank)
        self.supervisor = Supervisor(run, marker=self.marker, time_limit_s=layout.time_limit_s)

    def keep(self, begun: Callable[[], None]) -> None:
        """Write down who keeps the node, call `begun`, and see the job to its end."""
        about: dict[str, Any] = {
            "schema": runfolder.SCHEMA,
            "node": self.layout.names[self.rank],
            "attempt": self.layout.attempt,
            "pid": os.getpid(),
            "start_time": processes.start_time(os.getpid()),
            "boot_id": processes.boot_id(),
            "slots": self.held.slots,
            "began_at": time.time(),
        }
        processes.adopt_orphans()
        # The guardian holds the slots too: they are not free before it has killed what was left.
        with processes.guarded(self.marker, holding=self.held.descriptors):
            files.write_json(self.run.keeper(self.rank), about)
            begun()
            result = self._run()
            state = _state(result)
            end = {"state": state, "exit_code": result.exit_code, "at": result.ended_at}
        self.held.release()
        files.write_json(self.run.end(self.rank), {**about, **end})
        self.link.leave()

    def _run(self) -> NodeResult:
        """Run the worker once all nodes are there; return how it ended, as it says or is seen."""
        started_at = time.time()
        code, fault = 128 + signal.SIGTERM, None
        try:
            self.link.begin()
            if self.link.await_go():
                (code,) = self.supervisor.run_to_end((self._start(),)) or (code,)
        except ClusterkitError as error:
            print(f"clusterkit: {error}", file=sys.stderr, flush=True)
            code, fault = 1, str(error)
        told = runfolder.read_result(self.run, self.rank, self.layout.attempt)
        if told is not None:
            return told
        result = NodeResult(
            node_rank=self.rank,
            node=self.layout.names[self.rank],
            exit_code=code if code >= 0 else 128 - code,
            started_at=started_at,
            ended_at=time.time(),
            reason=self._reason() if code and fault is None else None,
            unfit=fault,
        )
        of = len(self.layout.names)
        runfolder.write_result(self.run, result, attempt=self.layout.attempt, of=of)
        return result

    def _reason(self) -> str | None:
        """Return why the command ended or was never started, where that was not its own doing."""
        if self.supervisor.state is JobState.TIMEOUT:
            return "timeout"
        if self.run.cancelled.exists() or self.supervisor.state is JobState.CANCELLED:
            return "cancelled"
        return "peer" if self.link.failure() is not None else None

    def _start(self) -> Start:
        layout = self.layout
        nodes = Allocation(
            job_id=layout.job_id,
            attempt=layout.attempt,
            names=layout.names,
            slots=layout.slots,
            tasks=layout.tasks,
            head=layout.names[0],
            port=self.link.port or layout.ports[0],
        )
        environment = {
            **scrubbed_environment(),
            **layout.environment,
            **nodes.variables(self.rank, executor="ssh"),
        }
        gpus = visible_gpus()
        if gpus and max(self.held.slots) < len(gpus):
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
    sys.exit(main(sys.argv[1:]))
