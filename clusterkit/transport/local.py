"""Run a script right here: this machine is every node that is asked for."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence

from clusterkit.errors import RemoteError
from clusterkit.probes.base import Reach, ReachProblem, first_line
from clusterkit.probes.compound import Compound, read_answers
from clusterkit.transport.base import Reply
from clusterkit.transport.names import check_names
from clusterkit.transport.process import run_fed

_MARGIN_S = 5.0
_SIGNALS = (signal.SIGTERM, signal.SIGKILL)
"""With the first the script ends its probes, which have process groups of their own."""


class LocalTransport:
    """This machine under any names: the script runs once, and all of them get its answer."""

    def __init__(self, *, timeout_s: float | None = None) -> None:
        """Give up after `timeout_s`; None: after the time that the probes have, and a little."""
        self._timeout_s = timeout_s

    def ask(
        self, nodes: Sequence[str], compound: Compound, *, heard: Callable[[Reply], None]
    ) -> tuple[Reply, ...]:
        """Run the script once; see `Transport.ask`.

        Raises:
            RemoteError: this machine has no `sh`.
        """
        check_names(nodes)
        limit_s = self._timeout_s or compound.timeout_s + _MARGIN_S
        began = time.monotonic()
        try:
            ended = run_fed(("sh",), compound.script, timeout_s=limit_s, signals=_SIGNALS)
        except OSError as error:
            raise RemoteError(f"cannot run sh: {error.strerror}") from error
        answers = read_answers(ended.stdout.decode(errors="replace"), compound)
        answer = next(iter(answers.values()), None)
        seconds = round(time.monotonic() - began, 3)
        if answer is not None:
            reach = Reach(via="local", complete=answer.complete, seconds=seconds)
        else:
            silent = ended.exit_code is None
            said = first_line(ended.stderr.decode(errors="replace"))
            reach = Reach(
                problem=ReachProblem.TIMEOUT if silent else ReachProblem.SHELL,
                detail=f"no answer within {limit_s:g} s" if silent else said or "sh said nothing",
                via="local",
                complete=False,
                seconds=seconds,
            )
        replies = tuple(
            Reply(node=node, reach=reach, outputs=answer.outputs if answer else {})
            for node in nodes
        )
        for reply in replies:
            heard(reply)
        return replies
