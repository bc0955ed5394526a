"""Take for no failure of the job what commands of its script print before the ranks begin."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from clusterkit.observe.diagnose.evidence import (
    labelled,
    launcher_began,
    of_snippet,
    raised_in,
    ranks_began,
    script_of,
)
from clusterkit.observe.diagnose.hits import Scanned
from clusterkit.observe.diagnose.order import Event
from clusterkit.observe.diagnose.rules import Role

_COMMANDS = frozenset({"command-missing", "command-missing-in-script"})
_OF_COMMANDS = frozenset({
    "download-failed", "file-not-found", "folder-missing", "package-not-offered",
    "permission-denied", "working-folder-missing",
})  # fmt: skip
"""Rules of what one command of a script meets, after which the script goes on."""
_MADE = frozenset({
    "checkpoint-missing", "dataset-not-here", "file-broken", "file-not-found", "folder-missing",
    "module-missing",
})  # fmt: skip
"""Rules of what a script may have been to make, or to install, before it started the ranks."""


def without_side_commands(events: Sequence[Event], found: Iterable[Scanned]) -> list[Event]:
    """Take what a command beside the training had raised, or lacked, for no failure of the job.

    Only where ranks ended it later. `srun --label` and mpirun put the rank before all that ranks
    print, so what stands before the first such line is of the batch script; else torchrun and
    other launchers say that they start.
    """
    over: set[int] = set()
    for scanned in found:
        live = [e for e in events if e.hit.file == scanned.file and e.hit.line and not e.handled]
        beside = [e for e in live if e.rank is None and e.node is None]
        ends = [e for e in live if beside and _may_end(e)]
        last = max(ends, key=lambda e: e.hit.last, default=None)
        if last is None:
            continue
        of_ranks = last.rank is not None and labelled(last.hit)
        began = (ranks_began if of_ranks else launcher_began)(
            scanned.file, scanned.excerpts, last.hit.last
        )
        after = [e for e in ends if e.hit.last > began]
        over |= {
            id(e)
            for e in beside
            if e.hit.last < began < last.hit.last
            and (_ended_nothing(e, after) if of_ranks else of_snippet(e.hit))
        }
    return [replace(e, handled=True) if id(e) in over else e for e in events]


def _may_end(event: Event) -> bool:
    return event.rule.role is Role.CAUSE or (event.generic and event.rule.role is Role.SYMPTOM)


def _ended_nothing(event: Event, after: Iterable[Event]) -> bool:
    """Tell whether what stands before all that ranks print is not of what they failed then.

    A script of the user may have been to make what the ranks lacked.
    """
    raised = any(raised_in(e.hit) for e in after)
    if event.rule.id in _COMMANDS:
        return raised
    own = raised_in(event.hit) != ()
    if own and not script_of(event.hit):
        return True
    of_command = own or (raised and event.rule.id in _OF_COMMANDS)
    return of_command and all(e.rule.id not in _MADE for e in after)
