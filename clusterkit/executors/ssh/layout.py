"""What every node of a job over ssh has to know; written by the client, before anything starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from pathlib import Path
from typing import Annotated

from clusterkit.core import files
from clusterkit.core.bounds import NodeName, Within
from clusterkit.core.errors import UserError
from clusterkit.core.model import ClusterSpec, SyncPlan
from clusterkit.core.ports import groups
from clusterkit.core.records import record_of
from clusterkit.core.version import __version__
from clusterkit.executors.node.identity import Allocation
from clusterkit.executors.run.runfolder import RunFolder

HEARTBEAT_EVERY_S = 10.0
"""How often a node agent touches its file, for who sees the run folder but not the node: it may be
out of reach (a jump host that is down) of a client that mounts its file system all the same."""
CHECK = "--check"
"""Asks only whether a node would be taken; its name and a number of slots follow."""
RUNS_THERE = "~/.clusterkit/runs"
"""Where nodes keep their run folders that share none with the client."""
COPY = "work"
"""In such a run folder: the job's own copy of the folder that was sent."""
_CANDIDATES = 8
"""Ports of the first node that others try; one is taken only by chance."""
LAYOUT = "ssh.json"
"""In the run folder, readable by its owner only: the nodes know each other by its token."""


_KEPT = (
    "name", "kind", "hosts", "gpus_per_node",
    "user", "port", "identity_file", "jump_host", "host_keys", "shared_filesystem", "venv",
)  # fmt: skip


_Port = Annotated[int, Within(1, 65_535)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SshLayout(Allocation):
    """The nodes of one attempt at a job, in rank order."""

    spares: tuple[NodeName, ...] = ()
    """Nodes that may take the place of others: together with `names` always the same."""
    ports: tuple[_Port, _Port]
    """The port range of the cluster, both ends included."""
    command: tuple[str, ...]
    """What the node agent of each node starts."""
    ours: bool = True
    """Whether that is our worker, which marks what it starts and passes notices on."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that it gets beside those of the login."""
    workdir: str = "/"
    logs: str
    """Folder of the output of those commands, in submitit's names."""
    cluster: ClusterSpec
    """How the nodes are reached, and whether they share this folder; nothing else is kept."""
    sync: SyncPlan | None = None
    """The folder of which each node gets a copy."""
    sync_digest: str | None = None
    """What tells its contents from others; known once it was sent for the first time."""
    needs: tuple[str, ...] = ()
    """Paths that each node must have, of a job that is sent without them."""
    version: str = __version__
    """Of the client."""

    @property
    def shared(self) -> bool:
        """Whether the nodes see the client's run folder, under the same path."""
        return self.cluster.shared_filesystem

    @property
    def python(self) -> str:
        """The Python of the node agents, as the nodes know it."""
        return self.command[0] if self.shared else f"{self.cluster.venv}/bin/python"

    def folder(self, run: RunFolder) -> str:
        """Return the run folder as the nodes know it."""
        return str(run.path) if self.shared else f"{RUNS_THERE}/{run.run_id}"

    def at_home(self, run: RunFolder) -> SshLayout:
        """Return the layout as a node has it: with its own Python, in its own folder.

        The environment in which that Python is comes first on PATH, for the job as well.
        """
        if self.shared:
            return self
        own = {"VIRTUAL_ENV": sys.prefix, "PATH": f"{sys.prefix}/bin:{os.environ.get('PATH', '')}"}
        if self.sync is not None:
            own["CK_WORKDIR"] = str(run.path / COPY / self.sync.workdir)
        return replace(
            self,
            command=(sys.executable, *self.command[1:-1], str(run.path)),
            logs=str(run.submitit),
            environment={**own, **self.environment},
        )

    @property
    def candidates(self) -> tuple[int, ...]:
        """Where each group of ports begins that the first node tries for all of them."""
        return tuple(islice(groups(*self.ports, seed=self.job_id), _CANDIDATES))

    def on(self, names: tuple[str, ...]) -> SshLayout:
        """Return the layout on these nodes, with all others as spares."""
        return replace(
            self,
            names=names,
            spares=tuple(name for name in (*self.names, *self.spares) if name not in names),
        )


def write_layout(run: RunFolder, layout: SshLayout) -> None:
    """Write `ssh.json`."""
    cluster = {name: getattr(layout.cluster, name) for name in _KEPT}
    document = {**{f.name: getattr(layout, f.name) for f in fields(layout)}, "cluster": cluster}
    files.write_json(run.path / LAYOUT, document, mode=files.PRIVATE)


def read_layout(run: RunFolder) -> SshLayout:
    """Return what stands in `ssh.json`.

    Raises:
        UserError: it is missing, or not whole.
    """
    path: Path = run.path / LAYOUT
    document = files.read_json(path)
    if document is None:
        raise UserError(
            f"no readable {path}",
            hint="the run folder has to be on a file system that all nodes share: set `run_dir`",
        )
    layout = record_of(SshLayout, document)
    if layout is None or not _fits(layout):
        raise UserError(f"{path} is damaged, or was written by another release")
    return layout


def _fits(layout: SshLayout) -> bool:
    """Tell whether what stands there for each node is there for each."""
    nodes = len(layout.names)
    return nodes == len(layout.slots) and layout.tasks <= nodes
