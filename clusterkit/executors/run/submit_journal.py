"""What a client notes about handing a job over, so that one killed at any moment loses no job.

It names itself before anything else is known of the run, then notes the last moment at which
nothing can have been started, and at last an answer that proves neither acceptance nor refusal.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from clusterkit.core import files, processes
from clusterkit.core.bounds import Matching, Moment, NodeName, Within
from clusterkit.core.errors import UserError
from clusterkit.core.records import record_of
from clusterkit.executors.run.runfolder import SCHEMA, RunFolder

SBATCH_TIMEOUT_S = 180.0
"""How long sbatch may take; a client that lives longer kills it."""
_UNDER_WAY_S = SBATCH_TIMEOUT_S + 60.0
"""How long a client needs at most, from either of its notes to the next."""
_QUIET_S = (15.0, 120.0)
"""How long Slurm has to answer without knowing of a job until it never came, at least and at most.

A request that waits in a socket is sent again after twice the time since it was sent first
(exponential backoff of TCP), and given up after 100 s (tcp_orphan_retries); one that a controller
has read is worked off within seconds of its coming back.
"""
_REMEMBERED_S = 300.0
"""How long Slurm remembers a job that has ended (MinJobAge, by default)."""
_LONGEST_S = 86_400.0
"""How long a client takes at the most for all jobs of an array."""
_NOT_AFTER_S = SBATCH_TIMEOUT_S + 300.0
"""Age at which one answer is enough: munge's credentials are valid for 300 s (munge(1), --ttl)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """A process that no later one with the same number is taken for."""

    pid: Annotated[int, Within(1, 1 << 22)]
    start_time: Annotated[str, Matching("[0-9]{1,20}")]
    boot_id: str
    host: NodeName
    pid_namespace: str = ""

    @classmethod
    def own(cls) -> ProcessId:
        """Return this process."""
        pid = os.getpid()
        return cls(
            pid=pid,
            start_time=processes.start_time(pid) or "0",
            boot_id=processes.boot_id(),
            host=socket.gethostname(),
            pid_namespace=_pid_namespace(),
        )

    @property
    def here(self) -> bool:
        """Whether its machine, since its last start, and its numbers of processes are ours."""
        # Copies of a virtual machine have the same boot id, hosts of a container the same name.
        ours = (processes.boot_id(), _pid_namespace(), socket.gethostname())
        return bool(self.boot_id) and (self.boot_id, self.pid_namespace, self.host) == ours

    @property
    def lives(self) -> bool:
        """Whether it is a process of this machine that has not ended."""
        return (
            self.boot_id == processes.boot_id()
            and self.start_time == processes.start_time(self.pid)
            and processes.alive(self.pid)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Handing:
    """What stands in `handing.json`."""

    client: ProcessId
    began_at: Moment
    at: Moment | None = None
    """When it was handed over; None as long as nothing can have been started."""
    answered_at: Moment | None = None
    """When the client gave up to hear whether it was accepted."""
    answer: str | None = None
    """What it heard until then."""
    missing_since: Moment | None = None
    """Since when a scheduler that answers knows of no such job."""

    @property
    def never_after(self) -> Moment | None:
        """When a job that is still missing then was never accepted; None as long as nobody knows.

        In seconds since the epoch.
        """
        if self.missing_since is None:
            return None
        at = self.at or self.missing_since
        minimum_s, maximum_s = _QUIET_S
        quiet = min(max(2 * (self.missing_since - at), minimum_s), maximum_s)
        return min(self.missing_since + quiet, max(self.missing_since, at + _NOT_AFTER_S))

    @property
    def looked_late(self) -> bool:
        """Whether a job that was accepted, and cancelled before it ran, may have been forgotten."""
        return (self.missing_since or 0.0) - (self.at or self.began_at) > _REMEMBERED_S


def read(run: RunFolder) -> Handing | None:
    """Return what the client has noted; None in runs of older versions."""
    return record_of(Handing, files.read_json(run.handing, own=True))


def begin(run: RunFolder) -> None:
    """Note which process hands the job over."""
    _write(run, _begun())


def hand_over(run: RunFolder) -> None:
    """Note that from now on the job may be accepted, and is no longer queued.

    Raises:
        UserError: that cannot be written; then nothing may be started.
    """
    _write(run, replace(read(run) or _begun(), at=time.time()))
    files.remove(run.queued)


def is_handed_over(run: RunFolder) -> bool:
    """Tell whether the job may have been accepted; also where the note has gone or is damaged."""
    noted = read(run)
    return noted is None or noted.at is not None


def give_up(run: RunFolder, answer: str) -> None:
    """Note that the client has ended without knowing whether the job was accepted."""
    _change(run, answered_at=time.time(), answer=answer)


def miss(run: RunFolder, handing: Handing) -> Handing:
    """Note that a scheduler that answers does not know the job, unless that is known.

    On another host it may be another scheduler: clusters often share their homes.
    """
    now = time.time()
    if handing.client.host != socket.gethostname():
        return replace(handing, missing_since=None)
    if handing.missing_since is not None and handing.missing_since <= now:
        return handing
    return _change(run, missing_since=now) or handing


def is_under_way(run: RunFolder, handing: Handing) -> bool:
    """Tell whether the job may still be handed over, by the client or by the sbatch it has left.

    Of a client elsewhere (or before this machine was started again) only its time limit is known.
    """
    if handing.answered_at is not None:
        return False
    young = time.time() - (handing.at or handing.began_at) < _UNDER_WAY_S
    if not handing.client.here:
        return young
    # Before it hands over, a client may be stopped, or copy files, for as long as it likes.
    expected = handing.client.lives and (young or handing.at is None)
    return expected or _is_sbatch_alive(run.sbatch)


def has_client_ended(run: RunFolder) -> bool:
    """Tell whether the process that handed the job over is known to have ended.

    Of one elsewhere, or before this machine was started again, it is where that is a day ago.
    """
    noted = read(run)
    if noted is None:
        return False
    if noted.client.here:
        return not noted.client.lives
    return time.time() - noted.began_at > _LONGEST_S


def _begun() -> Handing:
    return Handing(client=ProcessId.own(), began_at=time.time())


def _change(run: RunFolder, **changes: object) -> Handing | None:
    handing = read(run)
    if handing is None:
        return None
    changed = replace(handing, **changes)  # type: ignore[arg-type]
    with suppress(UserError):  # a full disk must not keep anyone from looking
        _write(run, changed)
    return changed


def _write(run: RunFolder, handing: Handing) -> None:
    files.write_json(run.handing, {"schema": SCHEMA, **files.plain(handing)})


def _is_sbatch_alive(script: Path) -> bool:
    return any(
        arguments[-1:] == (str(script),) and "--parsable" in arguments
        for arguments in map(processes.command_of, processes.of_user(os.geteuid()))
    )


def _pid_namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
