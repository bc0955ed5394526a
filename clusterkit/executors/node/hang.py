"""Notice that the job makes no progress any more, and keep where its ranks stand.

Each node looks at its own output and processes. The one that prints the steps notices when they
stop, and says so in the run folder; there the others see it, and all look where their ranks stand.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from clusterkit.core import files, heartbeat, processes
from clusterkit.core.commands import run_command
from clusterkit.core.errors import UserError
from clusterkit.core.model import HANG_AFTER_S, JobState, NodeResult, OnHang
from clusterkit.core.records import object_of, text_of
from clusterkit.executors.node import dumps, nccl_ras
from clusterkit.executors.node.identity import Identity
from clusterkit.executors.node.notify import Ending, notify
from clusterkit.executors.node.peers import LivedClock
from clusterkit.executors.node.progress import TIMES, Activity, Patience, Signs
from clusterkit.executors.run import hangs, node_results, runfolder
from clusterkit.executors.run.hangs import Hang
from clusterkit.executors.run.runfolder import RunFolder

_MOST_HANGS = 3
"""How often a node looks at its ranks in one attempt: it stops each for a moment."""


class HangWatch:
    """The look of one node at its command, by a thread of its own: file systems may stall."""

    def __init__(self, run: RunFolder, me: Identity, pid: int, *, since: int) -> None:
        """Know the command by its process, and its output from byte `since` on."""
        submission = self._submission = runfolder.read_submission(run)
        least_s = submission.hang_after_s if submission is not None else HANG_AFTER_S
        self._acts = submission is not None and submission.on_hang is not OnHang.REPORT
        self.run = run
        self.me = me
        self._pid = pid
        self._clock = LivedClock()
        self._signs = Signs(run.log(me.rank), run.results / heartbeat.NAME, since=since)
        self._activity = Activity()
        self._patience = Patience(self._clock.now(), least_s=least_s)
        self._noticed: Hang | None = None
        """What this node has noticed, and is not over."""
        self._looked: set[float] = set()
        """Of which hangs it has kept where its ranks stood."""
        self._dumps: frozenset[Path] = frozenset()
        """What it has asked its ranks to write, of their flight recorders."""
        self._act_at: float | None = None
        """When this node ends the job at the latest, which it has found to hang."""
        self._telling: threading.Thread | None = None
        self.to_end: str | None = None
        """Why the command is to be ended."""
        self._began = time.time()
        self._close = threading.Event()

    @property
    def step(self) -> int | None:
        """The last step that this node printed."""
        return self._signs.step

    def begin(self) -> None:
        """Look every few seconds from now on."""
        self._clock.begin()
        threading.Thread(target=self._run, daemon=True).start()

    def end(self) -> None:
        """Look no more."""
        self._close.set()

    def _run(self) -> None:
        while not self._close.wait(TIMES.look_s):
            with suppress(UserError, OSError):  # a disk that takes no more may do so in time
                self.look()

    def look(self) -> None:
        """Look once."""
        now = self._clock.now()
        if signs := self._signs.look():
            is_first = not self._patience.signs
            self._patience.hear(now, signs)
            self._take_back()
            if is_first:
                files.create_text(hangs.progress_file(self.run, self.me.attempt), self.me.name)
        elif self._patience.must_look(now):
            active, moved = self._activity.look(self._processes(), now)
            self._patience.see(now, active=active or self._signs.grew, moved=moved)
            by_activity = self._noticed is not None and self._noticed.by == "activity"
            if by_activity and (active or moved):
                self._take_back()
        if self._noticed is None and self._patience.is_over(now) and self._may_tell():
            self._notice(now)
        self._keep_stacks()
        if self._noticed is not None and self.to_end is None and self._may_end():
            self._end_job(self._noticed.text)

    def _processes(self) -> set[int]:
        marked = processes.marked(self.run.marker(self.me.rank))
        return processes.descendants(self._pid) | marked | {self._pid}

    def _take_back(self) -> None:
        """Let everybody know that the job continues, where this node had told otherwise."""
        noticed, self._noticed, self._act_at = self._noticed, None, None
        if noticed is not None:
            hangs.note_over(self.run, self.me.attempt, noticed)
            files.remove(hangs.ras_file(self.run, self.me.attempt))  # it may not answer next time

    def _may_tell(self) -> bool:
        """Tell whether it is for this node to judge.

        It is where it tells progress; where no node does, the first judges by its own activity.
        """
        if self._patience.signs or self.me.rank:
            return self._patience.signs > 0
        there = runfolder.listed(self.run.path)
        return hangs.progress_file(self.run, self.me.attempt).name not in there

    def _notice(self, now: float) -> None:
        signs, patience = self._signs, self._patience
        hang = Hang(
            node=self.me.name,
            node_rank=self.me.rank,
            at=time.time(),
            silent_s=round(patience.silent_s(now), 1),
            patience_s=round(patience.seconds if patience.signs else patience.least_s, 1),
            by=signs.by if patience.signs else "activity",
            step=signs.step,
        )
        first = hangs.note(self.run, self.me.attempt, hang)
        self._noticed = hang
        if first:
            self._act_at = now + TIMES.others_s if self._acts else None
            with suppress(UserError):
                files.append_line(self.run.log(self.me.rank), f"clusterkit: {hang.text}")
            self._telling = threading.Thread(target=self._tell, args=(hang,), daemon=True)
            self._telling.start()

    def _tell(self, hang: Hang) -> None:
        if self._submission is not None:
            ending = Ending(
                state=JobState.RUNNING,
                reason=hang.text,
                exit_code=None,
                attempt=self.me.attempt,
                node=self.me.name,
            )
            notify(self.run, self._submission, ending, self.run.log(self.me.rank))

    def _may_end(self) -> bool:
        """Tell whether stacks of all nodes are kept and people told, or it took long enough."""
        if self._act_at is None:
            return False
        if self._clock.now() >= self._act_at:
            return True
        telling = self._telling is not None and self._telling.is_alive()
        return not telling and hangs.count_stacks(self.run, self.me.attempt) >= self.me.of

    def _end_job(self, text: str) -> None:
        """Let this node be the first to fail: the others end because of that."""
        result = NodeResult(
            node_rank=self.me.rank,
            node=self.me.name,
            exit_code=hangs.HUNG,
            started_at=self._began,
            ended_at=time.time(),
            hung=text,
            step=self._signs.step,
        )
        with suppress(UserError):
            node_results.note_failure(self.run, result, attempt=self.me.attempt, n_nodes=self.me.of)
        self.to_end = text

    def _keep_stacks(self) -> None:
        """Keep where the ranks of this node stand, once for each hang that a node has noticed.

        When it is over their dumps go, which tell of nothing that comes later.
        """
        hang = hangs.read_hang(self.run, self.me.attempt)
        if hang is not None and hang.over:
            self._remove_dumps()
        done = hang is None or hang.over or hang.at in self._looked
        if hang is None or done or len(self._looked) >= _MOST_HANGS:
            return
        self._looked.add(hang.at)
        cluster = object_of(files.read_json(self.run.plan) or {}, "cluster")
        script = hangs.stacks_script(self.run.marker(), text_of(cluster, "python") or "")
        # The py-spy of this Python is none of the job's, and looks at it as well.
        path = f"{os.environ.get('PATH', os.defpath)}:{Path(sys.executable).parent}"
        environment = {**os.environ, "PATH": path}
        asked = dumps.ask(self._processes())
        self._dumps |= asked.keys()
        answer = run_command(
            ["sh", "-c", script], timeout_s=TIMES.stacks_s, environment=environment
        )
        dumps.await_new(asked, TIMES.dumps_s)
        said = answer.output if answer.output.strip() else f"! {answer.complaint}\n"
        attempt = self.me.attempt
        if self._noticed is not None and (told := nccl_ras.ask(self._processes(), TIMES.ras_s)):
            hangs.keep(self.run, attempt, hangs.ras_file(self.run, attempt), told)
        stacks = hangs.stacks_file(self.run, attempt, self.me.rank)
        hangs.keep(self.run, attempt, stacks, said)

    def _remove_dumps(self) -> None:
        asked, self._dumps = self._dumps, frozenset()
        for dump in asked:
            ours = dump.name.startswith(hangs.DUMPS.format(self.me.attempt))
            if ours and dump.parent == self.run.results:  # else whoever names the place has them
                files.remove(dump)
