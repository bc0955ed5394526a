"""Keep what the GPUs of a node do while its command runs, and notice that they do nothing.

A thread asks nvidia-smi or rocm-smi every 30 s and appends a line to a file of the run folder, of
which every second line goes once it has too many. A node whose GPUs have been at 0 % for
`idle_limit` says so in its log; where all nodes say it, `on_idle: cancel` ends the job as
`clusterkit cancel` would.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from clusterkit.core import files
from clusterkit.core.commands import run_command
from clusterkit.core.errors import UserError
from clusterkit.core.records import count_of, object_of, text_of
from clusterkit.core.timing import scaled
from clusterkit.executors.node.identity import Identity, visible_gpus
from clusterkit.executors.run import runfolder
from clusterkit.executors.run.runfolder import RunFolder

EVERY_S = scaled(30.0, 0.5)
_ASK_S = 20.0
_MOST_LINES = 4000
"""A day and a half; then there is a line a minute, and so on."""
_MINUTE_S = scaled(60.0)

Look = Callable[[], dict[str, float]]
"""Return how busy each GPU is, in per cent; nothing where nobody can tell."""


class Samples:
    """The samples of one node in one attempt."""

    def __init__(self, run: RunFolder, me: Identity, look: Look) -> None:
        """Begin with none."""
        cluster = object_of(files.read_json(run.plan, own=True) or {}, "cluster")
        self.run, self.me, self.look = run, me, look
        self.limit_s = count_of(cluster, "idle_limit") * _MINUTE_S
        self.cancels = text_of(cluster, "on_idle") == "cancel"
        self.path = run.samples(me.rank, me.attempt)
        self._lines: list[str] = []
        self._stride, self._seen = 1, 0
        self._busy_at = time.monotonic()
        self._told = False
        with suppress(UserError):
            runfolder.create_state_folder(run, run.vitals)

    def take(self) -> None:
        """Take one sample, keep it, and judge whether the GPUs are idle."""
        busy = self.look()
        if not busy:
            self._busy_at = time.monotonic()  # who cannot see is not to judge
            return
        with suppress(UserError):  # a disk that takes no more is for others to tell
            self._keep(json.dumps({"at": round(time.time()), "busy": busy}))
        if any(busy.values()):
            self._busy_at = time.monotonic()
            if self._told:
                self._told = False
                with suppress(UserError):
                    files.remove(self.run.idle(self.me.rank, self.me.attempt))
        elif self.limit_s and time.monotonic() - self._busy_at >= self.limit_s:
            self._tell()

    def _keep(self, line: str) -> None:
        self._seen += 1
        if self._seen % self._stride:
            return
        self._lines.append(line)
        if len(self._lines) < _MOST_LINES:
            files.append_line(self.path, line)
            return
        self._lines, self._stride = self._lines[1::2], 2 * self._stride
        files.write_text(self.path, "".join(f"{kept}\n" for kept in self._lines))

    def _tell(self) -> None:
        run, me = self.run, self.me
        if not self._told:
            minutes = f"{self.limit_s / _MINUTE_S:.0f} min"
            line = f"clusterkit: {me.name}: its GPUs have been idle for {minutes} (idle_limit)"
            with suppress(UserError):
                files.append_line(run.log(me.rank), line)
                files.create_text(run.idle(me.rank, me.attempt), "")
                self._told = True
        names = {run.idle(rank, me.attempt).name for rank in range(me.of)}
        if self.cancels and self._told and names <= runfolder.listed(run.vitals):
            self._cancel()

    def _cancel(self) -> None:
        with suppress(UserError):
            if files.create_text(self.run.cancelled, "as the GPUs of all nodes were idle"):
                text = f"clusterkit: {self.me.name}: all nodes are idle: the job is cancelled"
                files.append_line(self.run.log(self.me.rank), text)
        if "SLURM_JOB_ID" in os.environ:
            run_command(["scancel", os.environ["SLURM_JOB_ID"]])


@contextmanager
def sampled(run: RunFolder, me: Identity) -> Iterator[None]:
    """Take samples while the block runs, where this node has GPUs."""
    over = threading.Event()
    look = looks_at(visible_gpus())
    if look is not None:
        samples = Samples(run, me, look)

        def go_on() -> None:
            while not over.wait(EVERY_S):
                samples.take()

        threading.Thread(target=go_on, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def looks_at(mine: Sequence[str]) -> Look | None:
    """Return what asks for these GPUs of this node, by number or UUID; None without any."""
    if not mine:
        return None
    # Loads a hundred small modules, and only here.
    from clusterkit.preflight.probes.gpu.vitals import AMD, NVIDIA  # noqa: PLC0415
    from clusterkit.transport.probe import (  # noqa: PLC0415
        Missing,
        Output,
        PreflightJob,
        read_output,
    )

    job = PreflightJob(hosts=())

    def look() -> dict[str, float]:
        for probe in (NVIDIA, AMD):
            answer = run_command(["sh", "-c", probe.snippet(job) or "exit 77"], timeout_s=_ASK_S)
            found: Any = read_output(probe, Output(stdout=answer.output, exit_code=answer.code))
            if isinstance(found, Missing):
                continue
            return {
                str(gpu.index): gpu.busy_percent
                for gpu in found.gpus
                if gpu.busy_percent is not None and _is_among(gpu, mine)
            }
        return {}

    return look


def _is_among(gpu: Any, mine: Sequence[str]) -> bool:
    return str(gpu.index) in mine or any((gpu.uuid or "-").startswith(name) for name in mine)
