"""What every transport offers: one script, many nodes, whatever came back."""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from clusterkit.core.errors import Problem, UserError
from clusterkit.transport.probe import Output, Reach, ReachProblem
from clusterkit.transport.script import AnswerReader, Compound

if TYPE_CHECKING:
    from clusterkit.core.model import ClusterSpec
    from clusterkit.transport.local import LocalTransport
    from clusterkit.transport.srun import SrunTransport
    from clusterkit.transport.ssh.transport import SshTransport

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")
_HINT = "a name has letters, digits, dots, dashes and underscores, and no dash or dot in front"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came back from one node, all of it or what was there when time was up."""

    node: str
    reach: Reach
    outputs: Mapping[str, Output] = field(default_factory=dict)
    """By probe name."""


def reply_of(
    node: str,
    reader: AnswerReader,
    silence: tuple[ReachProblem, str],
    *,
    via: str,
    seconds: float,
    answered_at: float | None = None,
    latency_s: float | None = None,
) -> Reply:
    """Return what came from a node; with `silence` as the problem where nothing did.

    `answered_at` is when it said how late it is there, by the clock of this machine (epoch).
    """
    answer = reader.answer()
    problem: ReachProblem | None
    problem, detail = (None, "") if reader.has_begun else silence
    if reader.excess:
        problem, detail = ReachProblem.EXCESS, reader.excess
    skew_s = None
    if answer is not None and answer.clock is not None and answered_at is not None:
        skew_s = answer.clock - answered_at + (latency_s or 0.0) / 2
    reach = Reach(
        problem=problem,
        detail=detail,
        via=via,
        latency_s=latency_s,
        clock_skew_s=skew_s,
        complete=answer is not None and answer.complete,
        seconds=round(seconds, 3),
    )
    return Reply(node=node, reach=reach, outputs=answer.outputs if answer else {})


class Transport(Protocol):
    """A way to run a script on nodes."""

    def ask(
        self, nodes: Sequence[str], compound: Compound, *, on_reply: Callable[[Reply], None]
    ) -> tuple[Reply, ...]:
        """Run the script on every node at once; return one reply per node, in order.

        `on_reply` is called with each reply as it comes, never by two threads at a time. A node
        that does not answer is a reply with `reach.problem`; it delays nobody beyond its time-out.

        Raises:
            RemoteError: the transport itself is missing (no srun, no allocation).
        """


def check_names(nodes: Iterable[str]) -> None:
    """Accept host names, IPv4 and IPv6 addresses; refuse everything else.

    They may go to a resolver, to ssh or to srun: nothing in them means anything to a shell.

    Raises:
        UserError: with one problem for each name that is refused.
    """
    refused = [name for name in dict.fromkeys(nodes) if not _is_name(name)]
    if refused:
        raise UserError(
            problems=[Problem(message=f"no host name: {name!r}", hint=_HINT) for name in refused]
        )


def _is_name(text: str) -> bool:
    if _NAME.fullmatch(text):
        return True
    if "%" in text:  # a zone may hold any character
        return False
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


# Each way loads what the others do not need: paramiko takes a tenth of a second.

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
