"""The controller of a local job: one process, detached, that starts the nodes and ends them.

Run as `python -m clusterkit.executors.local.controller RUN_FOLDER`. It gives each node what an
allocation would give it and leaves nothing behind. It ends by writing `ended.json`; a job without
that and without a controller is unknown.
"""

from __future__ import annotations

import ipaddress
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterkit.core import files, processes
from clusterkit.core.commands import require_utf8
from clusterkit.core.errors import UserError
from clusterkit.core.model import JobState
from clusterkit.core.ports import HeldPort, hold_port
from clusterkit.executors.base import scrubbed_environment
from clusterkit.executors.local.executor import job_id_of
from clusterkit.executors.node.identity import Allocation, visible_gpus
from clusterkit.executors.node.notify import Ending, notify
from clusterkit.executors.node.supervisor import BLOCKED, Start, Supervisor
from clusterkit.executors.run import node_results, restarts, runfolder
from clusterkit.executors.run.runfolder import RunFolder, Submission
from clusterkit.executors.run.submit_journal import ProcessId


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLayout(Allocation):
    """The nodes of one local job."""

    devices: tuple[tuple[str, ...], ...] | None
    """GPUs of each node; None where every node sees what this machine shows."""
    port: HeldPort
    """The same in all attempts."""

    @classmethod
    def from_plan(cls, job_id: str, plan: Mapping[str, Any], *, tasks: int) -> LocalLayout:
        """Lay out the nodes of a `plan.json`, of which the first `tasks` get a worker.

        Raises:
            RemoteError: no port is free.
        """
        count = int(plan["nodes"])
        slots = tuple(int(number) for number in plan["slots"][:count])
        low, high = (int(port) for port in plan["cluster"]["port_range"])
        return cls(
            job_id=job_id,
            names=tuple(plan["node_names"][:count]) or tuple(f"node-{k}" for k in range(count)),
            slots=slots,
            tasks=tasks,
            devices=split_devices(visible_gpus(), slots),
            time_limit_s=plan["time_limit_s"],
            port=hold_port(low, high, seed=job_id),
        )

    def environment(self, rank: int) -> dict[str, str]:
        """Return the variables of one node."""
        head, port = address_of(0), self.port.number
        environment = {
            **self.variables(rank, executor="local", head=head, port=port),
            "CK_NODE_ADDR": address_of(rank),
        }
        if self.devices is not None and self.tasks == len(self.names):
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(self.devices[rank])
        return environment


def address_of(rank: int) -> str:
    """Return the loopback address of a node: 127.0.0.1 for the first, then upward."""
    return str(ipaddress.IPv4Address("127.0.0.1") + rank)


def split_devices(
    devices: Sequence[str], slots: Sequence[int]
) -> tuple[tuple[str, ...], ...] | None:
    """Give every node as many GPUs as it has slots; None where there are not enough for all."""
    if not devices or sum(slots) > len(devices):
        return None
    shares = []
    first = 0
    for number in slots:
        shares.append(tuple(devices[first : first + number]))
        first += number
    return tuple(shares)


def main(arguments: list[str]) -> int:
    """Control the job in the run folder that is the only argument."""
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
    run = RunFolder(Path(arguments[0]))
    processes.adopt_orphans()
    submission, plan = runfolder.read_submission(run), files.read_json(run.plan)
    if submission is None or plan is None:
        raise UserError(f"no submission, or no plan, in {run.path}")
    layout = LocalLayout.from_plan(job_id_of(run), plan, tasks=submission.tasks)
    files.write_json(
        run.controller,
        {
            "schema": runfolder.SCHEMA,
            **files.plain(ProcessId.own()),
            "port": layout.port.number,
        },
    )
    while True:
        attempt = layout.attempt
        supervisor = Supervisor(
            run, marker=run.marker(), time_limit_s=layout.time_limit_s, attempt=attempt
        )
        codes = supervisor.run_to_end(tuple(_starts(run, layout)))
        end = _end_of(run, codes, supervisor.state, attempt)
        again = restarts.may_start_again(run, submission, end["state"], attempt)
        if not again or runfolder.is_cancelled(run):
            break
        layout = layout.restarted(attempt + 1)
    files.write_json(run.ended, end)
    _tell(run, submission, end)
    return 0


def _tell(run: RunFolder, submission: Submission, end: Mapping[str, Any]) -> None:
    told = {key: end[key] for key in ("state", "reason", "exit_code", "attempt")}
    notify(run, submission, Ending(node=socket.gethostname(), **told), run.log(0))


def _starts(run: RunFolder, layout: LocalLayout) -> Iterator[Start]:
    inherited = scrubbed_environment()
    for rank in range(layout.tasks):
        yield Start(
            argv=(sys.executable, "-P", "-u", "-m", "clusterkit.executors.node", str(run.path)),
            environment={**inherited, **layout.environment(rank)},
            log=run.submitit / f"{layout.job_id}_{rank}_log.out",
        )


def _end_of(
    run: RunFolder, codes: Sequence[int], ended_as: JobState | None, attempt: int
) -> Mapping[str, Any]:
    """Return how an attempt has ended, as it stands in `ended.json`."""
    reported = [node_results.read_result(run, rank, attempt) for rank in range(len(codes))]
    first = node_results.first_failure(run, attempt)
    exit_code = first.exit_code if first else next((c for c in codes if c), None)
    if exit_code is None:
        exit_code = 0 if codes else None
    elif exit_code < 0:
        exit_code = 128 - exit_code
    state = JobState.SUCCEEDED if codes and not any(codes) else ended_as or JobState.FAILED
    if {result.reason for result in reported if result and result.exit_code} == {"timeout"}:
        state = JobState.TIMEOUT
    if first is not None:
        # A node failed by itself before anybody ended the job.
        state = JobState.FAILED
    reason = node_results.failure_text(first) if first else None
    if not all(reported) and state is JobState.FAILED and reason is None:
        reason = f"a worker ended without a result, see {run.submitit}"
    return {
        "schema": runfolder.SCHEMA,
        "state": state,
        "exit_code": exit_code,
        "reason": reason,
        "attempt": attempt,
        "ended_at": time.time(),
    }


if __name__ == "__main__":
    require_utf8()
    sys.exit(main(sys.argv[1:]))
