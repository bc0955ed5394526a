"""Ask all nodes once, through any transport, and keep what they say."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clusterkit.core import files
from clusterkit.core.errors import UserError
from clusterkit.preflight.bundle import Bundle
from clusterkit.preflight.checks import all_checks, select_checks
from clusterkit.preflight.checks.base import Check, Tier
from clusterkit.preflight.checks.ssh import peers
from clusterkit.transport.base import Reply, Transport
from clusterkit.transport.probe import PreflightJob, Probe
from clusterkit.transport.script import compose, new_token


def collect(
    transport: Transport,
    checks: Sequence[Check],
    job: PreflightJob,
    *,
    on_reply: Callable[[Reply], None] = lambda _: None,
) -> Bundle:
    """Run the probes that `checks` need on every node of `job`, in one round trip per node.

    Raises:
        RemoteError: the transport itself is missing.
    """
    began = time.monotonic()
    with marked(job) as marked_job:
        compound = compose(probes_of(checks, marked_job), marked_job, token=new_token())
        replies = transport.ask(job.hosts, compound, on_reply=on_reply)
    return Bundle(
        job=marked_job,
        replies=replies,
        collected_at=time.time(),
        checks=tuple(check.id for check in checks),
        seconds=time.monotonic() - began,
    )


def probes_of(checks: Sequence[Check], job: PreflightJob) -> tuple[Probe[Any], ...]:
    """Return the probes that `checks` read from the one round trip of this job, each once."""
    asked = (check for check in checks if check.tier is not Tier.NETWORK)
    selected = (check for check in asked if check.skip_if(job) is None)
    return tuple({probe.name: probe for check in selected for probe in check.probes}.values())


@contextmanager
def marked(job: PreflightJob) -> Iterator[PreflightJob]:
    """Hold a marker file in the first of the job's shared folders while nodes look for it."""
    if not job.paths:
        yield job
        return
    name = f".clusterkit-preflight-{os.urandom(6).hex()}"
    path = Path(job.paths[0]) / name
    try:
        files.write_text(path, name + "\n")
    except UserError:
        yield job  # a folder that only the nodes have cannot be marked from here
        return
    try:
        yield dataclasses.replace(job, marker=name)
    finally:
        files.remove(path)


def checks_to_ask(
    select: Sequence[str], ignore: Sequence[str], *, network: bool, without: Collection[str] = ()
) -> tuple[Check, ...]:
    """Return the checks for which nodes are to be asked.

    Whoever names a check of the network wants it measured. Where none is named, areas `without`
    are left out, and not loaded.

    Raises:
        UserError: a word names no check, or none is left.
    """
    known = all_checks() if select or ignore else all_checks(without)
    chosen = select_checks(known, select=select, ignore=ignore)
    if not network and not select:
        chosen = tuple(check for check in chosen if check.tier is not Tier.NETWORK)
    return _some(chosen)


def checks_to_evaluate(
    select: Sequence[str], ignore: Sequence[str], bundle: Bundle
) -> tuple[Check, ...]:
    """Return the checks that evaluate what was kept: those for which it was, unless some are named.

    Raises:
        UserError: a word names no check, or none is left.
    """
    chosen = select_checks(all_checks(), select=select, ignore=ignore)
    if not select and bundle.checks:
        chosen = tuple(check for check in chosen if check.id in bundle.checks)
    return _some(chosen)


def asks_for_peers(select: Sequence[str]) -> bool:
    """Tell whether nodes are to log in to each other: no job of ours needs it, so by name alone."""
    return bool({peers.id, peers.name} & {word.strip() for word in select})


def _some(checks: tuple[Check, ...]) -> tuple[Check, ...]:
    if not checks:
        raise UserError(
            "no check is left, so nothing would be proven of any node",
            hint="leave out less with --ignore, or choose with --select",
        )
    return checks
