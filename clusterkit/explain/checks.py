"""The checks of preflight, by id and by name, and the verdicts."""

from __future__ import annotations

from collections.abc import Iterator

from clusterkit.checks import all_checks
from clusterkit.checks.base import Check, Tier
from clusterkit.explain.topic import Topic, first_sentence, paragraphs, table

_VERDICTS = {
    "pass": "Nothing is wrong.",
    "warn": "It runs, but slower or less safely than it could. With --strict it counts as fail.",
    "fail": "Do not start a job there. The node is left out of what is usable; nothing is drained.",
    "unknown": (
        "It could not be determined: the probe is missing a tool or a right, hung, or answered "
        "in no known way. Never counted as pass."
    ),
    "skip": "It does not apply: the machine does not have that part. Never counted as fail.",
}

_WHEN = {
    Tier.NODE: "One round trip; judged on each node alone.",
    Tier.ROUND_TRIP: "One round trip; nodes are compared with each other.",
    Tier.NETWORK: "Traffic between the nodes; only with --network.",
}


def topics() -> Iterator[Topic]:
    """Yield the list of checks, one topic for each id and name, and the verdicts."""
    checks = all_checks()
    yield Topic(
        name="checks",
        summary="what `clusterkit preflight` checks, by id",
        text=table((c.id, f"{c.name}: {first_sentence(c.about.what)}") for c in checks),
    )
    yield Topic(
        name="verdicts",
        summary="pass, skip, unknown, warn and fail of a check",
        text=table(_VERDICTS.items()),
    )
    for check in checks:
        for name in (check.id, check.name):
            yield Topic(
                name=name,
                summary=first_sentence(check.about.what),
                text=_text(check),
                group="checks",
            )


def _text(check: Check) -> str:
    about = check.about
    return paragraphs(
        f"{check.id} {check.name}. {about.what}",
        f"Why it matters: {about.why}",
        f"How it is measured: {about.how} {_WHEN[check.tier]}",
        f"How to fix it: {about.fix}",
        f"Source: {about.source}",
    )
