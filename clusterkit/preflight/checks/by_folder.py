"""For checks of the job's folders: what most nodes say of each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from clusterkit.preflight.checks.base import Evidence, majority
from clusterkit.preflight.probes.host.shared_folders import PROBE, Folder
from clusterkit.transport.probe import Missing

V = TypeVar("V", int, str)


def usual(evidence: Evidence, key: Callable[[Folder], V | None]) -> Sequence[V | None]:
    """Return, for each path of the job, the `key` that most nodes have, None without a majority."""
    found: list[dict[str, V]] = [{} for _ in evidence.job.paths]
    for node in evidence.nodes:
        facts = node.of(PROBE)
        if isinstance(facts, Missing):
            continue
        for values, folder in zip(found, facts, strict=False):
            if (value := key(folder)) is not None:
                values[node.name] = value
    return tuple(majority(values) for values in found)
