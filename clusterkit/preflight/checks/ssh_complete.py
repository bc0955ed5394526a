"""SSH003: whether all probes of a node had ended when its time was up."""

from __future__ import annotations

from clusterkit.core.findings import Verdict
from clusterkit.core.text.listing import some_of
from clusterkit.preflight.checks.base import (
    About,
    Check,
    Evidence,
    Judgement,
    NodeFacts,
    Ruling,
    passed,
)

_NAMED = 6

ABOUT = About(
    what="All probes of a node ended before the node was given up on.",
    why="What hangs here hangs in the job too: a driver, a file system, a name server.",
    how="The frame of every probe says when it ended; one without end hung or was cut off.",
    fix="Run the named probe's command by hand on the node, and see what it waits for.",
    source="leptonai/gpud and Azure NHC: nvidia-smi hangs after Xid 119, df on a dead NFS server",
)


def judge(evidence: Evidence) -> Judgement:
    """Say which probes of a node gave no answer."""
    asked = dict.fromkeys(name for node in evidence.nodes for name in node.outputs)
    for node in evidence.nodes:
        if node.reach.complete:
            yield node.name, passed("all probes ended in time")
        else:
            yield node.name, _incomplete(node, tuple(asked))


def _incomplete(node: NodeFacts, asked: tuple[str, ...]) -> Ruling:
    open_ = [name for name in asked if not _ended(node, name)]
    return Ruling(
        verdict=Verdict.UNKNOWN,
        summary=f"out of time: {some_of(open_, _NAMED)}" if open_ else "the connection ended early",
        evidence=f"given up after {node.reach.seconds:.0f} s",
        hint="what hangs here would hang in the job: look for stuck processes on the node",
        command="ps -eo pid,stat,wchan:32,args | awk '$2 ~ /D/'",
    )


def _ended(node: NodeFacts, name: str) -> bool:
    output = node.outputs.get(name)
    return output is not None and output.exit_code is not None


CHECK = Check(id="SSH003", name="ssh-complete", about=ABOUT, probes=(), judge=judge)
