"""Run a script right here: this machine is every node that is asked for."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence

from clusterkit.core.errors import RemoteError
from clusterkit.transport.base import Reply, check_names, reply_of
from clusterkit.transport.probe import ReachProblem, first_line
from clusterkit.transport.process import Ending, run_fed
from clusterkit.transport.script import AnswerReader, Compound

_MARGIN_S = 5.0
_ENDING = Ending(signals=(signal.SIGTERM, signal.SIGKILL))
"""With the first the script ends its probes, which have process groups of their own."""


class LocalTransport:
    """This machine under any names: the script runs once, and all of them get its answer."""

    def __init__(self, *, timeout_s: float | None = None) -> None:
        """Give up after `timeout_s`; None: after the time that the probes have, and a little."""
        self._timeout_s = timeout_s

    def ask(
        self, nodes: Sequence[str], compound: Compound, *, on_reply: Callable[[Reply], None]
    ) -> tuple[Reply, ...]:
        """Run the script once; see `Transport.ask`.

        Raises:
            RemoteError: this machine has no `sh`.
        """
        check_names(nodes)
        limit_s = self._timeout_s or compound.timeout_s + _MARGIN_S
        began = time.monotonic()
        reader = AnswerReader(compound)

        def on_output(_: float, data: bytes) -> bool:
            reader.feed(data)
            return not reader.excess

        try:
            ended = run_fed(
                ("sh",), compound.script, on_output=on_output, timeout_s=limit_s, ending=_ENDING
            )
        except OSError as error:
            raise RemoteError(f"cannot run sh: {error.strerror}") from error
        silence = (ReachProblem.TIMEOUT, f"no answer within {limit_s:g} s")
        if ended.exit_code is not None:
            message = first_line(ended.stderr.decode(errors="replace"))
            silence = (ReachProblem.SHELL, message or "sh said nothing")
        seconds = time.monotonic() - began
        replies = tuple(
            reply_of(node, reader, silence, via="local", seconds=seconds) for node in nodes
        )
        for reply in replies:
            on_reply(reply)
        return replies
