"""What `clusterkit diagnose` looks for."""

from __future__ import annotations

from collections.abc import Iterator

from clusterkit.cli.explain.topic import Topic, paragraphs, table
from clusterkit.observe.diagnose.rules import own_rules


def topics() -> Iterator[Topic]:
    """Yield the list of rules."""
    yield Topic(
        name="diagnose",
        summary="what `diagnose` looks for in the logs of a job that failed",
        text=paragraphs(
            "A cause can be the root of a failure; a symptom is taken for it only where no cause "
            "is found; a consequence happens to ranks because another has gone.",
        )
        + "\n\n"
        + table((rule.id, f"{rule.general_title} ({rule.role})") for rule in own_rules()),
    )
