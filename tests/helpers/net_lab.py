"""A transport to the hosts of the practice cluster that needs neither sshd nor Slurm."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence

from clusterkit.transport.base import Reply
from clusterkit.transport.probe import Reach
from clusterkit.transport.script import Compound
from tests.helpers.answers import read_answer
from tests.lab import Lab


class LabTransport:
    """Feed the script to `sh` on every host at once."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def ask(
        self, nodes: Sequence[str], compound: Compound, *, on_reply: Callable[[Reply], None]
    ) -> tuple[Reply, ...]:
        running = []
        for node in nodes:
            process = self.lab.popen(node, ["sh", "-s"], stdin=subprocess.PIPE)
            assert process.stdin is not None
            process.stdin.write(compound.script)
            process.stdin.close()
            process.stdin = None
            running.append(process)
        replies = []
        for node, process in zip(nodes, running, strict=True):
            with process:
                text, _ = process.communicate(timeout=compound.timeout_s + 10)
            answer = read_answer(text, compound)
            assert answer is not None
            reply = Reply(
                node=node,
                reach=Reach(via="local", complete=answer.complete),
                outputs=answer.outputs,
            )
            on_reply(reply)
            replies.append(reply)
        return tuple(replies)
