"""The checks of preflight, by id, by name and by area, and the verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clusterkit.cli.explain.topic import Topic, first_sentence, paragraphs, table
from clusterkit.preflight.checks import all_checks
from clusterkit.preflight.checks.base import Check, Tier

VERDICTS = {
    "pass": "Nothing is wrong.",
    "warn": "It runs, but slower or less safely than it could. With --strict it counts as fail.",
    "fail": "Do not start a job there. The node is left out of what is usable; nothing is drained.",
    "unknown": (
        "It could not be determined: the probe is missing a tool or a right, hung, or answered "
        "in no known way. Never counted as pass."
    ),
    "skip": "It does not apply: the machine does not have that part. Never counted as fail.",
}

AREAS = {
    "SSH": "Reaching the nodes, by SSH or by srun.",
    "HOST": "Operating system, limits, clock, names and the job's Python.",
    "GPU": "GPUs of NVIDIA and AMD: driver, memory, heat, links.",
    "TOPO": "How GPUs and NICs are joined; see also `clusterkit topo`.",
    "IB": "RDMA devices and their ports, and network interfaces.",
    "NCCL": "Variables of NCCL and its siblings; see also `clusterkit lint-env`.",
    "FS": "The folders that the nodes share.",
    "SLURM": "What Slurm thinks of the nodes.",
    "NET": "Traffic between the nodes, with --network.",
    "ENV": "Container runtime and image.",
}

WHEN = {
    Tier.NODE: "One round trip; judged on each node alone.",
    Tier.ROUND_TRIP: "One round trip; nodes are compared with each other.",
    Tier.NETWORK: "Traffic between the nodes; only with --network.",
}


def topics() -> Iterator[Topic]:
    """Yield the list of checks, one topic for each id, name, area and verdict."""
    checks = all_checks()
    yield Topic(
        name="checks",
        summary="what `clusterkit preflight` checks, by id",
        text=table((c.id, f"{c.name}: {first_sentence(c.about.what)}") for c in checks),
    )
    yield Topic(
        name="verdicts",
        summary="pass, skip, unknown, warn and fail of a check",
        text=table(VERDICTS.items()),
    )
    for word, text in VERDICTS.items():
        yield Topic(
            name=word, summary=first_sentence(text), text=paragraphs(text), group="verdicts"
        )
    for area, text in AREAS.items():
        yield _area(area, text, tuple(check for check in checks if check.area == area))
    for check in checks:
        for name, other in ((check.id, check.name), (check.name, check.id)):
            yield Topic(
                name=name,
                summary=first_sentence(check.about.what),
                text=_text(check, other),
                group="checks",
            )


def _area(name: str, text: str, checks: Sequence[Check]) -> Topic:
    return Topic(
        name=name,
        summary=first_sentence(text),
        text=paragraphs(f"An area of preflight (--select {name}). {text}")
        + "\n\n"
        + table((c.id, f"{c.name}: {first_sentence(c.about.what)}") for c in checks),
        group="checks",
    )


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
