"""The ways to nodes; each loads what the others do not need: paramiko takes a tenth of a second."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from clusterkit.core.model import ClusterSpec

if TYPE_CHECKING:
    from clusterkit.transport.local import LocalTransport
    from clusterkit.transport.srun import SrunTransport
    from clusterkit.transport.ssh.transport import SshTransport

WAYS = ("ssh", "srun", "local")


def by_ssh(cluster: ClusterSpec, *, keep: bool = False, **options: Any) -> SshTransport:
    """Return the way by ssh; `options` are fields of `SshOptions` that differ from the cluster's.

    Args:
        cluster: How to log in.
        keep: Whether connections stay open between questions.
        options: Of `SshOptions`.

    Raises:
        UserError: ssh's configuration cannot be read.
    """
    from clusterkit.transport.ssh.config import SshOptions  # noqa: PLC0415
    from clusterkit.transport.ssh.transport import SshTransport  # noqa: PLC0415

    return SshTransport(dataclasses.replace(SshOptions.of(cluster), **options), keep=keep)


def by_srun(cluster: ClusterSpec, **options: Any) -> SrunTransport:
    """Return the way by srun in an allocation, with those fields of `SrunOptions`."""
    from clusterkit.transport.srun import SrunOptions, SrunTransport  # noqa: PLC0415

    return SrunTransport(dataclasses.replace(SrunOptions.of(cluster), **options))


def by_step(job_id: str | None, **options: Any) -> SrunTransport:
    """Return the way by a step of srun in a job that runs, with those fields of `SrunOptions`."""
    from clusterkit.transport.srun import SrunOptions, SrunTransport  # noqa: PLC0415

    return SrunTransport(SrunOptions(job_id=job_id, **options))


def by_shell() -> LocalTransport:
    """Return the way to this machine."""
    from clusterkit.transport.local import LocalTransport  # noqa: PLC0415

    return LocalTransport()
