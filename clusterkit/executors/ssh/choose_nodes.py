"""Choose the nodes on which a job over ssh starts: of those it may have, some that take it now."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass

from clusterkit.core import files
from clusterkit.core.errors import RemoteError
from clusterkit.core.records import record_of
from clusterkit.executors.run.attempts import choose_nodes
from clusterkit.executors.run.runfolder import RunFolder
from clusterkit.executors.ssh import ask
from clusterkit.executors.ssh.ask import Refusal
from clusterkit.executors.ssh.layout import SshLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """What of `plan.json` counts here."""

    node_names: tuple[str, ...]
    slots: tuple[int, ...]


def on_willing_nodes(
    run: RunFolder, layout: SshLayout, *, without: Collection[str] = ()
) -> tuple[SshLayout, dict[str, Refusal]]:
    """Return the layout on nodes that take the job now, and why others do not.

    A spare stands in for each that does not, or that is to be left out (`without`); an elastic job
    goes without it. Nodes are only asked: `ssh.json` has to be there, and stays as it is.

    Raises:
        NodesRefuse: they are too few; each of the others, with the reason.
        RemoteError: too many are to be left out.
        UserError: ssh's configuration cannot be read.
    """
    if layout.least is not None:
        return _on_enough(run, _on_all(run, layout), without, layout.least)
    names = choose_nodes(layout.names, layout.spares, without)
    pool = [name for name in (*layout.names, *layout.spares) if name not in without]
    slots = dict(zip(names[: layout.tasks], layout.slots, strict=False))
    asked: set[str] = set()
    refusals: dict[str, Refusal] = {}
    while slots:
        refusals |= ask.ask(run, layout, slots)
        asked |= slots.keys()
        if len(pool) - len(refusals) < len(names):
            raise ask.refused(refusals, layout)
        names = choose_nodes(names, pool, {*without, *refusals})
        slots = dict(zip(names[: layout.tasks], layout.slots, strict=False))
        slots = {name: wanted for name, wanted in slots.items() if name not in asked}
        if slots and layout.shared and len(set(layout.slots)) == 1:
            # One after the other, a hundred machines at work would take minutes to say so. Where
            # nothing is shared, whoever is asked gets the files of the job first.
            slots |= dict.fromkeys((n for n in pool if n not in asked), layout.slots[0])
    return layout.on(names), refusals


def _on_enough(
    run: RunFolder, layout: SshLayout, without: Collection[str], least: int
) -> tuple[SshLayout, dict[str, Refusal]]:
    """Return the layout on all nodes that take the job now."""
    slots = dict(zip(layout.names, layout.slots, strict=True))
    wanted = {name: slots[name] for name in layout.names if name not in without}
    if len(wanted) < least:
        raise RemoteError(
            f"{', '.join(sorted(without))} cannot be used, and the job needs {least} nodes",
            hint="mend the node, or submit again with --exclude",
        )
    refusals = ask.ask(run, layout, wanted)
    names = tuple(name for name in wanted if name not in refusals)
    if len(names) < least:
        raise ask.refused(refusals, layout)
    willing = dataclasses.replace(
        layout.on(names), slots=tuple(slots[name] for name in names), tasks=len(names)
    )
    return willing, refusals


def _on_all(run: RunFolder, layout: SshLayout) -> SshLayout:
    """Return the layout of an elastic job on all nodes it may have; its last start left some out.

    Only the plan still knows them in their order, with their slots.
    """
    planned = record_of(_Planned, files.read_json(run.plan))
    if planned is None:
        return layout
    names = planned.node_names
    return dataclasses.replace(layout.on(names), slots=planned.slots[: len(names)])
