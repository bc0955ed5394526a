"""What a node says of itself: what its checks find, and what its output says it failed of."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from clusterkit.core import files, reading
from clusterkit.core.commands import filled_in, run_command
from clusterkit.core.errors import ClusterkitError, UserError
from clusterkit.core.model import NodeResult
from clusterkit.core.records import object_of, text_of, texts_of
from clusterkit.executors.node.failure import cut
from clusterkit.executors.node.identity import Identity
from clusterkit.executors.run.runfolder import RunFolder

_MOST_READ = 4 << 20
"""Bytes at the end of a node's output in which `clusterkit diagnose` looks for a cause."""
_LONGEST = 200
"""Characters of what it says."""
_READING_S = 30.0
"""It takes 0.6 s on an idle machine. Whoever ends this node waits for longer (supervisor.py)."""
_DIAGNOSE = (sys.executable, "-P", "-m", "clusterkit", "diagnose", "-", "--json")
_DRAIN_S = 30.0
_BEFORE, _AFTER = "before the start", "after the failure"


def why_unhealthy(run: RunFolder, me: Identity) -> str | None:
    """Return what is wrong with this node before it starts; None where nothing is.

    One that was asked when the job was submitted looks at its hardware, and only from the second
    attempt on. The findings stand in the node's log as well. A node that cannot be checked is not
    unhealthy.
    """
    document = files.read_json(run.node_checks)
    if document is None:
        return None
    # `before_start` is missing where an earlier version wrote the document.
    asked = document.get("before_start") is False or me.name in texts_of(document, "asked")
    return None if asked and not me.attempt else _found(run, me, document, hardware=asked)


def why_broken(run: RunFolder, me: Identity) -> str | None:
    """Return which fault of this node's hardware may have made its command fail, if any."""
    document = files.read_json(run.node_checks)
    if document is None:
        return None
    return _found(run, me, document, hardware=True, when=_AFTER)


def _found(
    run: RunFolder,
    me: Identity,
    document: dict[str, Any],
    *,
    hardware: bool,
    when: str = _BEFORE,
) -> str | None:
    # Loads a hundred small modules, and only here.
    from clusterkit.preflight.on_node import examine_here  # noqa: PLC0415
    from clusterkit.preflight.text import in_words, report_lines  # noqa: PLC0415

    try:
        report = examine_here(document, me.name, hardware=hardware)
    except ClusterkitError as error:
        note(run, me, [f"this node could not be checked: {error}"], when=when)
        return None
    if not report.bad:
        return None
    note(run, me, [line for _, line in report_lines(report)], when=when)
    return in_words(report.bad)


def note(run: RunFolder, me: Identity, lines: Sequence[str], *, when: str = _BEFORE) -> None:
    """Write what checks have found into the log of this node, if they have."""
    if not lines:
        return
    text = "".join(f"{line}\n" for line in lines)
    with suppress(UserError, OSError):  # a disk that takes no more is for others to tell
        log = files.open_for_append(run.log(me.rank))
        try:
            os.write(log, f"--- clusterkit: checks of {me.name} {when}\n{text}".encode())
        finally:
            os.close(log)


def with_cause(
    run: RunFolder, me: Identity, result: NodeResult, *, since: int, shared: bool
) -> NodeResult:
    """Add to how the command ended what its output says, from byte `since` of the log on.

    That is the rule of `clusterkit diagnose` that fits, and the last step; and a fault of this
    node, where the rule is one for those. Of another node the output is not believed, and not of
    this one either where it is `shared` by the ranks of all and names nobody. A process of its own
    reads it, in bounded time: the text is the script's, and may be anything.
    """
    log = run.log(me.rank)
    text = reading.read_end(log, min(_MOST_READ, max(0, reading.size_of(log) - since)))
    if not text:
        return result
    answer = run_command(_DIAGNOSE, given=text, timeout_s=_READING_S)
    document = files.parse_json(answer.output.encode())
    if document is None:
        note(run, me, [f"the output could not be read: {answer.complaint}"], when=_AFTER)
        return result
    cause, step = object_of(document, "cause"), document.get("step")
    of_whom = text_of(cause, "node")
    own = of_whom == me.name if of_whom else not shared
    title = cut(text_of(cause, "title") or "", _LONGEST)
    return replace(
        result,
        rule=text_of(cause, "rule"),
        step=step if isinstance(step, int) else None,
        fault=f"its output says: {title}" if own and cause.get("hardware") is True else None,
    )


def drain(run: RunFolder, me: Identity, why: str) -> str | None:
    """Run the site's command that takes this node out of service; return how that went.

    None where there is none.
    """
    words = texts_of(object_of(files.read_json(run.plan) or {}, "cluster"), "drain_command")
    if not words:
        return None
    values = {"node": me.name, "reason": cut(" ".join(why.split()), _LONGEST)}
    answer = run_command(filled_in(words, values), timeout_s=_DRAIN_S)
    ended = "drained" if answer.ok else f"drain_command failed: {cut(answer.complaint, _LONGEST)}"
    with suppress(UserError):
        files.append_line(run.log(me.rank), f"clusterkit: {me.name}: {ended}")
    return ended
