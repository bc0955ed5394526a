"""Call the other nodes of a job on Slurm while its command runs, so that one that goes is noticed.

Slurm itself takes `SlurmdTimeout` for that, five minutes unless the site says otherwise. Over ssh
the keepers of the nodes call each other, and on one machine nobody has to.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from clusterkit.core import peers
from clusterkit.core.errors import RemoteError
from clusterkit.core.model import ClusterKind, Runtime
from clusterkit.core.peers import TokenError
from clusterkit.executors.node.coordinator import join
from clusterkit.executors.node.identity import Identity
from clusterkit.executors.node.peer_state import News
from clusterkit.executors.node.peers import Circle
from clusterkit.executors.run import runfolder
from clusterkit.executors.run.runfolder import RunFolder

_FIRST_ANSWER_S = 3.0
"""How long the command waits for a first call: one that was never heard can be missed by nobody."""
_LOOK_EVERY_S = 2.0
"""Seldom, because the watch over the command looks into the same folder."""


@contextmanager
def in_touch(run: RunFolder, me: Identity) -> Iterator[None]:
    """Call and be called; do nothing where a job has one node, or may go on without some."""
    circle = _circle(run, me)
    if circle is None:
        yield
        return
    news = News(run, attempt=me.attempt, of=me.of, look_every_s=_LOOK_EVERY_S)
    try:
        link = join(circle, me.rank, news)
        link.begin()
        link.await_answer(_FIRST_ANSWER_S)
    except (RemoteError, TokenError) as error:
        print(f"clusterkit: nodes that go will be noticed by Slurm alone: {error}", file=sys.stderr)
        yield
        return
    news.begin()
    try:
        yield
    finally:
        link.leave()
        news.end()


def _circle(run: RunFolder, me: Identity) -> Circle | None:
    submission = runfolder.read_submission(run)
    token = os.environ.get(peers.VARIABLE, "")  # of a batch script that makes one
    port = os.environ.get(Runtime.PORT.name, "")
    if submission is None or not token or not port.isdigit() or me.of == 1:
        return None
    if submission.kind is not ClusterKind.SLURM or submission.once or submission.least is not None:
        return None
    return Circle(
        names=me.among,
        tasks=me.of,
        ports=(int(port),),
        token=token,
        gathers=False,
    )
