"""The start of an elastic job over ssh: on those of its nodes that would take it."""

from __future__ import annotations

import dataclasses

from clusterkit.executors import ssh_start
from clusterkit.executors.ssh_layout import SshLayout, write_layout
from clusterkit.executors.ssh_start import NodesRefuse
from clusterkit.runfolder import RunFolder


def on_willing_nodes(run: RunFolder, layout: SshLayout) -> tuple[SshLayout, tuple[str, ...]]:
    """Return the layout on the nodes that take the job now, and what to say of the others.

    A job of fixed size needs all of its nodes, and none is asked.

    Raises:
        NodesRefuse: they are too few; each of the others, with the reason.
        UserError: the run folder cannot be written, or ssh's configuration not be read.
    """
    if layout.least is None:
        return layout, ()
    write_layout(run, layout)
    try:
        ssh_start.check(run, layout)
    except NodesRefuse as error:
        slots = dict(zip(layout.names, layout.slots, strict=True))
        names = tuple(name for name in layout.names if name not in error.nodes)
        if len(names) < layout.least:
            raise
        left = dataclasses.replace(
            layout.on(names), slots=tuple(slots[name] for name in names), tasks=len(names)
        )
        return left, tuple(f"left out: {why}" for why in error.message.splitlines())
    return layout, ()
