"""Preflight: the verb, its checks by id, by name and by area, and the verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from clusterkit.cli.explain.reference import cluster_keys, key_facts
from clusterkit.cli.explain.topic import (
    Topic,
    first_sentence,
    one_each,
    paragraphs,
    table,
    texts,
)
from clusterkit.preflight.checks import all_checks
from clusterkit.preflight.checks.base import Check, Tier

WHEN = {
    Tier.NODE: "One round trip; judged on each node alone.",
    Tier.ROUND_TRIP: "One round trip; nodes are compared with each other.",
    Tier.NETWORK: "Traffic between the nodes; only with --network.",
}


def topics() -> Iterator[Topic]:
    """Yield the list of checks, one topic for each id, name, area and verdict."""
    checks, verdicts = all_checks(), texts("verdicts")
    yield Topic(
        name="checks", summary="what `clusterkit preflight` checks, by id", text=_listed(checks)
    )
    yield Topic(
        name="verdicts",
        summary="pass, skip, unknown, warn and fail of a check",
        text=table(verdicts.items()),
    )
    yield from one_each(verdicts, "verdicts")
    for area, text in texts("areas").items():
        about = paragraphs(f"An area of preflight (--select {area}). {text}")
        own = _listed(check for check in checks if check.area == area)
        summary = first_sentence(text)
        yield Topic(name=area, summary=summary, text=f"{about}\n\n{own}", group="checks")
    for check in checks:
        summary = first_sentence(check.about.what)
        for name, other in ((check.id, check.name), (check.name, check.id)):
            yield Topic(name=name, summary=summary, text=_text(check, other), group="checks")


def _listed(checks: Iterable[Check]) -> str:
    return table((c.id, f"{c.name}: {first_sentence(c.about.what)}") for c in checks)


def _text(check: Check, other: str) -> str:
    """Return the text below the id or the name of a check; `other` is the other of the two."""
    about = check.about
    return paragraphs(
        f"{other}: {about.what}",
        f"Why it matters: {about.why}",
        f"How it is measured: {about.how} {WHEN[check.tier]}",
        f"How to fix it: {about.fix}",
        f"Source: {about.source}",
    )


def preflight() -> Iterator[Topic]:
    """Yield the topic of the verb; it takes the place of the one about the key of that name."""
    yield Topic(
        name="preflight",
        summary="proving that nodes are fit, by itself or before a job",
        text="\n\n".join(
            (
                paragraphs(
                    "`clusterkit preflight` asks every node of a cluster how it is, judges what "
                    "they say, and names those that are not fit. It changes nothing on any node.",
                    "`clusterkit submit` does so by itself before it hands a job over. "
                    "--preflight, or `preflight:` in the cluster, says how much of it:",
                ),
                table(texts("modes").items()),
                paragraphs(
                    "Where a check fails, nothing is submitted and the exit code is 1. "
                    "--exclude-unfit goes on without the unfit nodes if enough are left, --force "
                    "goes on as it is. What was found stands in preflight.json of the run folder.",
                    "See also `clusterkit explain checks`, `verdicts`, and each check by its id. "
                    "As a key of a cluster:",
                ),
                table(key_facts(cluster_keys()["preflight"])),
            )
        ),
    )
